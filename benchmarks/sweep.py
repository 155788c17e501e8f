"""What a sweep costs beyond its runs: CPU seconds a run, the time of many short runs, and the driver by itself.

python benchmarks/sweep.py            # 200 runs of about a second, two at a time; on an idle machine
python benchmarks/sweep.py --runs 20 --seconds 0.5
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
import tracemalloc
from collections.abc import Iterator, Sequence
from multiprocessing import forkserver
from pathlib import Path

from mnemoscope.sweeps import Ending, Job, run_jobs, sweep
from mnemoscope.tasks import Copy
from mnemoscope.training import FitConfig, NetworkConfig, RunConfig, train


def cpu_seconds() -> float:
    """CPU time of this process, of the server that runs are forked from, and of the runs that have ended (Linux)."""
    fields = Path(f"/proc/{forkserver._forkserver._forkserver_pid}/stat").read_text().rpartition(")")[2].split()
    used = sum(int(ticks) for ticks in fields[11:15])  # utime, stime, and both of its children
    return time.process_time() + used / os.sysconf("SC_CLK_TCK")


def config(updates: int, seed: int = 0) -> RunConfig:
    fit = FitConfig(updates=updates, batch_size=16, evaluate_every=1000, evaluate_batches=1, threads=1, seed=seed)
    return RunConfig(Copy(T=40), NetworkConfig("RelRNN", 64), fit)


def updates_of(seconds: float, folder: Path) -> tuple[int, float]:
    """How many updates take a run of about `seconds`, and the CPU time of one such run in this process."""
    train(config(5), folder / "warm")
    begun = time.perf_counter()
    train(config(50), folder / "trial")
    updates = max(1, round(50 * seconds / (time.perf_counter() - begun)))
    before = time.process_time()
    for seed in range(3):
        train(config(updates, seed), folder / f"alone-{seed}")
    return updates, (time.process_time() - before) / 3


def many_runs(runs: int, seconds: float, jobs: int) -> None:
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        updates, alone = updates_of(seconds, folder)

        # The import happens once, in the server that runs are forked from: a first sweep of one run pays for it.
        sweep(config(1), {"fit.seed": [0]}, folder / "first", jobs=1)
        begun, before = time.perf_counter(), cpu_seconds()
        sweep(config(updates), {"fit.seed": range(runs)}, folder / "sweep", jobs=jobs)
        wall, cpu = time.perf_counter() - begun, cpu_seconds() - before
    print(f"{runs} runs of {updates} updates, {jobs} at a time: {wall:.1f} s; load before {load:.1f}")
    print(f"CPU {cpu / runs:.3f} s a run, of which {alone:.3f} s are the run: {cpu / runs - alone:.3f} s beyond it")


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


def drive(count: int, padding: int = 0) -> tuple[float, int]:
    """CPU seconds and peak bytes of a driver over `count` jobs that do nothing, each with `padding` bytes to carry."""
    jobs = (Job("nothing:nothing", {"number": i, "padding": "x" * padding}) for i in range(count))
    with tempfile.TemporaryDirectory() as name:
        tracemalloc.start()
        begun = time.process_time()
        run_jobs(jobs, Path(name), Instant(), total=count)
        seconds = time.process_time() - begun
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return seconds, peak


def show_driver(count: int) -> None:
    seconds, peak = drive(count)
    print(f"driver, {count:>6} jobs that do nothing: {1e6 * seconds / count:.0f} us a job, {peak / 1e3:.0f} kB at most")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=1.0, help="length of a run")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--driver", type=int, nargs="+", default=[1000, 10_000, 100_000])
    options = parser.parse_args()
    for count in options.driver:
        show_driver(count)
    if options.runs:
        many_runs(options.runs, options.seconds, options.jobs)


if __name__ == "__main__":
    main()
