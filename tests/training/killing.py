"""Real training processes, killed from outside at any moment or by themselves in the middle of a write."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

CALLS = ("open", "fsync", "replace", "ftruncate", "unlink", "mkdir")

_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(["mnemoscope.training", "lightning_fabric"])


def warm_up() -> None:
    """Have the imports done, so that the processes to come start at once."""
    process = _processes.Process(target=int)
    process.start()
    process.join()


def start(config: dict[str, Any], folder: Path, die_at: int | None = None) -> Any:
    """Begin or continue the run in `folder` in a process of its own; with `die_at` it dies at that file operation."""
    process = _processes.Process(target=_run, args=(config, folder, die_at))
    process.start()
    return process


def _run(config: dict[str, Any], folder: Path, die_at: int | None) -> None:
    from mnemoscope.training import RunConfig, resume, train

    if die_at is not None:
        _arm(die_at)
    if (folder / "config.json").exists():
        resume(folder)
    else:
        train(RunConfig.from_dict(config), folder)


def _arm(die_at: int) -> None:
    """Die by SIGKILL at the `die_at`-th file operation that changes something; of a write, half is done."""
    left = die_at

    def reached() -> bool:
        nonlocal left
        left -= 1
        return left == 0

    for name in CALLS:
        setattr(os, name, _dying(getattr(os, name), reached))
    open_file = os.fdopen
    os.fdopen = lambda *args, **kwargs: _DyingFile(open_file(*args, **kwargs), reached)  # type: ignore[assignment]


def _dying(call: Callable[..., Any], reached: Callable[[], bool]) -> Callable[..., Any]:
    def instead(*args: Any, **kwargs: Any) -> Any:
        if reached():
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*args, **kwargs)

    return instead


class _DyingFile:
    def __init__(self, file: Any, reached: Callable[[], bool]) -> None:
        self.file, self.reached = file, reached
        self.flush, self.fileno = file.flush, file.fileno

    def __enter__(self) -> _DyingFile:
        return self

    def __exit__(self, *error: object) -> None:
        self.file.close()

    def write(self, data: bytes) -> None:
        if self.reached():
            self.file.write(data[: len(data) // 2])
            self.file.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        self.file.write(data)
