"""A run's folder: the files in it, the lock on it, and what is refused."""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mnemoscope.errors import MnemoscopeError
from mnemoscope.files import NO_FOLLOW, make_folder, read_json, refuse_link, to_json, write_atomic
from mnemoscope.training._checkpoint import (
    Checkpoint,
    checkpoints,
    prune,
    read_checkpoint,
    remove_temporary_files,
    write_checkpoint,
)

try:
    import fcntl
except ImportError:  # not a POSIX system: nothing then keeps two processes out of one folder
    fcntl = None  # type: ignore[assignment]

_log = logging.getLogger("mnemoscope")
_BEFORE_CONFIG = re.compile(r"\.lock|\.config\.json\..*tmp")  # all that a run killed at its very start can leave


class RunFolder:
    """The files of one run."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config = self.path / "config.json"
        self.metrics = self.path / "metrics.jsonl"
        self.summary = self.path / "summary.json"
        self.checkpoints = self.path / "checkpoints"
        self.trajectory = self.path / "trajectory"
        self.tensorboard = self.path / "tensorboard"

    def require_empty(self) -> None:
        """Refuse a folder with anything in it: a new run needs an empty one."""
        if self.config.exists():
            raise MnemoscopeError(f"{self.path} already holds a run; resume it, or choose another folder")
        if self.path.exists() and not self.path.is_dir():
            raise MnemoscopeError(f"{self.path} is a file; choose another folder for the run")
        if self.path.exists() and not all(_BEFORE_CONFIG.fullmatch(entry.name) for entry in self.path.iterdir()):
            raise MnemoscopeError(f"{self.path} is not empty and holds no run; choose another folder")

    def require_run(self) -> None:
        """Refuse a folder that holds no run, or whose files are links to somewhere else."""
        if not self.config.is_file():
            raise MnemoscopeError(f"{self.path} is not a run folder: it has no config.json")
        for entry in (self.config, self.metrics, self.summary, self.checkpoints, self.trajectory, self.tensorboard):
            refuse_link(entry)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from writing here. The system releases the lock however this process ends."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT | NO_FOLLOW, 0o666)
        except OSError as error:
            raise MnemoscopeError(f"cannot write to {self.path}: {error.strerror}") from error
        try:
            _acquire(lock, self.path)
            yield
        finally:
            os.close(lock)

    def begin(self, config: dict[str, Any]) -> None:
        """Start a new run here. config.json comes first: a folder that has one is a run."""
        self.require_empty()
        write_atomic(self.config, to_json(config, indent=2))

    def prepare(self) -> None:
        """Create the folders, and delete what a killed process may have left half-written."""
        make_folder(self.checkpoints)
        for folder in (self.path, self.checkpoints, self.trajectory):
            remove_temporary_files(folder)
        prune(self.checkpoints)

    def save(self, checkpoint: Checkpoint) -> Path:
        """Write a checkpoint and delete all but the last three."""
        path = write_checkpoint(self.checkpoints, checkpoint)
        prune(self.checkpoints)
        return path

    def latest(self, accept: Callable[[Checkpoint], None]) -> Checkpoint | None:
        """Return the newest checkpoint that is not damaged and that `accept` does not refuse by raising.

        An older checkpoint is as good, since the run repeats the same updates. So damaged ones are only reported.
        """
        problems: list[MnemoscopeError] = []
        for path in checkpoints(self.checkpoints):
            try:
                checkpoint = read_checkpoint(path)
                accept(checkpoint)
            except MnemoscopeError as error:
                problems.append(error)
                continue
            for problem in problems:
                _log.warning("%s; going back to update %d", problem, checkpoint.update)
            return checkpoint
        if problems:
            raise problems[0]
        return None

    def read_config(self) -> Any:
        """Return the JSON value in config.json."""
        self.require_run()
        return read_json(self.config)


def _acquire(lock: int, path: Path) -> None:
    try:
        if fcntl is not None:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise MnemoscopeError(f"{path} is in use by another process; wait for it to end") from error


def config_hash(config: dict[str, Any]) -> str:
    """Return the SHA-256 of a configuration: a checkpoint continues only the run that it was made in."""
    return hashlib.sha256(to_json(config)).hexdigest()
