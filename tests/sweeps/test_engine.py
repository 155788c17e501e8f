"""The driver and the local engine: retries, failures, stopping, and sweeps of any size."""

from __future__ import annotations

import itertools
import json
import runpy
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest

from mnemoscope.errors import MnemoscopeError
from mnemoscope.sweeps import Ending, Job, LocalEngine, SweepProgress, forget_failures, read_failures, run_job, run_jobs


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


def test_a_job_has_the_environment_of_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a notebook that sets MNEMOSCOPE_DATA between two sweeps: their processes come from the same server."""
    monkeypatch.delenv("SET_LATER", raising=False)
    monkeypatch.setenv("UNSET_LATER", "set")
    run(tmp_path / "before", job("finish"))
    monkeypatch.setenv("SET_LATER", "set")
    monkeypatch.delenv("UNSET_LATER")
    seen = run(tmp_path / "after", *(job("tell_variable", variable=name) for name in ("SET_LATER", "UNSET_LATER")))
    assert {p.job.config["variable"]: p.ending.message for p in seen} == {"SET_LATER": "set", "UNSET_LATER": "not set"}


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

    # Neither does a new start, unless it is told to.
    assert run(tmp_path, failing, good) == []
    assert attempts(tmp_path, failing) == 1
    forget_failures(tmp_path)
    assert read_failures(tmp_path) == {}
    assert len(run(tmp_path, failing, good)) == 1
    assert attempts(tmp_path, failing) == 2
    assert read_failures(tmp_path) == {failing.name: Ending("failed", message, code)}


def test_a_long_message_is_cut(tmp_path: Path) -> None:
    failing = job("fail_at_length")
    run(tmp_path, failing)
    message = read_failures(tmp_path)[failing.name].message
    assert message.startswith("RuntimeError: xxx")
    assert len(message) == 2_000


class ShrinkingEngine:
    """Room for two jobs, then for none until they have ended; then for one."""

    def __init__(self) -> None:
        self.running: list[str] = []
        self.slots = 2
        self.started: list[str] = []

    def start(self, jobs: Sequence[tuple[Job, Path]], logs: Path) -> None:
        assert len(self.running) + len(jobs) <= self.slots or not jobs
        self.running += [job.name for job, _ in jobs]
        self.started += [job.name for job, _ in jobs]

    def wait(self, seconds: float) -> Iterator[tuple[str, Ending]]:
        self.slots = 0 if self.running and self.slots else 1
        if self.slots and self.running:
            yield self.running.pop(), Ending("ended")

    def stop(self) -> None:
        raise AssertionError("it need not be stopped")


def test_an_engine_may_lose_room(tmp_path: Path) -> None:
    engine = ShrinkingEngine()
    jobs = [job("finish", number=i) for i in range(5)]
    assert run_jobs(jobs, tmp_path, engine, total=5) == 0
    assert sorted(engine.started) == sorted(job.name for job in jobs)


@pytest.mark.parametrize(("outcome", "code"), [("failed", 2), ("diverged", 3)])
def test_a_failure_that_a_killed_driver_did_not_record_counts(tmp_path: Path, outcome: str, code: int) -> None:
    failed, good = job("finish", number=0), job("finish", number=1)
    run(tmp_path, failed, good)
    summary = tmp_path / failed.name / "summary.json"
    summary.write_text(json.dumps({"outcome": outcome, "message": "why"}))
    assert run_jobs([failed, good], tmp_path, LocalEngine(1), total=2) == 1
    assert read_failures(tmp_path) == {failed.name: Ending("failed", "why", code)}
    forget_failures(tmp_path)
    assert not summary.exists()
    assert (tmp_path / good.name / "summary.json").exists()


def test_a_job_that_was_killed_too_often_is_tried_again_by_the_next_start(tmp_path: Path) -> None:
    unlucky = job("die_first", deaths=5)
    run(tmp_path, unlucky)
    assert list(read_failures(tmp_path)) == [unlucky.name]
    assert run_jobs([unlucky], tmp_path, LocalEngine(1), total=1) == 0
    assert attempts(tmp_path, unlucky) == 6
    assert read_failures(tmp_path) == {}


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


class Interrupted:
    """A process during whose start Ctrl-C is pressed."""

    def __init__(self, **description: Any) -> None:
        pass

    def start(self) -> None:
        signal.raise_signal(signal.SIGINT)


def test_a_process_that_was_just_started_is_known_at_an_interrupt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = LocalEngine(1)
    monkeypatch.setattr(engine._processes, "Process", Interrupted)
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            engine.start([(job("finish"), tmp_path)], tmp_path)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, handler)
    assert [type(process) for process, _ in engine._running.values()] == [Interrupted]


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


def test_memory_of_the_driver_is_flat_and_its_work_linear() -> None:
    drive = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "sweep.py"))["drive"]

    def work(count: int) -> tuple[int, int]:
        """How many functions are called, and the peak of memory in bytes."""
        calls = itertools.count()
        sys.setprofile(lambda *_: next(calls))
        try:
            _, peak = drive(count, padding=1000)
        finally:
            sys.setprofile(None)
        return next(calls), peak

    work(10)
    few_calls, few_bytes = work(100)
    # Twice, and the lesser: Python's table of strings, which all tests share, may just then grow by some MB.
    many_calls, many_bytes = min((work(800) for _ in range(2)), key=itemgetter(1))
    assert many_bytes < few_bytes + 300_000  # of 0.7 MB that pass through; other threads of the tests allocate too
    assert many_calls < 9 * few_calls


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


@pytest.mark.parametrize("jobs", [0, 2.5])
def test_jobs_are_a_whole_number_of_at_least_one(jobs: int) -> None:
    with pytest.raises(MnemoscopeError, match=f"jobs must be a whole number of at least 1; got {jobs}"):
        LocalEngine(jobs)


def test_a_job_waits_for_those_that_it_needs(tmp_path: Path) -> None:
    first, last = job("finish", number=1), job("finish", number=2)
    late = replace(job("needs_folder", other=last.name), needs=(first.name, last.name))
    jobs = [late, first, last]
    assert run_jobs(jobs, tmp_path, LocalEngine(2), total=3) == 0
    assert (tmp_path / late.name / "summary.json").exists()


def test_a_job_that_needs_a_failed_one_fails_too(tmp_path: Path) -> None:
    broken = job("fail", code=2)
    late = replace(job("finish", number=1), needs=(broken.name,))
    assert run_jobs([broken, late], tmp_path, LocalEngine(1), total=2) == 2
    assert read_failures(tmp_path)[late.name].message == f"it needs {broken.name}, which did not end"
