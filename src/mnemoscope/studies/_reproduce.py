"""reproduce(): plan the jobs of some studies, run them, and keep what they found with a verdict."""

from __future__ import annotations

import contextlib
import datetime
import json
import platform
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

import torch

from mnemoscope.errors import MnemoscopeError
from mnemoscope.files import locked, read_json, to_json, write_atomic
from mnemoscope.report import Chart, Panels
from mnemoscope.schema import from_dict
from mnemoscope.studies._deadline import Deadline, TimeUp
from mnemoscope.studies._jobs import Done, NotMeasured, Result
from mnemoscope.studies._merge import (
    merge_charts,
    merge_costs,
    merge_seeds,
    shows_something,
    with_derived_cells,
    with_derived_charts,
)
from mnemoscope.studies._plan import RUNS, Plan, has_ended, keep_within, make_plan
from mnemoscope.studies._record import (
    FILE,
    Cost,
    ScaleResult,
    SeedResult,
    StudyRecord,
    describe,
    judged,
    kept_cells,
    read_charts,
    read_costs,
    read_record,
    write_record,
)
from mnemoscope.studies._study import SCALES, Scale, Study, choose
from mnemoscope.studies._verdict import OPEN, StudyVerdict, Verdict
from mnemoscope.sweeps import (
    Engine,
    Job,
    LocalEngine,
    SweepCallback,
    SweepProgress,
    forget_failures,
    read_failures,
    run_jobs,
)

MARK = "studies.json"  # a folder that has it, with this content, is one of ours
MARK_CONTENT = {"format": 1}
NAME_DIGITS = 12  # of the hash in the name of a job's folder
_ALLOWED = re.compile(
    rf"{RUNS}|\.lock|\.gitignore|\.{re.escape(MARK)}\..*\.tmp"
)  # all that it can have before its mark

T = TypeVar("T")


@dataclass(frozen=True)
class Outcome:
    """What became of a study in one call."""

    id: str
    scale: Scale
    verdict: Verdict = OPEN
    corrected: Verdict | None = None
    recorded: Verdict | None = None
    """The verdict that was known before."""
    worse: tuple[str, ...] = ()
    """What holds less than was recorded: the study itself, or its claims."""
    skipped: str = ""
    """Why it was not run."""
    missing: int = 0
    """Jobs that have not ended."""
    failed: tuple[str, ...] = ()
    """Jobs that failed, and why."""
    kept: bool = False
    """True if an earlier, complete result was kept because this one is not complete."""


def reproduce(
    prefixes: Iterable[str],
    scale: Scale = "quick",
    *,
    seeds: int | Sequence[int] | None = None,
    missing: bool = False,
    jobs: int | None = None,
    engine: Engine | None = None,
    out: str | Path = "studies",
    budget: float | None = None,
    stop_after: float | None = None,
    callback: SweepCallback | None = None,
    on_plan: Callable[[Plan], object] | None = None,
) -> list[Outcome]:
    """Run the studies whose ids begin with one of `prefixes`, write their results below `out`, and return the verdicts.

    Jobs that have ended are not run again; a call that was stopped or killed goes on where it was. Pages are drawn by
    `mnemoscope report`, from what is written here.

    Args:
        prefixes: ids of studies or how they begin; [""] is all of them.
        scale: "quick", or "full": the paper's size.
        seeds: how many seeds, from 0, or which ones; by default one, and with `missing` those that a record has.
        missing: run only what the records below `out` have no result of, and what that needs: to go on where they come
            without the folders of their runs, as in a clone of the repository.
        jobs: how many jobs at a time on this machine; by default one for each CPU.
        engine: where the jobs run, instead.
        out: the folder of all studies; jobs are in its folder runs/.
        budget: minutes; only the cheapest studies that fit are run.
        stop_after: minutes after which running jobs save their work, within a minute more, and the call returns. Called
            again, on this machine or wherever `out` was taken, it goes on.
        callback: called with the `SweepProgress` when a job has ended.
        on_plan: called with the `Plan` before the first job begins.
    """
    started_at = time.monotonic()
    _check_seeds(seeds)
    for name, minutes in (("budget", budget), ("stop-after", stop_after)):
        if minutes is not None and not minutes > 0:
            raise MnemoscopeError(f"{name} = {minutes} is not allowed; it must be above 0 minutes")
    chosen = choose(prefixes)
    path = Path(out).absolute()
    check_folder(path)
    with locked(path):
        check_folder(path)
        records = {study.id: _read_all(path / study.id) for study in chosen}  # whatever is damaged is found first
        plan = make_plan(chosen, scale, seeds, path, records if missing else None)
        engine = engine or LocalEngine(jobs, preload=("mnemoscope.studies", "mnemoscope.scopes"))
        if budget is not None:
            keep_within(plan, budget * 60 * engine.slots)
        write_atomic(path / MARK, to_json(MARK_CONTENT))
        if on_plan is not None:
            on_plan(plan)
        follow = _Follow(plan, path, records, callback)
        if plan.runs.exists():
            forget_failures(plan.runs, diverged=False)  # what failed may succeed now
        if stop_after is not None:
            engine = Deadline(engine, started_at + 60 * stop_after)
        try:
            with contextlib.suppress(TimeUp):
                run_jobs(plan.all_jobs.values(), plan.runs, engine, total=len(plan.all_jobs), callback=follow)
        finally:  # also after Ctrl-C: what there is can be shown
            outcomes = follow.finish()
        return outcomes


