"""Which charts a scope's findings make."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ..finding import Examination
from . import charts_attention, charts_cost, charts_dynamics, charts_memory
from .chart import Chart
from .charts_generic import generic
from .view import View, views

Drawing = Callable[[Sequence[View]], list[Chart]]

CHARTS: dict[str, Drawing] = {
    "horizon": charts_memory.horizon,
    "recurrence": charts_memory.recurrence,
    "truncation": charts_memory.truncation,
    "stability": charts_dynamics.stability,
    "lyapunov": charts_dynamics.lyapunov,
    "attention": charts_attention.attention,
    "paths": charts_attention.paths,
    "signal": charts_dynamics.signal,
    "separation": charts_memory.separation,
    "smoothness": charts_cost.smoothness,
    "entropy": charts_cost.entropy,
    "attractors": charts_cost.attractors,
    "landscape": charts_cost.landscape,
    "learning": charts_memory.learning,
}
"""Scopes with charts of their own, in the order in which a page shows them; others are drawn by `generic`."""


def charts_of(examinations: Mapping[str, Examination], scope: str) -> list[Chart]:
    """The charts of one scope, the models in them overlaid; findings of another make are drawn generically."""
    shown = views(examinations, scope)
    if not shown:
        return []
    try:
        charts = CHARTS.get(scope, generic)(shown)
    except (KeyError, IndexError, ValueError, TypeError):  # saved by another version: other series, other shapes
        charts = generic(shown)
    return [chart for chart in charts if chart.marks]


def scopes_of(examinations: Mapping[str, Examination]) -> list[str]:
    """Every scope that was looked through, in the order of a page."""
    seen = dict.fromkeys(scope for examination in examinations.values() for scope in examination.findings)
    known = [scope for scope in CHARTS if scope in seen and scope != "learning"]
    last = ["learning"] if "learning" in seen else []
    return [*known, *(scope for scope in seen if scope not in CHARTS), *last]
