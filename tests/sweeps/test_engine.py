"""The driver and the local engine: retries, failures, stopping, and sweeps of any size."""

from __future__ import annotations

import json
import signal
import threading
import time
import tracemalloc
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from mnemoscope.errors import MnemoscopeError
from mnemoscope.sweeps import Ending, Job, LocalEngine, SweepProgress, read_failures, run_job, run_jobs


def job(name: str, **config: Any) -> Job:
    return Job(f"jobs:{name}", config, name)


def run(folder: Path, *jobs: Job, slots: int = 2) -> list[SweepProgress]:
    seen: list[SweepProgress] = []
    folder.mkdir(exist_ok=True)
    run_jobs(jobs, folder, LocalEngine(slots), total=len(jobs), callback=seen.append)
    return seen


def attempts(folder: Path, job: Job) -> int:
    return int((folder / job.name / "attempts").read_text())


def test_jobs_run_once_and_are_skipped_afterwards(tmp_path: Path) -> None:
    jobs = [job("finish", number=i) for i in range(5)]
    seen = run(tmp_path, *jobs)
    assert sorted(progress.ending.message for progress in seen) == [f"finished {i}" for i in range(5)]
    assert [progress.done for progress in seen] == [1, 2, 3, 4, 5]
    assert seen[-1].seconds_left == 0
    assert seen[0].seconds_left > 0
    assert run(tmp_path, *jobs, job("finish", number=5))[0].done == 6
    assert list((tmp_path / "logs").iterdir()) == []


def test_a_job_that_dies_by_a_signal_is_resumed_three_times(tmp_path: Path) -> None:
    jobs = [job("die_first", deaths=n) for n in (1, 3, 4)]
    segfault = job("die_first", deaths=1, signal=int(signal.SIGSEGV))
    seen = run(tmp_path, *jobs, segfault)
    assert [attempts(tmp_path, j) for j in (*jobs, segfault)] == [2, 4, 4, 2]
    last = {progress.job.name: progress.ending for progress in seen if not progress.retry}
    assert [last[j.name].outcome for j in (*jobs, segfault)] == ["ended", "ended", "died", "ended"]
    assert read_failures(tmp_path)[jobs[2].name].message == "killed by SIGKILL"
    assert max(progress.retry for progress in seen) == 4


@pytest.mark.parametrize("code", [1, 2, 3])
def test_an_error_is_recorded_and_not_tried_again(tmp_path: Path, code: int) -> None:
    failing, good = job("fail", code=code), job("finish")
    seen = run(tmp_path, failing, good)
    assert attempts(tmp_path, failing) == 1
    assert {progress.ending.outcome for progress in seen} == {"failed", "ended"}
    message = "KeyError: 'no such thing'" if code == 1 else "what is wrong"
    assert read_failures(tmp_path) == {failing.name: Ending("failed", message, code)}
    log = (tmp_path / "logs" / f"{failing.name}.txt").read_text()
    assert log.startswith("before the error\n")
    assert ("Traceback" in log) == (code == 1)

    # A new start tries again what somebody may have repaired; a run that diverged would diverge again.
    run(tmp_path, failing, good)
    assert attempts(tmp_path, failing) == (1 if code == 3 else 2)


def test_an_incomplete_last_line_of_the_failures_is_skipped(tmp_path: Path) -> None:
    record = json.dumps({"job": "a", "exit_code": 3, "message": "m"})
    (tmp_path / "failures.jsonl").write_text(f"{record}\n{record[:9]}")
    assert list(read_failures(tmp_path)) == ["a"]
    (tmp_path / "failures.jsonl").write_text("[]\n")
    with pytest.raises(MnemoscopeError, match="line 1 is not a record of a failed job"):
        read_failures(tmp_path)


def test_an_interrupt_has_every_job_save_its_work(tmp_path: Path) -> None:
    jobs = [job("wait_for_stop", number=i) for i in range(3)]

    def interrupt() -> None:
        while not all((tmp_path / j.name / "begun").exists() for j in jobs[:2]):
            time.sleep(0.01)
        signal.raise_signal(signal.SIGINT)

    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=interrupt).start()
    try:
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path, *jobs)
    finally:
        signal.signal(signal.SIGINT, handler)
    assert [(tmp_path / j.name / "saved").exists() for j in jobs] == [True, True, False]
    assert not (tmp_path / "failures.jsonl").exists()


class FullDisk:
    """An engine on a machine without space: its first job says so, and the others are to be stopped."""

    slots = 2
    stopped = False

    def start(self, jobs: Sequence[tuple[Job, Path]], logs: Path) -> None:
        self.names = [job.name for job, _ in jobs]

    def wait(self, seconds: float) -> Iterator[tuple[str, Ending]]:
        yield self.names[0], Ending("failed", "cannot write x: No space left on device", 2, no_space=True)

    def stop(self) -> None:
        self.stopped = True


def test_a_full_disk_stops_the_sweep_and_records_no_failure(tmp_path: Path) -> None:
    engine = FullDisk()
    with pytest.raises(MnemoscopeError, match="No space left"):
        run_jobs([job("finish", number=i) for i in range(9)], tmp_path, engine, total=9)
    assert engine.stopped
    assert read_failures(tmp_path) == {}


class Instant:
    """An engine whose jobs end at once, without a process."""

    slots = 8

    def __init__(self) -> None:
        self.ended: list[str] = []

    def start(self, jobs: Sequence[tuple[Job, Path]], logs: Path) -> None:
        self.ended += [job.name for job, _ in jobs]

    def wait(self, seconds: float) -> Iterator[tuple[str, Ending]]:
        ended, self.ended = self.ended, []
        for name in ended:
            yield name, Ending("ended")

    def stop(self) -> None: ...


def drive(folder: Path, count: int) -> tuple[float, int]:
    """Seconds and peak bytes of a driver over `count` jobs that do nothing."""
    jobs = (job("finish", number=i, padding="x" * 1000) for i in range(count))
    folder.mkdir()
    tracemalloc.start()
    begun = time.process_time()
    assert run_jobs(jobs, folder, Instant(), total=count) == 0
    seconds = time.process_time() - begun
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return seconds, peak


def test_memory_of_the_driver_is_flat_and_its_time_linear(tmp_path: Path) -> None:
    drive(tmp_path / "warm", 100)
    short, few = drive(tmp_path / "few", 500)
    attempts = [drive(tmp_path / f"many-{i}", 5000) for i in range(2)]  # other threads of the tests allocate too
    assert min(peak for _, peak in attempts) < few + 50_000
    assert min(seconds for seconds, _ in attempts) < 20 * short + 0.5


def test_a_job_reports_what_happened_in_any_process(tmp_path: Path) -> None:
    assert run_job(job("finish", number=1), tmp_path / "a", lambda: False).message == "finished 1"
    assert run_job(job("wait_for_stop"), tmp_path / "b", lambda: True).outcome == "stopped"
    full = run_job(Job("test_engine:full_disk", {}), tmp_path / "c", lambda: False)
    assert (full.outcome, full.no_space) == ("failed", True)


def full_disk(config: dict[str, Any], folder: Path, should_stop: Any) -> str:
    try:
        raise OSError(28, "No space left on device")
    except OSError as error:
        raise MnemoscopeError("cannot write") from error


def test_jobs_must_be_at_least_one() -> None:
    with pytest.raises(MnemoscopeError, match="jobs = 0 is not allowed"):
        LocalEngine(0)
