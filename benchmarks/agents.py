"""Train the studies' agents for some minutes on all cores: python benchmarks/agents.py FOLDER --minutes 25 [--jobs 16].

The jobs of kerg/tmaze, kerg/table4-memory and kerg/table4 at full size, those first that decide most. When the time is
up the runs save their work; started again, it goes on. FOLDER is one of studies: its runs are in FOLDER/runs, whatever
has ended is in each study's record, and `mnemoscope reproduce kerg/table4 --full --seeds 5 --out FOLDER` goes on
with the rest. Runs that were made elsewhere are adopted by copying their folders into FOLDER/runs; `--minutes 0` then
only writes the records. Prints what has ended, and by name what has only begun.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from mnemoscope.files import locked, make_folder
from mnemoscope.studies import Scale, Study, choose, reproduce
from mnemoscope.sweeps import Ending, Job, LocalEngine, SweepProgress, run_jobs

FULL: Scale = "full"
STUDIES = ("kerg/tmaze", "kerg/table4-memory", "kerg/table4")
TABLE4_AGENTS = {"RelLSTM": 1, "memoryless": 2, "random": 2, "MemLSTM": 3, "LSTM": 4, "GRU": 4}
LONGEST_FIRST = ["GoToObject-6x6-N2", "RedBlueDoors-6x6", "MemoryS7", "GoToDoor-5x5", "Fetch-5x5-N2", "DoorKey-5x5"]
Point = tuple[str, Any, int]  # a study, a key of its jobs, a seed


def find(name: str) -> Study:
    """Return the study of this id."""
    return next(study for study in choose([name]) if study.id == name)


def rank(point: Point) -> tuple[int, bool, int, int, int, bool]:
    """Return what a job is sorted by: its group, tests before runs, the longest worlds, seed, study, RelLSTM first.

    A test that comes first waits for its run and begins as soon as that has ended. Of runs of one agent the longest
    begin first: begun last, they would keep one core busy while the others have nothing left to do.
    """
    study, key, seed = point
    world = 0
    if study == "kerg/tmaze":
        L, model = key[:2]
        decisive = model in ("RelLSTM", "memoryless") or (L >= 50 and model == "LSTM")
        group = 0 if decisive else 3
    elif study == "kerg/table4-memory":
        if key[0] == "run":
            _, env, model = key
            group = 1 if env == "MemoryS11" and model in ("RelLSTM", "memoryless") else 2
            group = group if env in ("MemoryS11", "MemoryS13") else 5
            group = group if model in ("RelLSTM", "memoryless") else 4
        else:
            group = 1
    else:
        group = TABLE4_AGENTS[key[-1]]
        world = LONGEST_FIRST.index(key[1]) if key[0] == "run" else 0
    return group, key[0] == "run", world, seed, STUDIES.index(study), "RelLSTM" not in key


def jobs_in_order(studies: Sequence[str], seeds: int) -> list[Job]:
    """Return every job once, in the order of their ranks."""
    found: dict[Point, Job] = {}
    for name in studies:
        for seed in range(seeds):
            found |= {(name, key, seed): job for key, job in find(name).jobs(FULL, seed).items()}
    return list({found[point].name: found[point] for point in sorted(found, key=rank)}.values())


def train(jobs: Sequence[Job], folder: Path, minutes: float, at_a_time: int | None) -> None:
    """Do jobs until the time is up; those under way then save their work."""

    def time_is_up(*_: object) -> None:
        raise KeyboardInterrupt

    def show(progress: SweepProgress) -> None:
        print(f"{progress.done}/{progress.total} {progress.job.name}: {progress.ending.message}", flush=True)

    engine = LocalEngine(at_a_time, preload=("mnemoscope.studies",))
    before = signal.signal(signal.SIGALRM, time_is_up)
    signal.setitimer(signal.ITIMER_REAL, 60 * minutes)
    try:
        with locked(folder):
            run_jobs(jobs, make_folder(folder / "runs"), engine, total=len(jobs), callback=show)
    except KeyboardInterrupt:
        print("stopped: the runs have saved their work", flush=True)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class NothingStarts:
    """An engine that ends a call before its first job: what has ended is then written, and nothing is run."""

    slots = 1

    def start(self, jobs: Sequence[tuple[Job, Path]], logs: Path) -> None:
        if jobs:
            raise KeyboardInterrupt

    def wait(self, seconds: float) -> Iterable[tuple[str, Ending]]:
        return ()

    def stop(self) -> None:
        pass


def write_records(studies: Sequence[str], folder: Path, seeds: int) -> None:
    """Write the records of studies from what has ended."""
    with contextlib.suppress(KeyboardInterrupt):
        reproduce(studies, FULL, seeds=seeds, out=folder, engine=NothingStarts())


def summary(studies: Sequence[str], folder: Path, seeds: int) -> Iterator[str]:
    """What has ended of each study, and what has only begun, by name."""
    for name in studies:
        jobs = {job.name: job for seed in range(seeds) for job in find(name).jobs(FULL, seed).values()}
        ended = [job for job in jobs if (folder / "runs" / job / "summary.json").is_file()]
        begun = [job for job in jobs if job not in ended and (folder / "runs" / job / "config.json").is_file()]
        yield f"{name}: {len(ended)} of {len(jobs)} jobs have ended, {len(begun)} have begun"
        yield from (f"  begun: {job}" for job in begun)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where studies are, or shall be")
    parser.add_argument("--minutes", type=float, required=True, help="how long; 0 only writes what has ended")
    parser.add_argument("--jobs", type=int, help="jobs at a time; by default one for each CPU")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--studies", nargs="+", default=list(STUDIES), choices=STUDIES)
    options = parser.parse_args()
    folder = make_folder(options.folder.absolute())
    write_records(options.studies, folder, options.seeds)  # a folder of something else is refused here
    if options.minutes > 0:
        train(jobs_in_order(options.studies, options.seeds), folder, options.minutes, options.jobs)
        write_records(options.studies, folder, options.seeds)
    print("\n".join(summary(options.studies, folder, options.seeds)))


if __name__ == "__main__":
    main()
