"""A sensible chart of any series, for scopes that have none of their own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mnemoscope.report._chart import Axis, Chart, Heat, Line, Mark
from mnemoscope.report._view import View

MANY = 8  # rows of a matrix that are drawn as lines; more make a heat map


def generic(shown: Sequence[View]) -> list[Chart]:
    """Series (N,) of all models as lines in one chart each; matrices as lines or as heat maps, one a model."""
    charts: list[Chart] = []
    scope = shown[0].finding.scope if shown else ""
    for key in dict.fromkeys(key for view in shown for key in view.finding.series):
        mine = [view for view in shown if _drawable(view.finding.series.get(key))]
        flat = [view for view in mine if view.finding.series[key].ndim == 1]
        slug, title = f"{scope}-{key}".replace("_", "-"), key.replace("_", " ")
        if flat:
            lines = tuple(line for view in flat for line in view.line(key))
            charts.append(Chart(slug, title, Axis("number"), Axis(title, switch=True), lines))
        for view in mine:
            if view not in flat:
                charts.append(_matrix(view, key, f"{slug}-{view.place}", title))
    return charts


def _drawable(values: np.ndarray | None) -> bool:
    return values is not None and values.ndim >= 1 and values.size > 1 and values.dtype.kind in "fiub"


def _matrix(view: View, key: str, slug: str, title: str) -> Chart:
    z = view.finding.series[key].astype(float)
    z = z.reshape(-1, z.shape[-1])
    named = title if view.alone else f"{title} of {view.name}"
    places = np.arange(z.shape[1], dtype=float)
    if len(z) <= MANY:
        marks: tuple[Mark, ...] = tuple(Line(f"{i}", places, row, style=view.style(i)) for i, row in enumerate(z))
        return Chart(slug, named, Axis("number"), Axis(title, switch=True), marks)
    return Chart(slug, named, Axis("column"), Axis("row"), (Heat(view.name, places, np.arange(len(z)), z),))
