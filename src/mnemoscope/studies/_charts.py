"""Marks that studies share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mnemoscope.report import Line, Style


def band(name: str, curves: Sequence[tuple[np.ndarray, np.ndarray]], style: int = 0) -> Line:
    """Return one line for the curves (x, y) of several seeds: their median, in a band from the lowest to the highest.

    A curve keeps its last value where the others go on: a run that solved its task has stopped.
    """
    known = [(np.asarray(x, dtype=float), np.asarray(y, dtype=float)) for x, y in curves if len(x)]
    look = Style(style, style)
    if not known:
        return Line(name, np.empty(0), np.empty(0), style=look)
    x = np.unique(np.concatenate([at for at, _ in known]))
    values = np.full((len(known), len(x)), np.nan)
    for row, (at, y) in zip(values, known, strict=True):
        latest = np.searchsorted(at, x, side="right") - 1
        row[latest >= 0] = y[latest[latest >= 0]]
    if len(known) == 1:
        return Line(name, x, values[0], style=look)
    counted = np.isfinite(values).any(0)
    x, values = x[counted], values[:, counted]
    return Line(name, x, np.nanmedian(values, 0), np.nanmin(values, 0), np.nanmax(values, 0), look)
