"""Figure 3a: accuracy while an LSTM learns widely separated symbols, where it ends well."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import numpy as np

from mnemoscope.report import Axis, Chart, Line
from mnemoscope.studies import Cells, CellValue, Claim, Done, Result, Scale, Study, band, study, table
from mnemoscope.studies.ribeiro._separated_symbols import (
    CLIP_ERROR,
    CODE,
    FEW_WORDS,
    QUICK,
    SETTINGS,
    TEXT,
    accuracy_cells,
    runs,
)
from mnemoscope.sweeps import Job
from mnemoscope.training import FitConfig

TRAIN, HELD_OUT, RISE = "training accuracy", "held-out accuracy", "share of the run from 50 % to 95 %"


def jobs(scale: Scale, seed: int) -> dict[Any, Job]:
    found = runs(scale, seed)
    return found if scale == "full" else {"good": found["good"]}


def cells(scale: Scale, done: Done) -> dict[tuple[str, str], CellValue]:
    found: dict[tuple[str, str], CellValue] = {}
    for name, run in done.items():
        found[name, TRAIN], found[name, HELD_OUT] = accuracy_cells(run)
        found[name, RISE] = _rise(run)
    return found


def _rise(run: Result) -> float:
    """The share of the updates up to 95 % held-out accuracy in which it went from 50 %; NaN if it never got there."""
    updates, accuracy = run.curve("accuracy")
    high = np.nonzero(accuracy >= 0.95)[0]
    if not len(high):
        return np.nan
    low = np.nonzero(accuracy[: high[0]] < 0.5)[0]
    start = updates[low[-1]] if len(low) else 0.0
    return float((updates[high[0]] - start) / updates[high[0]])


def accuracy_chart(done: Sequence[Done], names: Sequence[str]) -> list[Chart]:
    """Both accuracies against epochs, one chart for each run of a seed."""
    found = []
    for name in names:
        lines: list[Line] = []
        for number, (split, words) in enumerate((("train", "training"), ("valid", "held out"))):
            curves = [_by_epoch(one[name], split) for one in done if name in one]
            lines.append(band(words, curves, number))
        x, y = Axis("epochs"), Axis("accuracy", share=True)
        found.append(
            Chart(f"accuracy-{name.replace(' ', '-')}", f"Accuracy while learning ({name})", x, y, tuple(lines))
        )
    return found


def _by_epoch(run: Result, split: str) -> tuple[np.ndarray, np.ndarray]:
    updates, accuracy = run.curve("accuracy", split)
    fit = run.run.config.fit
    assert isinstance(fit, FitConfig)
    return updates / (run.run.task.steps_per_epoch(fit.batch_size) or 1), accuracy


def charts(scale: Scale, done: Sequence[Done]) -> list[Chart]:
    return accuracy_chart(done, ("good",) if scale == "quick" else (TEXT, CODE))


def _any_good(name: str) -> Callable[[Sequence[Cells]], bool]:
    def check(seeds: Sequence[Cells]) -> bool:
        return any(one[name, TRAIN] >= 0.99 and one[name, HELD_OUT] >= 0.99 for one in seeds)

    return check


def _abrupt(seeds: Sequence[Cells]) -> bool | None:
    """Whether half of the runs that got to 95 % went there from 50 % in a fifth of the time; open if none got there."""
    rises = [one[name, RISE] for one in seeds for name in (TEXT, CODE) if (name, RISE) in one]
    return median(rises) <= 0.2 if rises else None


study(
    Study(
        "ribeiro/fig3a",
        "Figure 3a",
        "accuracy on widely separated symbols, good scenario",
        jobs,
        cells,
        charts,
        claims=(
            Claim("99 % on training and held-out data", "good", (TRAIN, HELD_OUT), at_least=0.99, scale="quick"),
            Claim(
                "abrupt: from 50 to 95 % in a fifth of the time, in half of the good runs",
                check=_abrupt,
                over="all",
                scale="full",
            ),
            Claim(
                "some seed reaches 99 % on both",
                check=lambda seeds: _any_good(TEXT)(seeds) or _any_good(CODE)(seeds),
                over="all",
                scale="full",
            ),
            Claim("with the clip of the text", check=_any_good(TEXT), over="all", scale="full", headline=False),
            Claim("with the clip of the code", check=_any_good(CODE), over="all", scale="full", headline=False),
        ),
        published=table(
            ("good", TEXT, CODE),
            (TRAIN, HELD_OUT, RISE),
            [[1.0, 1.0, None]] * 3,
            row_title="run",
            note="accuracy around 100 %",
            percent=True,
            within=0.01,
        ),
        settings=SETTINGS,
        quick=QUICK,
        words="The optimization procedure abruptly finds a solution that has good accuracy on both training and "
        "validation.",
        errata=(FEW_WORDS, CLIP_ERROR),
        would_change="More seeds or epochs at the paper's size.",
    )
)
