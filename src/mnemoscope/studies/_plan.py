"""What a call of reproduce is to do: jobs by study and seed, and about how long those take that have not ended."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from mnemoscope.studies._cost import machine_factor, words_for
from mnemoscope.studies._jobs import Result, check_is_of
from mnemoscope.studies._record import StudyRecord
from mnemoscope.studies._study import Scale, Study
from mnemoscope.sweeps import Job
from mnemoscope.tasks import missing_data
from mnemoscope.wording import counted

RUNS = "runs"
EXTRAS = {"flint": "theory", "opt_einsum": "theory", "gymnasium": "rl", "minigrid": "rl"}
"""The extra of pip by which a module comes that some studies need."""


@dataclass
class Plan:
    """What is to be done: jobs by study and seed, which have ended already, and about how long the others take."""

    scale: Scale
    runs: Path
    jobs: dict[str, dict[int, dict[Any, Job]]] = field(default_factory=dict)
    """By study, seed and key."""
    studies: dict[str, Study] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    """Why a study is not run, by id."""
    done: set[str] = field(default_factory=set)
    recorded: dict[str, frozenset[str]] = field(default_factory=dict)
    """By study, the jobs that are not to be run because its record has what they found."""

    @property
    def all_jobs(self) -> dict[str, Job]:
        """Every job that is to be done, by name, those of the cheapest study first; within a study in its own order."""
        cheapest = sorted(self.jobs, key=self.seconds)
        return {name: job for study in cheapest for name, job in self.jobs_of(study).items()}

    def jobs_of(self, study: str) -> dict[str, Job]:
        """Return the jobs of a study that are to be done, by name: those that are not recorded, and what they need."""
        jobs = {job.name: job for by_key in self.jobs[study].values() for job in by_key.values()}
        wanted: set[str] = set()
        for name in reversed(jobs):  # a job comes behind those that it needs
            if name not in self.recorded.get(study, ()) or name in wanted:
                wanted |= {name, *(() if name in self.done else jobs[name].needs)}
        return {name: job for name, job in jobs.items() if name in wanted}

    def seconds(self, study: str) -> float:
        """Return about how long the jobs of a study take that have not ended, one after the other, on this machine."""
        return self._seconds(self.jobs_of(study))

    @property
    def total_seconds(self) -> float:
        """About how long all jobs take that have not ended, one after the other, on this machine."""
        return self._seconds(self.all_jobs)

    def _seconds(self, jobs: Mapping[str, Job]) -> float:
        """About how long those of some jobs take that have not ended."""
        factor = 1.0 if torch.cuda.is_available() else machine_factor()
        return factor * sum(job.seconds for name, job in jobs.items() if name not in self.done)

    def words(self, slots: int) -> str:
        """Return what is to be done, in a line."""
        jobs = self.all_jobs
        left = [name for name in jobs if name not in self.done]
        done = f", {len(jobs) - len(left)} of them done" if len(left) < len(jobs) else ""
        studies = f"{len(self.jobs)} stud{'y' if len(self.jobs) == 1 else 'ies'}, {counted(len(jobs), 'job')}"
        at_a_time = f", {slots} at a time" if slots > 1 else ""
        return f"{studies}{done}: about {words_for(self.total_seconds / slots)}{at_a_time}"


def make_plan(
    studies: Sequence[Study],
    scale: Scale,
    seeds: int | Sequence[int] | None,
    out: Path,
    records: Mapping[str, StudyRecord | None] | None = None,
) -> Plan:
    """Return the jobs of the studies, and which of them have ended; a folder of something else is refused.

    With `records` only what these have no result of is to be done; then, without `seeds`, of the seeds that a record
    has. Otherwise seeds are one by default.
    """
    plan = Plan(scale, out / RUNS)
    for study in studies:
        reason = _missing(study)
        if reason:
            plan.skipped[study.id] = reason
            continue
        record = (records or {}).get(study.id)
        result = record.result(scale) if record else None
        known = {one.seed: one for one in result.seeds} if result else {}
        asked = seeds if seeds is not None else sorted(known) or 1
        jobs = {seed: dict(study.jobs(scale, seed)) for seed in study.seeds(asked)}
        plan.studies[study.id], plan.jobs[study.id] = study, jobs
        now = [known[seed].now_of(jobs[seed].values()) for seed in jobs if seed in known]
        plan.recorded[study.id] = frozenset().union(*(one.ended for one in now if one))
    names = {job.name: job for seeds in plan.jobs.values() for by_key in seeds.values() for job in by_key.values()}
    for name, job in names.items():
        check_is_of(job, plan.runs / name)
        if has_ended(plan.runs / name):
            plan.done.add(name)
    return plan


def estimated_seconds(study: Study, scale: Scale) -> float:
    """Return about how long a study takes on this machine, for one seed, one job after the other."""
    jobs = {job.name: job for job in study.jobs(scale, 0).values()}
    return Plan(scale, Path())._seconds(jobs)


def keep_within(plan: Plan, seconds: float) -> None:
    """Leave out of a plan the studies that do not fit into some seconds, the cheapest being taken first."""
    kept: dict[str, Job] = {}
    for name in sorted(plan.jobs, key=plan.seconds):
        jobs = plan.jobs_of(name)
        if plan._seconds({**kept, **jobs}) <= seconds:
            kept |= jobs
        else:
            plan.skipped[name] = f"does not fit into the budget: it takes about {words_for(plan.seconds(name))}"
            del plan.jobs[name]


def _missing(study: Study) -> str:
    """What a study needs that this machine does not have, and how to get it; empty if it can run."""
    for module in study.modules:
        if importlib.util.find_spec(module) is None:
            return f"needs {module}: pip install 'mnemoscope[{EXTRAS[module]}]'"
    for dataset in study.data:
        how = missing_data(dataset)
        if how:
            return f"needs the data set {dataset}: {how}"
    return ""


def has_ended(folder: Path) -> bool:
    """True if a job has a result; a run that diverged is one, too."""
    return (folder / "summary.json").is_file() and Result(folder).summary.get("outcome") != "failed"
