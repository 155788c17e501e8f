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
    seeds_of: dict[tuple[str, str], list[int]] = {}
    for one in result.seeds:
        for job in _missing(study.jobs(scale, one.seed), one):
            seeds_of.setdefault(job, []).append(one.seed)
    by_seeds: dict[tuple[int, ...], list[tuple[str, str]]] = {}
    for job, seeds in seeds_of.items():
        by_seeds.setdefault(tuple(seeds), []).append(job)
    return [NotRun(seeds, _in_words(jobs)) for seeds, jobs in by_seeds.items()]


def _missing(jobs: Mapping[Any, Job], one: SeedResult) -> list[tuple[str, str]]:
    """A seed's missing jobs: the last part of the key of each, behind those before it."""
    by_name = {job.name: (key, job) for key, job in jobs.items()}
    if not {*one.jobs, *one.missing} <= set(by_name):
        return [("", CHANGED)]
    found = []
    for name in one.missing:
        key, job = by_name[name]
        if not set(job.needs).intersection(one.missing):
            *first, last = key if isinstance(key, tuple) else (key,)
            found.append((" ".join(map(str, first)), str(last)))
    return found


def _in_words(jobs: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """Jobs as "copy: LSTM, GRU": those that begin alike together, and beginnings with the same ends, too."""
    ends: dict[str, list[str]] = {}
    for first, last in jobs:
        ends.setdefault(first, []).append(last)
    beginnings: dict[tuple[str, ...], list[str]] = {}
    for first, lasts in ends.items():
        beginnings.setdefault(tuple(lasts), []).append(first)
    words = ((_listed(firsts), ", ".join(lasts)) for lasts, firsts in beginnings.items())
    return tuple(f"{firsts}: {lasts}" if firsts else lasts for firsts, lasts in words)


def _listed(beginnings: Sequence[str]) -> str:
    """A list in which a first word that all have stands once: "copy LSTM, GRU"."""
    word = beginnings[0].partition(" ")[0] + " "
    if all(beginning.startswith(word) for beginning in beginnings):
        return word + ", ".join(beginning.removeprefix(word) for beginning in beginnings)
    return ", ".join(beginnings)


def command(study: str, scale: Scale, missing: bool = False) -> str:
    """Return the command that runs a study, or what is missing of the seeds that are recorded."""
    size = " --full" if scale == "full" else ""
    return f"mnemoscope reproduce {study}{size}{' --missing' if missing else ''}"


def count_not_run(result: ScaleResult) -> str:
    """Return how many jobs have not ended: "6 jobs not run"; empty if all have."""
    missing = sum(len(one.missing) for one in result.seeds)
    return f"{counted(missing, 'job')} not run" if missing else ""
