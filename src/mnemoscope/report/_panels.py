"""Charts in a grid: with shared axes, each of them spans what all of them need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from mnemoscope.report._chart import Axis, Chart, Extent, Line, Panels, Points, values_along


def charts_in(charts: Sequence[Chart | Panels]) -> list[Chart]:
    """Return the charts, those of panels one by one and with their shared axes."""
    return [single for chart in charts for single in (panel_charts(chart) if isinstance(chart, Panels) else [chart])]


def panel_charts(panels: Panels) -> list[Chart]:
    """Return the charts of panels, each with a key of its own and with the range of the axes that they share."""
    x = _extent(panels.charts, "x") if panels.share_x else None
    y = _extent(panels.charts, "y") if panels.share_y else None
    charts = []
    legend = not panels.legend
    for number, chart in enumerate(panels.charts, 1):
        key = f"{panels.key}-{number}"
        charts.append(replace(chart, key=key, x=_with_extent(chart.x, x), y=_with_extent(chart.y, y), legend=legend))
    return charts


def with_key(chart: Chart | Panels, prefix: str) -> Chart | Panels:
    """Return the chart with a key that begins with `prefix`, so that it is the only one on its page."""
    return replace(chart, key=f"{prefix}-{chart.key}")


def _with_extent(axis: Axis, extent: Extent | None) -> Axis:
    return axis if extent is None else replace(axis, extent=extent)


def _extent(charts: Sequence[Chart], name: str) -> Extent | None:
    """What the lines and points of all charts span; None if there is nothing to draw, or one chart has labels."""
    marks = [mark for chart in charts for mark in chart.marks]
    if not marks or not all(isinstance(mark, Line | Points) for mark in marks):
        return None
    arrays = values_along(marks, name)
    arrays += [np.array([marker.at]) for chart in charts for marker in chart.markers if marker.axis == name]
    values = np.concatenate([np.asarray(array, dtype=float) for array in arrays])
    values = values[np.isfinite(values)]
    if not values.size:
        return None
    positive = values[values > 0]
    return Extent(float(values.min()), float(values.max()), float(positive.min()) if positive.size else None)
