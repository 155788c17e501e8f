"""How the runs of a sweep went, in groups of equal settings: mean, median, IQM with its interval, solved k of n."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from mnemoscope.errors import MnemoscopeError
from mnemoscope.sweeps._driver import DIVERGED
from mnemoscope.sweeps._folder import Sweep
from mnemoscope.sweeps._runs import field_value
from mnemoscope.training import RunConfig

RESAMPLES = 2000
CONFIDENCE = 0.95
_SEEDS = ("fit.seed", "task.seed")


@dataclass(frozen=True)
class Result:
    """How one run of a sweep went, or how far it has come."""

    config: dict[str, Any]
    outcome: str
    """"solved", "budget spent", "stopped early", "diverged", "failed", "unfinished" or "not begun"."""
    metric: str
    best: float | None
    """The best held-out metric; None unless the run has ended well."""
    updates_to_solved: int | None
    """The update of the first evaluation that reached the task's threshold."""
    seconds_to_solved: float | None
    """The time for these updates, at the run's speed."""
    curve: list[tuple[int, float]]
    """Updates, and the held-out metric after them."""


@dataclass(frozen=True)
class Group:
    """Runs with the same settings. The figures of the metric are over those that have ended well, with one."""

    settings: dict[str, Any]
    """Values by field."""
    runs: int
    ended: int
    """Without those that diverged or failed."""
    diverged: int
    failed: int
    solved: int
    mean: float | None
    median: float | None
    iqm: float | None
    """The interquartile mean: without the best and the worst quarter."""
    iqm_low: float | None
    iqm_high: float | None
    """The 95 % bootstrap interval of the IQM; None for fewer than two runs."""
    updates_to_solved: float | None
    """The median over the runs that solved the task."""
    seconds_to_solved: float | None
    curves: tuple[list[tuple[int, float]], ...] = ()
    """The runs' held-out metric against updates."""

    def row(self) -> dict[str, Any]:
        """Return settings and figures as the columns of a table."""
        figures = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("settings", "curves")}
        return {**self.settings, **figures}


