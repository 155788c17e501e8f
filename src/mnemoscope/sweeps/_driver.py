"""The driver: hands jobs to an engine, tries again those that died, and records those that failed."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Protocol

from mnemoscope.errors import MnemoscopeError
from mnemoscope.files import append, make_folder, parse_json, read_bytes, read_json, remove, to_json
from mnemoscope.sweeps._job import SUMMARY, Ending, Job

MAX_RETRIES = 3  # of a job whose process was killed
FAILURES = "failures.jsonl"
LOGS = "logs"
POLL_SECONDS = 1.0
FAILED = 2  # exit code of a user error
DIVERGED = 3  # exit code of a run that diverged


class Engine(Protocol):
    """What runs jobs."""

    @property
    def slots(self) -> int:
        """How many jobs may run at a time."""

    def start(self, jobs: Sequence[tuple[Job, Path]], logs: Path) -> None:
        """Start jobs in their folders. What they print goes to a file of their name in `logs`."""

    def wait(self, seconds: float) -> Iterable[tuple[str, Ending]]:
        """Return the names of jobs that have ended, and how; wait up to `seconds` for the first."""

    def stop(self) -> None:
        """Have all running jobs save their work and end, and return when they have."""


@dataclass(frozen=True)
class SweepProgress:
    """Passed to the callback when a job has ended for good, or begins another attempt."""

    job: Job
    ending: Ending
    retry: int
    """The number of the attempt that follows; 0 if the job has ended for good."""
    done: int
    """Jobs that have ended for good, those of earlier calls included."""
    total: int
    running: int
    stage: str
    """What all these jobs are, if they are only part of the sweep: "rung 300"."""
    seconds_left: float | None
    """At the speed of this call so far; None before its first job has ended."""


SweepCallback = Callable[[SweepProgress], object]


def run_jobs(
    jobs: Iterable[Job],
    folder: Path,
    engine: Engine,
    *,
    total: int,
    is_done: Callable[[Job], bool] | None = None,
    callback: SweepCallback | None = None,
    stage: str = "",
) -> int:
    """Do all jobs that are not done yet, each in `folder / job.name`; return how many failed.

    A job that failed, now or in an earlier call, is not tried again unless `forget_failures` was called. One whose
    process was killed is, three times in a call. An interrupted call, by Ctrl-C or an error of the engine, first has
    the running jobs save their work.

    Args:
        jobs: taken one by one as there is room, so that any number of them fits into memory.
        folder: where the jobs' folders, failures.jsonl and logs/ go; the caller holds its lock.
        engine: where they run.
        total: how many jobs there are.
        is_done: True for a job that need not run; by default, one whose folder has a summary.json.
        callback: called with the `SweepProgress` when a job ended.
        stage: what the callback shows that these jobs are.
    """
    is_done = is_done or (lambda job: has_summary(folder / job.name))
    driver = _Driver(folder, engine, total, is_done, callback, stage)
    return driver.run(jobs)


def has_summary(folder: Path) -> bool:
    """True if the job in `folder` has ended."""
    return (folder / SUMMARY).is_file()


def read_failures(folder: Path) -> dict[str, Ending]:
    """Return how jobs failed, by name, the last time that they were tried, unless they have ended well since."""
    path = folder / FAILURES
    if not path.exists():
        return {}
    lines = read_bytes(path).split(b"\n")[:-1]  # a killed driver may have left the last one incomplete
    failures = {}
    for number, line in enumerate(lines, 1):
        record = parse_json(line, f"{path}, line {number}")
        message, code = (record.get("message"), record.get("exit_code")) if isinstance(record, dict) else (None, None)
        if not isinstance(message, str) or type(code) is not int:
            raise MnemoscopeError(f"{path}, line {number} is not a record of a failed job")
        failures[str(record.get("job"))] = Ending("failed", message, code)
    return {
        name: ending
        for name, ending in failures.items()
        if not has_summary(folder / name) or failure_in(folder / name) is not None
    }


def failure_in(folder: Path) -> Ending | None:
    """Return the failure in the summary of a job; None if it ended well."""
    summary = read_json(folder / SUMMARY)
    if not isinstance(summary, dict) or summary.get("outcome") not in ("failed", "diverged"):
        return None
    code = DIVERGED if summary["outcome"] == "diverged" else FAILED
    return Ending("failed", str(summary.get("message", "")), code)


def _has_ended(folder: Path) -> bool:
    """True if a job has ended, and if only because it diverged."""
    ending = failure_in(folder) if has_summary(folder) else Ending("failed")
    return ending is None or ending.exit_code == DIVERGED


def forget_failures(folder: Path, *, diverged: bool = True) -> None:
    """Have the next call of `run_jobs` try again what has failed, each job from its last checkpoint.

    With `diverged=False` runs that diverged are not among them: those would do so again.
    """
    for summary in folder.glob(f"*/{SUMMARY}"):
        ending = failure_in(summary.parent)
        if ending is not None and (diverged or ending.exit_code != DIVERGED):
            remove(summary)
    remove(folder / FAILURES)


class _Driver:
    """One call of `run_jobs`: which jobs run, wait for others, or have ended."""

    def __init__(
        self,
        folder: Path,
        engine: Engine,
        total: int,
        is_done: Callable[[Job], bool],
        callback: SweepCallback | None,
        stage: str,
    ) -> None:
        self.folder = folder
        self.engine = engine
        self.total = total
        self.is_done = is_done
        self.callback = callback
        self.stage = stage
        self.logs = make_folder(folder / LOGS)
        # A job that was killed too often has no exit code: it may have better luck.
        self.failed_before = {name for name, ending in read_failures(folder).items() if ending.exit_code}
        self.running: dict[str, Job] = {}
        self.again: deque[Job] = deque()
        self.waiting: dict[str, Job] = {}  # for jobs that they need
        self.deaths: Counter[str] = Counter()
        self.skipped = self.ended_now = self.failed = 0
        self.started_at = time.monotonic()

    def run(self, jobs: Iterable[Job]) -> int:
        """Keep every slot of the engine busy until all jobs are done."""
        queue = self._wanted(jobs)
        try:
            while True:
                room = max(0, self.engine.slots - len(self.running))  # a cluster may lose machines
                new = list(islice(chain(self._again(), self._ready(), queue), room))
                self.running |= {job.name: job for job in new}
                self.engine.start([(job, self.folder / job.name) for job in new], self.logs)
                if room and not self.running:
                    self._give_up_waiting()
                    return self.failed
                for name, ending in self.engine.wait(POLL_SECONDS):
                    self._note(self.running.pop(name), ending)
        except BaseException:
            self.engine.stop()
            raise

    def _wanted(self, jobs: Iterable[Job]) -> Iterator[Job]:
        for job in jobs:
            if job.name not in self.failed_before and not self.is_done(job):
                if self._is_held_up(job):
                    self.waiting[job.name] = job
                else:
                    yield job
                continue
            self.skipped += 1
            self.failed += job.name in self.failed_before or self._is_unrecorded_failure(job)

    def _is_unrecorded_failure(self, job: Job) -> bool:
        """True if a job has failed just before an earlier driver was killed; it is then recorded."""
        folder = self.folder / job.name
        ending = failure_in(folder) if has_summary(folder) else None
        if ending is not None:
            self._record(job, ending)
        return ending is not None

    def _is_held_up(self, job: Job) -> bool:
        """True if a job that it needs has yet to end, or failed. What diverged has ended: it can be looked at."""
        return any(not _has_ended(self.folder / name) for name in job.needs)

    def _ready(self) -> Iterator[Job]:
        """Waiting jobs whose turn has come."""
        for job in [job for job in self.waiting.values() if not self._is_held_up(job)]:
            del self.waiting[job.name]
            yield job

    def _give_up_waiting(self) -> None:
        """Record as failed the jobs that wait for one that will not end."""
        for job in self.waiting.values():
            missing = next(name for name in job.needs if not _has_ended(self.folder / name))
            self._note(job, Ending("failed", f"it needs {missing}, which did not end", 1))
        self.waiting.clear()

    def _again(self) -> Iterator[Job]:
        while self.again:
            yield self.again.popleft()

    def _note(self, job: Job, ending: Ending) -> None:
        """Take up how an attempt ended: done, once more, or failed for good."""
        if ending.no_space:
            raise MnemoscopeError(ending.message)
        retry = 0
        killed = ending.outcome in ("died", "stopped")  # not by this driver
        if killed and self.deaths[job.name] < MAX_RETRIES:
            self.deaths[job.name] += 1
            self.again.append(job)
            retry = self.deaths[job.name] + 1
        else:
            self.deaths.pop(job.name, None)
            self.ended_now += 1
            if ending.outcome != "ended":
                self.failed += 1
                self._record(job, ending)
        if self.callback is not None:
            self.callback(self._progress(job, ending, retry))

    def _record(self, job: Job, ending: Ending) -> None:
        record = {"job": job.name, "exit_code": ending.exit_code, "message": ending.message}
        append(self.folder / FAILURES, to_json(record))

    def _progress(self, job: Job, ending: Ending, retry: int) -> SweepProgress:
        done = self.skipped + self.ended_now
        left = None
        if self.ended_now:
            left = (time.monotonic() - self.started_at) / self.ended_now * (self.total - done)
        return SweepProgress(job, ending, retry, done, self.total, len(self.running), self.stage, left)
