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
            if isinstance(key, tuple) and not result.diverged_at_once and result["scenario"] == scenario:
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


def rows(result: Result, name: str) -> list[Panels]:
    """Return the rows of the paper's grid, one figure for each symbol: its four outputs."""
    found = []
    for symbol in Symbols.alphabet:
        charts = tuple(
            panel(result, symbol, number, f"{symbol}-{number}", f"output {label}", steps=3)
            for number, label in enumerate(CLASSES)
        )
        title = f"Outputs under constant {symbol}, {name} scenario (s = 0 final, 1 initial)"
        found.append(Panels(f"{name}-{symbol}", title, charts, columns=len(CLASSES), share_y=False))
    return found
