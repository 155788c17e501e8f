"""A run's folder: the files in it, the lock on it, and what is refused."""

from __future__ import annotations

import logging
import re
from contextlib import AbstractContextManager
from pathlib import Path

from mnemoscope.errors import MnemoscopeError
from mnemoscope.files import locked, make_folder, refuse_link, remove, write_atomic
from mnemoscope.training._checkpoint import (
    Checkpoint,
    checkpoints,
    prune,
    read_checkpoint,
    remove_temporary_files,
    write_checkpoint,
)
from mnemoscope.training._run_description import RunDescription, read_description

_log = logging.getLogger("mnemoscope")
_NAMED_RUNS = 3  # in the error for a folder that holds runs
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
        self.snapshots = self.path / "snapshots"
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
        if not self.path.exists():
            raise MnemoscopeError(f"there is no folder {self.path}")
        if not self.path.is_dir():
            raise MnemoscopeError(f"{self.path} is a file, not the folder of a run")
        if not self.config.is_file():
            inside = [str(config.parent) for config in sorted(self.path.glob("*/config.json"))]
            more = ", ..." if len(inside) > _NAMED_RUNS else ""
            hint = f"; it holds the runs {', '.join(inside[:_NAMED_RUNS])}{more}: name some of them" if inside else ""
            raise MnemoscopeError(f"{self.path} is not a run folder: it has no config.json{hint}")
        folders = (self.checkpoints, self.trajectory, self.snapshots, self.tensorboard)
        for entry in (self.config, self.metrics, self.summary, *folders):
            refuse_link(entry)

    def locked(self) -> AbstractContextManager[None]:
        """Keep other processes from writing here. A sweep's job holds the lock already."""
        return locked(self.path, again=True)

    def begin(self, description: RunDescription) -> None:
        """Start a new run here. config.json comes first: a folder that has one is a run."""
        self.require_empty()
        write_atomic(self.config, description.to_json())
        self.prepare()

    def extend(self, description: RunDescription) -> None:
        """Let the run go on beyond its end: it is unfinished again, then its configuration has the larger budget."""
        with self.locked():
            remove(self.summary)
            write_atomic(self.config, description.to_json())

    def prepare(self) -> None:
        """Create the folders; delete what a killed process may have left half-written, and the summary of a failure."""
        make_folder(self.checkpoints)
        remove(self.summary)
        for folder in (self.path, self.checkpoints, self.trajectory, self.snapshots):
            remove_temporary_files(folder)
        prune(self.checkpoints)

    def save(self, checkpoint: Checkpoint) -> Path:
        """Write a checkpoint and delete all but the last three."""
        path = write_checkpoint(self.checkpoints, checkpoint)
        prune(self.checkpoints)
        return path

    def latest(self) -> Checkpoint | None:
        """Return the newest checkpoint that is not damaged; None if there is none at all.

        An older checkpoint is as good, since the run repeats the same updates. So damaged ones are only reported.
        """
        problems: list[MnemoscopeError] = []
        for path in checkpoints(self.checkpoints):
            try:
                checkpoint = read_checkpoint(path)
            except MnemoscopeError as error:
                problems.append(error)
                continue
            for problem in problems:
                _log.warning("%s; going back to update %d", problem, checkpoint.update)
            return checkpoint
        if problems:
            raise problems[0]
        return None

    def description(self) -> RunDescription:
        """Return the checked content of config.json."""
        self.require_run()
        return read_description(self.config)
