"""Drawings of the outputs' bifurcations, which figures 5, 8 and 9 share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mnemoscope.report import Axis, Chart, Panels, Points, Style
from mnemoscope.studies import Done, Result
from mnemoscope.studies.ribeiro._separated_symbols import CLASSES, STARTS, Scenario
from mnemoscope.tasks import Symbols

DRAWN = 51  # values of s in a panel, at most


def found_for(done: Sequence[Done], scenario: Scenario) -> Result | None:
    """Return the orbits of the first run of any seed that ended in a scenario; None if none did."""
    for one in done:
        for key, result in one.items():
            if isinstance(key, tuple) and result["scenario"] == scenario:
                return result
    return None


def panel(result: Result, symbol: str, number: int, key: str, title: str, *, steps: int) -> Chart:
    """Return one diagram: an output under a constant symbol against s, a color for each start."""
    every = max(1, len(result["s"]) // DRAWN)
    outputs = result["outputs"][Symbols.alphabet.index(symbol), ::every, :, -steps:, number].astype(
        float
    )  # (s, starts, steps)
    s = np.broadcast_to(result["s"][::every, None], outputs[:, 0].shape).flatten()
    marks = tuple(  # of one name, so that ten colors need no legend
        Points("one color a start", s, outputs[:, start].flatten(), Style(start, 0)) for start in range(STARTS)
    )
    return Chart(key, title, Axis("s"), Axis(f"output {CLASSES[number]}"), marks)


def grid(result: Result, name: str) -> Panels:
    """Return all six symbols (rows) and four outputs (columns)."""
    charts = tuple(
        panel(result, symbol, number, f"{symbol}-{number}", f"input {symbol}, output {label}", steps=3)
        for symbol in Symbols.alphabet
        for number, label in enumerate(CLASSES)
    )
    title = f"Outputs under constant symbols, {name} scenario (s = 0 final, 1 initial)"
    return Panels(f"all-{name}", title, charts, columns=len(CLASSES), share_y=False)