def _check_seeds(seeds: int | Sequence[int] | None) -> None:
    if seeds is None:
        return
    if isinstance(seeds, int):
        if seeds < 1:
            raise MnemoscopeError(f"seeds = {seeds} is not allowed; it must be at least 1")
    elif not seeds or min(seeds) < 0:
        raise MnemoscopeError(f"seeds = {list(seeds)} is not allowed; name at least one, none below 0")


def _read_all(folder: Path) -> StudyRecord | None:
    """The record in a study's folder, whose other files can be read too."""
    read_costs(folder)
    read_charts(folder)
    return read_record(folder)


def check_folder(path: Path) -> None:
    """Refuse a folder that holds something else than studies."""
    if path.exists() and not path.is_dir():
        raise MnemoscopeError(f"{path} is a file; choose another folder for the studies")
    found = list(path.iterdir()) if path.is_dir() else []
    if not is_studies(path) and not all(_ALLOWED.fullmatch(entry.name) for entry in found):
        if any(path.glob(f"*/*/{FILE}")):
            mark = to_json(MARK_CONTENT).decode().strip()
            raise MnemoscopeError(
                f"{path / MARK}, which marks a folder of studies, is missing or damaged; it holds {mark}"
            )
        raise MnemoscopeError(f"{path} is not empty and holds no studies; choose another folder")


def known_verdict(study: Study, scale: Scale, out: Path) -> StudyVerdict | None:
    """Return the verdict in the folder `out`, or else the one that this version came with; None without one."""
    record = read_record(out / study.id)
    result = record.result(scale) if record else None
    return shipped_verdict(study.id, scale) if result is None else judged(study, scale, result).both_verdicts


def is_studies(path: Path) -> bool:
    """True if a folder is one that `reproduce` wrote."""
    try:
        return read_json(path / MARK) == MARK_CONTENT
    except MnemoscopeError:
        return False


def _failures(runs: Path) -> dict[str, Any]:
    return read_failures(runs) if runs.exists() else {}


class _Follow:
    """Writes the results of each study as soon as its last job has ended."""

    def __init__(
        self, plan: Plan, out: Path, records: Mapping[str, StudyRecord | None], callback: SweepCallback | None
    ) -> None:
        self.plan = plan
        self.out = out
        self.records = records
        self.callback = callback
        self.waiting = {study: set(plan.jobs_of(study)) - plan.done for study in plan.jobs}
        self.outcomes: dict[str, Outcome] = {}

    def __call__(self, progress: SweepProgress) -> None:
        if not progress.retry:
            for study, names in self.waiting.items():
                if progress.job.name in names:
                    names.remove(progress.job.name)
                    if not names:
                        self._write(study)
        if self.callback is not None:
            self.callback(progress)

    def finish(self) -> list[Outcome]:
        """Write what there is of the other studies, and return what became of each."""
        for study in self.plan.jobs:
            if study not in self.outcomes:
                self._write(study)
        skipped = [Outcome(name, self.plan.scale, skipped=reason) for name, reason in self.plan.skipped.items()]
        return [*self.outcomes.values(), *skipped]

    def _write(self, name: str) -> None:
        self.outcomes[name] = write_study(self.plan, self.plan.studies[name], self.out, self.records[name])


