"""Which jobs of a study have not ended, in words, and the command that runs them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mnemoscope.studies._record import ScaleResult, SeedResult
from mnemoscope.studies._study import Scale, Study
from mnemoscope.sweeps import Job
from mnemoscope.wording import counted

CHANGED = "all of it: what is recorded was run by other settings than the study has now"


@dataclass(frozen=True)
class NotRun:
    """Jobs that have not ended, the same for each of some seeds."""

    seeds: tuple[int, ...]
    jobs: tuple[str, ...]
    """In the study's own words for them, without those that only look at what has not ended either."""

    def __str__(self) -> str:
        numbers = ", ".join(map(str, self.seeds))
        return f"seed{'s' if len(self.seeds) > 1 else ''} {numbers}: {'; '.join(self.jobs)}"


def not_run(study: Study, scale: Scale, result: ScaleResult) -> list[NotRun]:
    """Return the jobs of a result that have not ended, or only with other settings; the same of several seeds once."""
    by_jobs: dict[tuple[str, ...], list[int]] = {}
    for one in result.seeds:
        missing = _missing(study.jobs(scale, one.seed), one)
        if missing:
            by_jobs.setdefault(missing, []).append(one.seed)
    return [NotRun(tuple(seeds), jobs) for jobs, seeds in by_jobs.items()]


def _missing(jobs: Mapping[Any, Job], one: SeedResult) -> tuple[str, ...]:
    """A seed's missing jobs by their keys."""
    by_name = {job.name: (key, job) for key, job in jobs.items()}
    if not {*one.jobs, *one.missing} <= set(by_name):
        return (CHANGED,)
    found: dict[str, list[str]] = {}  # the last part of a key, by those before it
    for name in one.missing:
        key, job = by_name[name]
        if not set(job.needs).intersection(one.missing):
            *first, last = key if isinstance(key, tuple) else (key,)
            found.setdefault(" ".join(map(str, first)), []).append(str(last))
    return tuple(f"{first}: {', '.join(last)}" if first else ", ".join(last) for first, last in found.items())


def command(study: str, scale: Scale, seeds: Sequence[int] = ()) -> str:
    """Return the command that runs a study, or what has not ended of some of its seeds."""
    size = " --full" if scale == "full" else ""
    if not seeds or list(seeds) == [0]:
        return f"mnemoscope reproduce {study}{size}"
    if len(seeds) == 1:
        return f"mnemoscope reproduce {study}{size} --seeds {seeds[0]}:{seeds[0] + 1}"
    return f"mnemoscope reproduce {study}{size} --seeds {','.join(map(str, sorted(seeds)))}"


def count_not_run(result: ScaleResult) -> str:
    """Return how many jobs have not ended: "6 jobs not run"; empty if all have."""
    missing = sum(len(one.missing) for one in result.seeds)
    return f"{counted(missing, 'job')} not run" if missing else ""
