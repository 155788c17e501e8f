"""Drawings of the outputs' bifurcations, which figures 5, 8 and 9 share."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from mnemoscope.report import Axis, Chart, Panels, Points, Style
from mnemoscope.studies import Done, Result
from mnemoscope.studies.ribeiro._separated_symbols import CLASSES, STARTS, Scenario
from mnemoscope.tasks import Symbols

DRAWN = 51  # values of s in a panel, at most
RESOLUTION = 500  # heights that a panel can tell apart


def found_for(done: Sequence[Done], scenario: Scenario) -> tuple[int, Result] | None:
    """Return what was measured of the first run in a scenario, and its seed; None if no run ended in it."""
    for one in done:
        for key, result in one.items():
            if isinstance(key, tuple) and not result.diverged_at_once and result["scenario"] == scenario:
                return one.seed, result
    return None


def panel(result: Result, symbol: str, number: int, key: str, title: str, *, steps: int) -> Chart:
    """Return one diagram: an output under a constant symbol against s, a color for each start."""
    every = math.ceil(len(result["s"]) / DRAWN)
    outputs = result["outputs"][Symbols.alphabet.index(symbol), ::every, :, -steps:, number].astype(float)
    s = np.broadcast_to(result["s"][::every, None, None], outputs.shape)  # (s, starts, steps), as outputs
    visible = _visible(outputs)
    marks = []
    for start in range(STARTS):
        shown = visible[:, start]
        if shown.any():  # of one name, so that ten colors need no legend
            name, style = "one color a start", Style(start, 0)
            marks.append(Points(name, s[:, start][shown], outputs[:, start][shown], style))
    return Chart(key, title, Axis("s"), Axis(f"output {CLASSES[number]}"), tuple(marks))


def _visible(outputs: np.ndarray) -> np.ndarray:
    """Which points (s, starts, steps) are not hidden by one that is drawn later, at the resolution of the drawing."""
    heights = np.round(RESOLUTION * outputs / (np.ptp(outputs) or 1.0)).reshape(len(outputs), -1)
    visible = np.zeros(heights.shape, dtype=bool)
    for row, shown in zip(heights[:, ::-1], visible[:, ::-1], strict=True):  # later starts first
        shown[np.unique(row, return_index=True)[1]] = True
    return visible.reshape(outputs.shape)


def rows(seed: int, result: Result, name: str) -> list[Panels]:
    """Return the rows of the paper's grid, one figure for each symbol: its four outputs."""
    found = []
    for symbol in Symbols.alphabet:
        charts = tuple(
            panel(result, symbol, number, f"{symbol}-{number}", f"output {label}", steps=3)
            for number, label in enumerate(CLASSES)
        )
        title = f"Outputs under constant {symbol}, {name} scenario (s = 0 final, 1 initial; seed {seed})"
        found.append(Panels(f"{name}-{symbol}", title, charts, columns=len(CLASSES), share_y=False))
    return found
