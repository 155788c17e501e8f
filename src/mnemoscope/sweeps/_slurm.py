"""Jobs of Slurm, submitted as arrays by submitit from a machine that shares a folder with the nodes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from mnemoscope.errors import MnemoscopeError, check_count, first_line
from mnemoscope.sweeps._job import Ending, Job
from mnemoscope.sweeps._remote import STOP_SECONDS, RemoteJobs, could_not_begin, remote_job

MAX_QUEUED = 1000  # jobs in Slurm's queue at a time: the usual largest array
SUBMITIT = "submitit"  # its folder, in that of the sweep
POLL_SECONDS = 0.2


class SlurmEngine:
    """Jobs of Slurm. A preempted job is put into the queue again by submitit and goes on from its folder.

    Args:
        jobs: how many at a time; by default as many as Slurm starts.
        threads: CPUs of a job.
        gpus: GPUs of a job.
        parameters: submitit's, by its names: `{"slurm_partition": "gpu", "timeout_min": 60}`.
        cluster: "slurm", or "local" for processes of this machine, to try it out.
    """

    def __init__(
        self,
        *,
        jobs: int | None = None,
        threads: int = 1,
        gpus: int = 0,
        parameters: Mapping[str, Any] | None = None,
        cluster: Literal["slurm", "local"] = "slurm",
    ) -> None:
        if jobs is not None:
            check_count("jobs", jobs)
        self._submitit = _import_submitit()
        self._cluster = cluster
        self._jobs = jobs
        # Slurm itself holds back what is too much of an array; processes of this machine must be held back here.
        self.slots = (jobs or 1) if cluster == "local" else MAX_QUEUED
        self._parameters = {"cpus_per_task": max(threads, 1), "gpus_per_node": gpus, **(parameters or {})}
        self._executor: Any = None
        self._running: dict[str, Any] = {}
        self._remote = RemoteJobs()

    def start(self, jobs: Sequence[tuple[Job, Path]], logs: Path) -> None:
        """Submit jobs as one array. What they print goes to a file of their name in `logs`."""
        if not jobs:
            return
        executor = self._executor = self._executor or self._make_executor(logs.parent / SUBMITIT)
        with executor.batch():
            for job, folder in jobs:
                arguments = self._remote.arguments(job, folder, logs)
                self._running[job.name] = executor.submit(_Resumable(), *arguments)

    def _make_executor(self, folder: Path) -> Any:
        try:
            executor = self._submitit.AutoExecutor(folder=folder, cluster=self._cluster)
            parameters = {"name": "mnemoscope", **self._parameters}
            if self._cluster == "slurm" and self._jobs is not None:
                parameters["slurm_array_parallelism"] = self._jobs
            executor.update_parameters(**parameters)
        except (RuntimeError, NameError, ValueError, TypeError) as error:
            raise MnemoscopeError(f"engine = 'slurm' cannot be used here: {first_line(error)}") from error
        return executor

    def wait(self, seconds: float) -> Iterator[tuple[str, Ending]]:
        """Yield the names of jobs that have ended, and how; wait up to `seconds` for the first."""
        deadline = time.monotonic() + seconds
        ended = [name for name, job in self._running.items() if job.done()]
        while not ended and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
            ended = [name for name, job in self._running.items() if job.done()]
        for name in ended:
            yield name, self._ending(self._running.pop(name))
        if not self._running:
            self._remote.close()

    def _ending(self, job: Any) -> Ending:
        errors = self._submitit.core.utils
        try:
            ending: Ending = job.result()
        except errors.FailedJobError as error:
            return could_not_begin("the job", error)
        except errors.UncompletedJobError:  # its process was killed, or its machine is gone
            return Ending("died", f"Slurm job {job.job_id} ended without a result")
        return ending

    def stop(self) -> None:
        """Ask all jobs to save their work and end; cancel those that have not after a minute, or have not begun."""
        self._remote.stop()
        deadline = time.monotonic() + STOP_SECONDS
        try:
            for job in self._running.values():
                if job.state == "PENDING":
                    job.cancel()
            while time.monotonic() < deadline and not all(job.done() for job in self._running.values()):
                time.sleep(POLL_SECONDS)
        finally:  # also after a second Ctrl-C
            for job in self._running.values():
                with contextlib.suppress(Exception):
                    job.cancel()
            self._running.clear()
            self._remote.close()


class _Resumable:
    """The function as submitit calls it, and what it submits again when Slurm preempts the job: the same."""

    def __call__(self, *arguments: Any) -> Ending:
        return remote_job(*arguments)

    def checkpoint(self, *arguments: Any) -> Any:
        return _import_submitit().helpers.DelayedSubmission(self, *arguments)


def _import_submitit() -> Any:
    try:
        import submitit
    except ImportError:
        raise MnemoscopeError("engine = 'slurm' needs submitit: pip install 'mnemoscope[slurm]'") from None
    return submitit
