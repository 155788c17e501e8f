"""Jobs as tasks of Ray, on this machine or on a cluster whose machines share a folder."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mnemoscope.errors import MnemoscopeError, check_count, first_line
from mnemoscope.sweeps._job import Ending, Job
from mnemoscope.sweeps._remote import STOP_SECONDS, RemoteJobs, could_not_begin, remote_job


class RayEngine:
    """Tasks of Ray, one a job.

    Args:
        address: of a running cluster, as "auto" or "10.0.0.1:6379"; None starts Ray on this machine.
        jobs: how many at a time; by default as many as the cluster has CPUs and GPUs for.
        threads: CPUs of a job.
        gpus: GPUs of a job; a fraction shares one.
    """

    def __init__(
        self, address: str | None = None, *, jobs: int | None = None, threads: int = 1, gpus: float = 0.0
    ) -> None:
        if jobs is not None:
            check_count("jobs", jobs)
        self._ray = _import_ray()
        self._started_ray = not self._ray.is_initialized()
        if self._started_ray:
            self._start(address, jobs, threads)
        self._jobs = jobs
        self._cpus = max(threads, 1)
        self._gpus = gpus
        # Retries are the driver's, the same as on every engine.
        options = {"num_cpus": self._cpus, "num_gpus": gpus, "max_retries": 0}
        self._task = self._ray.remote(**options)(remote_job)
        self._running: dict[Any, str] = {}
        self._remote = RemoteJobs()

    def _start(self, address: str | None, jobs: int | None, threads: int) -> None:
        settings: dict[str, Any] = {"log_to_driver": False, "include_dashboard": False, "logging_level": "ERROR"}
        if address is None:
            cpus = None if jobs is None else jobs * max(threads, 1)
            settings |= {"address": "local", "num_cpus": cpus}
        else:
            settings = {"log_to_driver": False, "logging_level": "ERROR", "address": address}
        try:
            self._ray.init(**settings)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise MnemoscopeError(f"cannot reach Ray at address = {address!r}: {first_line(error)}") from error

    @property
    def slots(self) -> int:
        """How many jobs the cluster has room for now; it may grow."""
        if self._jobs is not None:
            return self._jobs
        resources = self._ray.cluster_resources()
        room = resources.get("CPU", 1.0) // self._cpus
        if self._gpus:
            room = min(room, resources.get("GPU", 0.0) // self._gpus)
        return max(1, int(room))

    def start(self, jobs: Sequence[tuple[Job, Path]], logs: Path) -> None:
        """Start jobs in their folders. What they print goes to a file of their name in `logs`."""
        if not jobs:
            return
        for job, folder in jobs:
            task = self._task.remote(*self._remote.arguments(job, folder, logs))
            self._running[task] = job.name

    def wait(self, seconds: float) -> Iterator[tuple[str, Ending]]:
        """Yield the names of jobs that have ended, and how; wait up to `seconds` for the first."""
        ready, _ = self._ray.wait(list(self._running), num_returns=1, timeout=seconds)
        if ready:  # and whatever else has ended meanwhile
            ready, _ = self._ray.wait(list(self._running), num_returns=len(self._running), timeout=0)
        for task in ready:
            yield self._running.pop(task), self._ending(task)
        if not self._running:
            self._remote.close()

    def _ending(self, task: Any) -> Ending:
        errors = self._ray.exceptions
        try:
            ending: Ending = self._ray.get(task)
        except errors.RayTaskError as error:
            return could_not_begin("the worker", error)
        except errors.RayError as error:  # its process was killed, or its machine is gone
            return Ending("died", type(error).__name__)
        return ending

    def stop(self) -> None:
        """Ask all jobs to save their work and end; kill those that have not after a minute."""
        self._remote.stop()
        deadline = time.monotonic() + STOP_SECONDS
        try:
            left = list(self._running)
            while left and time.monotonic() < deadline:
                _, left = self._ray.wait(left, num_returns=len(left), timeout=0.5)
        finally:  # also after a second Ctrl-C
            for task in self._running:
                self._ray.cancel(task, force=True)
            self._running.clear()
            self._remote.close()

    def close(self) -> None:
        """Leave the cluster; end Ray on this machine if it was started here."""
        if self._started_ray:
            self._ray.shutdown()


def _import_ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is reported to anybody
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else it warns that this will change
    try:
        import ray
    except ImportError:
        raise MnemoscopeError("engine = 'ray' needs Ray: pip install 'mnemoscope[ray]'") from None
    return ray