def write_study(plan: Plan, study: Study, out: Path, before: StudyRecord | None) -> Outcome:
    """Write the results of a study, merged with those of other seeds and of the other size; return what became of it.

    What is recorded of the study's jobs is not lost: see `merge_seeds`. A complete result of other jobs is replaced by
    one that is complete, too.
    """
    folder, scale = out / study.id, plan.scale
    old = before.result(scale) if before else None
    recorded = old.both_verdicts if old else shipped_verdict(study.id, scale)
    failures = _failures(plan.runs)
    jobs = plan.jobs[study.id]
    done = {seed: _done(plan, study, seed, failures) for seed in jobs}
    new = {seed: _seed_result(study, scale, jobs[seed], found, failures) for seed, found in done.items()}
    now = [one.now_of(study.jobs(scale, one.seed).values()) for one in old.seeds] if old else []
    kept = {one.seed: one for one in now if one}
    merged = {seed: merge_seeds(kept.get(seed), one) for seed, one in new.items()}

    to_do = plan.jobs_of(study.id)
    missing = sum(name in to_do for one in new.values() for name in one.missing)
    failed = tuple(message for one in new.values() for message in one.failed)
    complete = all(one.is_complete for one in merged.values())
    is_of_fewer = old is not None and old.is_complete and not complete and not _has_all_of(old, merged)
    if old is not None and (is_of_fewer or all(one is kept.get(seed) for seed, one in merged.items())):
        again = judged(study, scale, old)
        verdicts = (again.verdict, again.corrected, old.verdict, _worse(again, recorded, old))
        return Outcome(study.id, scale, *verdicts, missing=missing, failed=failed, kept=True)

    # Seeds that were not asked for this time stay.
    by_seed = {**kept, **merged}
    found = [done[seed] for seed, one in merged.items() if done[seed] and one is not kept.get(seed)]
    ended = [one for one in found if new[one.seed].is_complete]
    drawn = _charts(study, scale, found, found == ended) or _charts(study, scale, ended, True)
    charts = read_charts(folder)
    recorded_charts = charts.get(scale, [])
    if any(one is not new.get(seed) for seed, one in by_seed.items()):  # what only the record knows stays
        drawn = merge_charts(recorded_charts, drawn, list(kept), [one.seed for one in found])
    elif not complete:
        drawn = drawn or recorded_charts
    seeds = tuple(with_derived_cells(study, scale, by_seed[seed], drawn, recorded_charts) for seed in sorted(by_seed))
    charts[scale] = with_derived_charts(study, seeds, drawn)
    result = judged(study, scale, ScaleResult(seeds, versions=_versions()))

    costs = read_costs(folder)
    unchanged = before is not None and old == result and scale in costs
    if not unchanged:
        costs[scale] = _cost(plan, old, seeds, costs.get(scale))
    results = {size: before.result(size) if before else None for size in SCALES} | {scale: result}
    write_record(folder, describe(study, **results), costs, charts)
    worse = _worse(result, recorded, old)
    known = recorded.printed if recorded else None
    return Outcome(study.id, scale, result.verdict, result.corrected, known, worse, missing=missing, failed=failed)


def _has_all_of(old: ScaleResult, new: Mapping[int, SeedResult]) -> bool:
    """True if every job of the old result has ended in the new one, too."""
    return all(one.seed in new and set(one.jobs) <= new[one.seed].ended for one in old.seeds)


def _done(plan: Plan, study: Study, seed: int, failures: Mapping[str, Any]) -> Done:
    """The results of a seed's jobs that have ended, also of those that diverged, and why others failed."""
    jobs = plan.jobs[study.id][seed]
    folders = {key: plan.runs / job.name for key, job in jobs.items()}
    results = [(key, Result(folder)) for key, folder in folders.items() if has_ended(folder)]
    return Done(seed, results, {key: failures[job.name].message for key, job in jobs.items() if job.name in failures})


