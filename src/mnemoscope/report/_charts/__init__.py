"""Which charts a scope's findings make."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from mnemoscope.finding import Examination
from mnemoscope.report._chart import Chart
from mnemoscope.report._charts import attention, cost, dynamics, memory
from mnemoscope.report._charts.generic import generic
from mnemoscope.report._charts.learning import learning
from mnemoscope.report._view import View, views

MakeCharts = Callable[[Sequence[View]], list[Chart]]

CHARTS: dict[str, MakeCharts] = {
    "horizon": memory.horizon,
    "recurrence": memory.recurrence,
    "truncation": memory.truncation,
    "stability": dynamics.stability,
    "lyapunov": dynamics.lyapunov,
    "attention": attention.attention,
    "paths": attention.paths,
    "signal": dynamics.signal,
    "separation": memory.separation,
    "smoothness": cost.smoothness,
    "entropy": cost.entropy,
    "attractors": cost.attractors,
    "landscape": cost.landscape,
    "learning": learning,
}
"""Scopes with charts of their own, in the order in which a page shows them; others are drawn by `generic`."""


def charts_of(examinations: Mapping[str, Examination], scope: str) -> list[Chart]:
    """Return the charts of one scope, the models overlaid in each.

    Findings saved by another version, with other series or shapes, are drawn by `generic`.
    """
    shown = views(examinations, scope)
    if not shown:
        return []
    try:
        charts = CHARTS.get(scope, generic)(shown)
    except (KeyError, IndexError, ValueError, TypeError):
        charts = generic(shown)
    return [chart for chart in charts if chart.marks]


def scopes_of(examinations: Mapping[str, Examination]) -> list[str]:
    """Return every scope with a finding, in the order of a page: known ones, unknown ones, learning last."""
    seen = dict.fromkeys(scope for examination in examinations.values() for scope in examination.findings)
    known = [scope for scope in CHARTS if scope in seen and scope != "learning"]
    unknown = [scope for scope in seen if scope not in CHARTS]
    last = ["learning"] if "learning" in seen else []
    return [*known, *unknown, *last]
