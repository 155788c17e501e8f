"""Which function draws the findings of a scope."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mnemoscope.report._chart import Chart
from mnemoscope.report._view import View

MakeCharts = Callable[[Sequence[View]], list[Chart]]

CHARTS: dict[str, MakeCharts] = {}
"""Scopes with charts of their own, by name; others are drawn by `generic`."""


def draws_scope(make: MakeCharts) -> MakeCharts:
    """Register the decorated function: it draws the findings of the scope of its name, one `View` for each model."""
    CHARTS[make.__name__] = make
    return make