def _seed_result(
    study: Study, scale: Scale, jobs: Mapping[Any, Job], done: Done, failures: Mapping[str, Any]
) -> SeedResult:
    """What a seed gave, as it is kept."""
    absent = {key: job.name for key, job in jobs.items() if key not in done}
    found: Mapping[Any, Any] = _tolerant(lambda: study.cells(scale, done), {}, not absent)
    failed = tuple(
        f"{name}: {_without_folders(failures[name].message)}" for name in absent.values() if name in failures
    )
    missing = tuple(name for name in absent.values() if name not in failures)
    given_up = {jobs[key].name: result.diverged for key, result in done.items() if result.diverged}
    diverged = tuple(f"{name}: {_without_folders(message)}" for name, message in given_up.items())
    return SeedResult(done.seed, tuple(job.name for job in jobs.values()), kept_cells(found), missing, diverged, failed)


def _without_folders(message: str) -> str:
    """A message without the folders above that of a job: the same wherever the studies are."""
    return re.sub(rf"\S*/(?=[\w.-]+-[0-9a-f]{{{NAME_DIGITS}}}/)", "", message)


def _tolerant(make: Callable[[], T], default: T, is_complete: bool) -> T:
    """What `make` returns; the default if it misses a result that is not there yet, or that there cannot be."""
    try:
        return make()
    except NotMeasured:
        return default
    except KeyError:
        if is_complete:
            raise
        return default


def _charts(study: Study, scale: Scale, done: Sequence[Done], is_complete: bool) -> list[Chart | Panels]:
    """The charts over all seeds; where a run diverged at once that a chart needs, over the others."""

    def drawn(seeds: Sequence[Done]) -> list[Chart | Panels]:
        charts: list[Chart | Panels] = _tolerant(
            lambda: list(study.charts(scale, seeds)) if seeds else [], [], is_complete
        )
        return [chart for chart in charts if shows_something(chart)]

    return drawn(done) or drawn([one for one in done if not any(result.diverged_at_once for result in one.values())])


def _worse(result: ScaleResult, recorded: StudyVerdict | None, old: ScaleResult | None) -> tuple[str, ...]:
    """What holds less than was recorded: the study, as printed or as corrected, or its claims."""
    worse = []
    if recorded is not None:
        if result.verdict.is_worse_than(recorded.printed):
            worse.append("the study")
        if result.corrected and recorded.corrected and result.corrected.is_worse_than(recorded.corrected):
            worse.append("the study as corrected")
    before = {(claim.text, claim.form): claim.verdict for claim in old.claims} if old else {}
    worse += [
        claim.text for claim in result.claims if claim.verdict.is_worse_than(before.get((claim.text, claim.form), OPEN))
    ]
    return tuple(worse)


def shipped_verdict(study: str, scale: Scale) -> StudyVerdict | None:
    """Return the verdict that this version of Mnemoscope came with, for a folder that has none yet."""
    source = files("mnemoscope.studies") / "verdicts.json"
    try:
        content = json.loads(source.read_text())
    except FileNotFoundError:
        return None
    found = content.get(study, {}).get(scale)
    return None if found is None else from_dict(StudyVerdict, found, f"verdicts.json: {study}")


def _versions() -> dict[str, str]:
    from mnemoscope import __version__

    return {"mnemoscope": __version__, "torch": torch.__version__, "python": platform.python_version()}


def _cost(plan: Plan, old: ScaleResult | None, seeds: Sequence[SeedResult], known: Cost | None) -> Cost:
    """What the results took: of jobs whose folders are not here, as it was recorded."""
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    names = dict.fromkeys(name for one in seeds for name in one.jobs if name in one.ended)
    here = [name for name in names if has_ended(plan.runs / name)]
    if len(here) == len(names) or old is None or known is None:
        return merge_costs(None, (Result(plan.runs / name) for name in here), today)
    counted = frozenset().union(*(one.ended for one in old.seeds))
    return merge_costs(known, (Result(plan.runs / name) for name in here if name not in counted), today)
