"""What `compare`, `examine` and `report` share: how a run went, from its own files."""

from __future__ import annotations

from typing import Any

from mnemoscope.errors import MnemoscopeError
from mnemoscope.report import RunRow
from mnemoscope.training import Run


def run_row(run: Run) -> RunRow:
    """Return how a run went, ended or not."""
    records = run.metrics()
    evaluations = [record for record in records if record.get("split") == "valid"]
    last = evaluations[-1] if evaluations else {}
    summary = run.summary()
    return RunRow(
        run=str(run.path),
        task=_name(run.about.task, "name"),
        model=_name(run.about.network, "model"),
        parameters=summary.parameters if summary else None,
        updates=max((record["update"] for record in records), default=0),
        outcome=summary.outcome if summary else "unfinished",
        metric=summary.metric if summary else _metric(run),
        best=summary.best if summary else None,
        best_update=summary.best_update if summary else None,
        baseline=summary.baseline if summary else _baseline(run),
        last={name: value for name, value in last.items() if name not in ("update", "split")},
        updates_per_second=summary.updates_per_second if summary else None,
        curve=evaluations,
        T=run.about.task["T"] if type(run.about.task.get("T")) is int else None,
        setting=setting_of(run.about.task),
    )


def setting_of(task: dict[str, Any]) -> str | None:
    """The world of an agent, or the length of its maze; None of other tasks."""
    if isinstance(task.get("env"), str):
        return str(task["env"])
    return f"L = {task['L']}" if type(task.get("L")) is int else None


def _metric(run: Run) -> str | None:
    """The headline metric of a run that has not ended, if its task is one of this library's."""
    try:
        return run.task.metric
    except MnemoscopeError:
        return None


def _baseline(run: Run) -> float | None:
    """The loss without memory of a run that has not ended, if its task is one of this library's."""
    try:
        return run.task.baseline
    except (MnemoscopeError, OSError):  # the task is the user's own, or its data are gone
        return None


def _name(section: dict[str, Any], field: str) -> str:
    """The name of a run's task or model; `own` is that of a user's own."""
    name = section.get(field, section.get("own"))
    return name if isinstance(name, str) else "?"