@dataclass(frozen=True)
class SweepTable:
    """A sweep's groups, the fields that tell them apart, and the metric that the figures are of."""

    by: tuple[str, ...]
    metric: str
    higher_is_better: bool
    groups: tuple[Group, ...]

    def to_csv(self) -> str:
        """Return the table as comma-separated values, with a line of headings."""
        rows = [group.row() for group in self.groups]
        text = io.StringIO()
        writer = csv.DictWriter(text, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return text.getvalue()

    def to_dict(self) -> dict[str, Any]:
        """Return the table for JSON."""
        rows = [group.row() for group in self.groups]
        return {"by": list(self.by), "metric": self.metric, "higher_is_better": self.higher_is_better, "rows": rows}


def sweep_table(sweep: Sweep | str | Path, by: Sequence[str] | None = None) -> SweepTable:
    """Return how the runs of a sweep, or of that in a folder, went.

    Args:
        sweep: what `sweep` returned, or its folder.
        by: the fields by whose values runs are grouped; by default all that vary, seeds excepted.
    """
    sweep = sweep if isinstance(sweep, Sweep) else Sweep(sweep)
    configs = list(sweep.configs())
    varied = _varied([config.to_dict() for config in configs])
    by = [field for field in varied if field not in _SEEDS] if by is None else list(dict.fromkeys(by))
    for field in by:
        if all(field_value(config.to_dict(), field) is None for config in configs):
            raise MnemoscopeError(
                f"by = {field!r} is not a field of these runs; those that vary are {', '.join(varied)}"
            )
    metrics = {config.task.metric for config in configs}
    if len(metrics) > 1:
        raise MnemoscopeError(f"a table has one metric; the tasks of this sweep have {', '.join(sorted(metrics))}")

    results = _results(sweep, configs)
    strata = [field for field in varied if field not in (*by, *_SEEDS)]
    members: dict[str, list[Result]] = {}  # by the values of the fields as text, for they may be lists
    for result in results:
        members.setdefault(repr(_values(result, by)), []).append(result)
    groups = [_group(dict(zip(by, _values(group[0], by), strict=True)), group, strata) for group in members.values()]
    task = configs[0].task
    return SweepTable(tuple(by), task.metric, task.higher_is_better, tuple(groups))


def interquartile_mean(values: np.ndarray) -> np.ndarray:
    """Return the mean along the last axis without the smallest and the largest quarter, rounded down.

    It is scipy's `trim_mean(values, 0.25)`, as Agarwal et al. (2021) use it.
    """
    ordered = np.sort(values, -1)
    cut = values.shape[-1] // 4
    return ordered[..., cut : values.shape[-1] - cut].mean(-1)


def bootstrap_interval(strata: Sequence[np.ndarray]) -> tuple[float, float] | None:
    """Return the 95 % interval of the IQM over all values, by resampling each stratum; None for a single value.

    The random numbers are always the same, so that the same runs give the same table.
    """
    if sum(map(len, strata)) < 2:
        return None
    random = np.random.default_rng(0)
    drawn = [values[random.integers(len(values), size=(RESAMPLES, len(values)))] for values in strata]
    means = interquartile_mean(np.concatenate(drawn, 1))
    low, high = np.quantile(means, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)


def _varied(configs: Sequence[dict[str, Any]]) -> list[str]:
    """The fields that differ between the configurations."""
    names = {f"{part}.{name}": None for config in configs for part, section in config.items() for name in section}
    return [field for field in names if len({repr(field_value(config, field)) for config in configs}) > 1]


def _results(sweep: Sweep, configs: Iterable[RunConfig]) -> list[Result]:
    failures = sweep.failures()
    results = []
    for name, config in zip(sweep.names, configs, strict=True):
        failed = ""
        if name in failures:
            failed = "diverged" if failures[name].exit_code == DIVERGED else "failed"
        results.append(_result(sweep, name, config, failed))
    return results


def _result(sweep: Sweep, name: str, config: RunConfig, failed: str) -> Result:
    task = config.task
    run = sweep.run(name)
    if run is None:
        return Result(config.to_dict(), failed or "not begun", task.metric, None, None, None, [])
    curve = [
        (record["update"], float(record[task.metric]))
        for record in run.metrics()
        if record.get("split") == "valid" and record.get(task.metric) is not None
    ]
    summary = run.summary()
    outcome = failed or "unfinished" if summary is None else summary.outcome
    if outcome in ("diverged", "failed"):
        return Result(config.to_dict(), outcome, task.metric, None, None, None, curve)
    solved_at = next((update for update, value in curve if _solves(value, config)), None)
    seconds = None
    if solved_at is not None and summary is not None and summary.updates_per_second > 0:
        seconds = solved_at / summary.updates_per_second
    best = None if summary is None else summary.best
    return Result(config.to_dict(), outcome, task.metric, best, solved_at, seconds, curve)


def _solves(value: float, config: RunConfig) -> bool:
    threshold = config.task.solved
    if threshold is None:
        return False
    return value >= threshold if config.task.higher_is_better else value <= threshold


def _values(result: Result, by: Sequence[str]) -> list[Any]:
    return [field_value(result.config, field) for field in by]


def _group(settings: dict[str, Any], results: Sequence[Result], strata: Sequence[str]) -> Group:
    known = [result for result in results if result.best is not None and math.isfinite(result.best)]
    best = np.array([result.best for result in known], dtype=float)
    labels = [repr(_values(result, strata)) for result in known]
    interval = bootstrap_interval([best[[label == own for own in labels]] for label in dict.fromkeys(labels)])
    return Group(
        settings=settings,
        runs=len(results),
        ended=sum(result.outcome in ("solved", "budget spent", "stopped early") for result in results),
        diverged=sum(result.outcome == "diverged" for result in results),
        failed=sum(result.outcome == "failed" for result in results),
        solved=sum(result.updates_to_solved is not None for result in results),
        mean=float(best.mean()) if len(best) else None,
        median=float(np.median(best)) if len(best) else None,
        iqm=float(interquartile_mean(best)) if len(best) else None,
        iqm_low=interval[0] if interval else None,
        iqm_high=interval[1] if interval else None,
        updates_to_solved=_median([result.updates_to_solved for result in results]),
        seconds_to_solved=_median([result.seconds_to_solved for result in results]),
        curves=tuple(result.curve for result in results if result.curve),
    )


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.median(known)) if known else None
