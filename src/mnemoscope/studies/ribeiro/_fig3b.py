"""Figure 3b: accuracy while an LSTM learns widely separated symbols, where it ends badly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mnemoscope.report import Chart
from mnemoscope.studies import Cells, CellValue, Claim, Done, Scale, Study, study, table
from mnemoscope.studies.ribeiro._fig3a import HELD_OUT, TRAIN, accuracy_chart
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


def jobs(scale: Scale, seed: int) -> dict[Any, Job]:
    found = runs(scale, seed)
    return found if scale == "full" else {"bad": found["bad"]}


def cells(scale: Scale, done: Done) -> dict[tuple[str, str], CellValue]:
    found: dict[tuple[str, str], CellValue] = {}
    for name, run in done.items():
        found[name, TRAIN], found[name, HELD_OUT] = accuracy_cells(run)
    return found


def charts(scale: Scale, done: Sequence[Done]) -> list[Chart]:
    return accuracy_chart(done, ("bad",) if scale == "quick" else (TEXT, CODE))


def _some(wanted: Callable[[float, float], bool]) -> Callable[[Sequence[Cells]], bool]:
    """Whether a run of any seed has such accuracies, on the training data and held out."""
    return lambda seeds: any(wanted(one[name, TRAIN], one[name, HELD_OUT]) for one in seeds for name in (TEXT, CODE))


study(
    Study(
        "ribeiro/fig3b",
        "Figure 3b",
        "accuracy on widely separated symbols, bad scenario",
        jobs,
        cells,
        charts,
        claims=(
            Claim("90 % on the training data", "bad", TRAIN, at_least=0.9, scale="quick"),
            Claim("no better than guessing on held-out data: 35 %", "bad", HELD_OUT, at_most=0.35, scale="quick"),
            Claim(
                "some seed ends with 90 % on the training data and at most 30 % on held-out data",
                check=_some(lambda on_train, held_out: on_train >= 0.9 and held_out <= 0.3),
                over="all",
                scale="full",
            ),
            Claim(
                "both scenarios occur",
                check=lambda seeds: (
                    _some(lambda on_train, held_out: on_train >= 0.9 and held_out <= 0.3)(seeds)
                    and _some(lambda on_train, held_out: min(on_train, held_out) >= 0.99)(seeds)
                ),
                over="all",
                scale="full",
            ),
        ),
        published=table(
            ("bad", TEXT, CODE),
            (TRAIN, HELD_OUT),
            [[0.9, 0.25]] * 3,
            row_title="run",
            note="above 90 % on training data, below 25 % on held-out data",
            percent=True,
            within=0.2,
        ),
        settings=SETTINGS,
        quick=QUICK,
        words="The convergence is slow and steady towards a solution that has good accuracy on the training set (above "
        "90 %) but is no better than random guessing on the validation set.",
        errata=(FEW_WORDS, CLIP_ERROR),
        would_change="More seeds or epochs at the paper's size.",
    )
)
