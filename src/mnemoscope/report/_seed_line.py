"""Lines over seeds: they keep the curve of each seed, and say how many seeds they are made from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TypeVar

import numpy as np

from mnemoscope.report._chart import Chart, Line, Mark, Panels, Style

Curve = tuple[np.ndarray, np.ndarray]
"""x and y, both (N,), of one seed; x rises, NaN in y is not known."""

Drawn = TypeVar("Drawn", bound=Chart | Panels)


class SeedLine(Line):
    """The curves of several seeds as one line: their median, in a band from the lowest to the highest.

    A curve keeps its last value where the others go on: a run that solved its task has stopped.
    """

    curves: Mapping[int, Curve]
    """By seed, of those that have any known value."""

    def __init__(self, name: str, curves: Mapping[int, Curve], style: Style) -> None:
        arrays = {seed: tuple(np.asarray(values, dtype=float) for values in curve) for seed, curve in curves.items()}
        known = {seed: (x, y) for seed, (x, y) in sorted(arrays.items()) if np.isfinite(y).any()}
        super().__init__(name, *_median_and_band(list(known.values())), style, tuple(known))
        self.curves = known


def _median_and_band(curves: list[Curve]) -> tuple[np.ndarray, np.ndarray, np.ndarray | None, np.ndarray | None]:
    """x, the median at x, and the lowest and highest there if there are several curves."""
    if not curves:
        return np.empty(0), np.empty(0), None, None
    x = np.unique(np.concatenate([at for at, _ in curves]))
    values = np.full((len(curves), len(x)), np.nan)
    for row, (at, y) in zip(values, curves, strict=True):
        latest = np.searchsorted(at, x, side="right") - 1
        row[latest >= 0] = y[latest[latest >= 0]]
    if len(curves) == 1:
        return x, values[0], None, None
    counted = np.isfinite(values).any(0)
    x, values = x[counted], values[:, counted]
    return x, np.nanmedian(values, 0), np.nanmin(values, 0), np.nanmax(values, 0)


def with_seed_counts(chart: Drawn) -> Drawn:
    """Return a chart that says over how many seeds its lines are: in its title if all are over as many, else by name.

    Of lines without a known number of seeds nothing is said.
    """
    charts = chart.charts if isinstance(chart, Panels) else (chart,)
    counts = _counts(charts)
    if len(counts) == 1 and None not in counts:
        return replace(chart, title=f"{chart.title} ({_words(*counts)})")
    if isinstance(chart, Panels):
        return replace(chart, charts=tuple(with_seed_counts(panel) for panel in chart.charts))
    return replace(chart, marks=tuple(map(_with_count, chart.marks)))


def _counts(charts: Iterable[Chart]) -> set[int | None]:
    """The different numbers of seeds of all lines, None for one that is not known."""
    lines = [mark for chart in charts for mark in chart.marks if isinstance(mark, Line)]
    return {len(line.seeds) or None for line in lines}


def _with_count(mark: Mark) -> Mark:
    """A line by the name that says over how many seeds it is, if that is known; another mark as it is."""
    if not isinstance(mark, Line) or not mark.seeds:
        return mark
    name = f"{mark.name} ({_words(len(mark.seeds))})"
    return SeedLine(name, mark.curves, mark.style) if isinstance(mark, SeedLine) else replace(mark, name=name)


def _words(count: int | None) -> str:
    return f"{count} seed{'' if count == 1 else 's'}"
