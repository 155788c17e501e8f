"""What jobs on other machines share: a folder, and a file in it by which the driver stops them."""

from __future__ import annotations

import contextlib
import secrets
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mnemoscope.files import remove, write_atomic
from mnemoscope.sweeps._job import Ending, Job, output_to, run_job

DRIVER_FILE = ".driver"
ASK_SECONDS = 1.0  # between looks at the file
STOP_SECONDS = 60.0  # after which a job that was asked to stop is killed


class DriverFile:
    """Says whose jobs may run: a job stops once the file no longer holds the token that it was started with.

    So a driver can stop its jobs wherever they are; and if it was killed, a new one stops what the old one left behind.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / DRIVER_FILE
        self.token = secrets.token_hex(8)
        write_atomic(self.path, self.token.encode())

    def stop(self) -> None:
        """Ask all jobs to save their work and end."""
        write_atomic(self.path, b"stop")

    def remove(self) -> None:
        remove(self.path)


class RemoteJobs:
    """The driver's side of jobs elsewhere: what they are called with, and its file, which is there while any runs."""

    def __init__(self) -> None:
        self._file: DriverFile | None = None

    def arguments(self, job: Job, folder: Path, logs: Path) -> tuple[dict[str, Any], str, str, str, str]:
        """Return what `remote_job` is to be called with."""
        self._file = self._file or DriverFile(logs.parent)
        return asdict(job), str(folder), str(logs / f"{job.name}.txt"), str(self._file.path), self._file.token

    def stop(self) -> None:
        """Ask all jobs to save their work and end."""
        if self._file is not None:
            self._file.stop()

    def close(self) -> None:
        """Remove the file: no job is left."""
        if self._file is not None:
            self._file.remove()
            self._file = None


def could_not_begin(what: str, error: Exception) -> Ending:
    """Return how a job ended whose function could not even be called; the last line of the error says why."""
    reason = (str(error).strip().splitlines() or ["unknown"])[-1]
    return Ending("failed", f"{what} could not begin: {reason}", 2)


class DriverWatch:
    """In a job: True once the driver has asked it to stop, or another driver has taken over."""

    def __init__(self, path: str, token: str) -> None:
        self.path = path
        self.token = token
        self.stopped = False
        self.asked_at = -ASK_SECONDS

    def __call__(self) -> bool:
        if not self.stopped and time.monotonic() - self.asked_at >= ASK_SECONDS:
            self.asked_at = time.monotonic()
            with contextlib.suppress(OSError):  # a shared file system may be away for a moment
                self.stopped = Path(self.path).read_text() != self.token
        return self.stopped


def remote_job(content: dict[str, Any], folder: str, log: str, driver_file: str, token: str) -> Ending:
    """Do a job in this process, on whatever machine it is."""
    should_stop = DriverWatch(driver_file, token)
    if should_stop():  # it waited in a queue while its driver was stopped
        return Ending("stopped")
    job = Job(**content)
    with output_to(Path(log)):
        return run_job(job, Path(folder), should_stop)
