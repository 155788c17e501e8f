"""A sensible chart of any series, for scopes that have none of their own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mnemoscope.report._chart import Axis, Chart, HeatMap, Line
from mnemoscope.report._view import View, lines_of

MAX_LINES = 8  # rows of a matrix that are drawn as lines; more make a heat map


def generic(shown: Sequence[View]) -> list[Chart]:
    """Series (N,) of all models as lines in one chart each; matrices as lines or as heat maps, one per model."""
    charts: list[Chart] = []
    scope = shown[0].finding.scope if shown else ""
    for key in dict.fromkeys(key for view in shown for key in view.finding.series):
        name = f"{scope}-{key}".replace("_", "-")
        title = key.replace("_", " ")
        drawable = [view for view in shown if _drawable(view.finding.series.get(key))]
        vectors = [view for view in drawable if view.finding.series[key].ndim == 1]
        if vectors:
            charts.append(Chart(name, title, Axis("number"), Axis(title, switch=True), lines_of(vectors, key)))
        for view in drawable:
            if view not in vectors:
                charts.append(_matrix(view, key, f"{name}-{view.index}", title))
    return charts


def _drawable(values: np.ndarray | None) -> bool:
    return values is not None and values.ndim >= 1 and values.size > 1 and values.dtype.kind in "fiub"


def _matrix(view: View, key: str, name: str, quantity: str) -> Chart:
    z = view.finding.series[key].astype(float)
    z = z.reshape(-1, z.shape[-1])
    title = quantity if view.alone else f"{quantity} of {view.name}"
    columns = np.arange(z.shape[1], dtype=float)
    if len(z) <= MAX_LINES:
        lines = tuple(Line(f"{i}", columns, row, style=view.style(i)) for i, row in enumerate(z))
        return Chart(name, title, Axis("number"), Axis(quantity, switch=True), lines)
    heat_map = HeatMap(view.name, columns, np.arange(len(z)), z)
    return Chart(name, title, Axis("column"), Axis("row"), (heat_map,))
