"""A training run as a report sees it: a row of figures, its learning curve, and the finding that they make."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mnemoscope.finding import Examination, Finding, arrays
from mnemoscope.report._chart import Chart
from mnemoscope.report._charts import charts_of
from mnemoscope.wording import counted

_OUTCOMES = {
    "solved": "Training solved the task",
    "budget spent": "Training spent its budget",
    "stopped early": "Training was stopped early",
    "diverged": "Training diverged",
    "failed": "Training failed",
    "unfinished": "Training is unfinished",
}
_HELP = (
    "Both curves are of held-out data. A loss that stays on the line “without memory” means that the network has "
    "learned only what needs no memory."
)
_FIGURES = ("best", "best_update", "baseline", "updates", "parameters")


@dataclass(frozen=True)
class RunRow:
    """How a run went, ended or not; what `mnemoscope compare --json` prints of it. None is what is not known (yet)."""

    run: str
    task: str
    model: str
    parameters: int | None
    updates: int
    outcome: str
    metric: str | None  # the task's headline metric
    best: float | None
    best_update: int | None
    baseline: float | None  # loss of the best model without memory
    last: dict[str, Any] = field(default_factory=dict)  # metrics of the last evaluation
    updates_per_second: float | None = None
    curve: list[dict[str, Any]] = field(default_factory=list)  # an update and its held-out metrics each
    T: int | None = None  # the task's own, if it has one
    setting: str | None = None  # what makes an agent's task another problem: its world, or the length of its maze

    @property
    def task_and_length(self) -> str:
        """The task, with its T or world: runs of another one are another problem, with another loss without memory."""
        setting = self.setting if self.T is None else f"T = {self.T}"
        return self.task if setting is None else f"{self.task}, {setting}"


def learning_finding(row: RunRow) -> Finding | None:
    """Return how training went, as a finding like those of the scopes; None if it has not been evaluated yet."""
    metric = row.metric or "loss"
    evaluations = [record for record in row.curve if record.get("loss", record.get(metric)) is not None]
    if not evaluations:
        return None
    figures = {name: getattr(row, name) for name in _FIGURES if getattr(row, name) is not None}
    series = {"update": [record["update"] for record in evaluations]}
    if all("loss" in record for record in evaluations):  # an agent's evaluation has none
        series["loss"] = [record["loss"] for record in evaluations]
    if metric != "loss":
        values = [math.nan if record.get(metric) is None else record[metric] for record in evaluations]
        if not all(map(math.isnan, values)):
            series["metric"] = values
    best = f"; best held-out {metric} {row.best:.4g} at update {row.best_update}" if row.best is not None else ""
    return Finding(
        "learning",
        f"{_OUTCOMES.get(row.outcome, row.outcome)} after {counted(row.updates, 'update')}{best}.",
        "estimated",
        figures=figures,
        series=arrays(**series),
        labels={"metric": metric, "task": row.task_and_length},
        method="evaluations on held-out batches, from the run's own records",
        question="How did training go?",
        help=(_HELP,),
    )


def learning_charts(rows: Mapping[str, RunRow]) -> list[Chart]:
    """Return the learning curves of runs, by the names that the legend calls them."""
    findings = {name: learning_finding(row) for name, row in rows.items()}
    examinations = {
        name: Examination({} if finding is None else {"learning": finding}, "") for name, finding in findings.items()
    }
    return charts_of(examinations, "learning")
