"""Which charts a scope's findings make."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from mnemoscope.finding import Examination
from mnemoscope.report._chart import Bars, Chart, Line, Points
from mnemoscope.report._charts import attention, cost, dynamics, episode, learning, memory  # noqa: F401  (they fill CHARTS)
from mnemoscope.report._charts.generic import generic
from mnemoscope.report._charts.registry import CHARTS
from mnemoscope.report._view import views

PAGE_ORDER = (
    "episode",
    "horizon",
    "recurrence",
    "truncation",
    "stability",
    "lyapunov",
    "attention",
    "paths",
    "signal",
    "separation",
    "smoothness",
    "entropy",
    "attractors",
    "landscape",
)
"""The scopes that a page shows first, in this order; others follow, and learning curves come last."""


def charts_of(examinations: Mapping[str, Examination], scope: str) -> list[Chart]:
    """Return the charts of one scope, the models overlaid in each.

    Findings saved by another version, with other series or shapes, are drawn by `generic`.
    """
    shown = views(examinations, scope)
    if not shown:
        return []
    try:
        charts = CHARTS.get(scope, generic)(shown)
    except (KeyError, IndexError, ValueError, TypeError, OverflowError):
        charts = generic(shown)
    several = len(examinations) > 1
    return [replace(chart, one_of_several=several and _names_models(chart)) for chart in charts if chart.marks]


def _names_models(chart: Chart) -> bool:
    """True if a legend can name its marks; maps and planes have the model in their titles."""
    return all(isinstance(mark, Line | Points | Bars) for mark in chart.marks)


def scopes_of(examinations: Mapping[str, Examination]) -> list[str]:
    """Return every scope with a finding, in the order of a page: `PAGE_ORDER`, others, learning last."""
    seen = dict.fromkeys(scope for examination in examinations.values() for scope in examination.findings)
    first = [scope for scope in PAGE_ORDER if scope in seen]
    others = [scope for scope in seen if scope not in PAGE_ORDER and scope != "learning"]
    last = ["learning"] if "learning" in seen else []
    return [*first, *others, *last]
