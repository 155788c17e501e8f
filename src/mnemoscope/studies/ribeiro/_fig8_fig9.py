"""Figures 8 and 9: where all outputs end up under every constant symbol, in the good and in the bad scenario."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mnemoscope.report import Panels
from mnemoscope.studies import CellValue, Claim, Done, Scale, Study, settings, study, table
from mnemoscope.studies.ribeiro._bifurcations import found_for, rows
from mnemoscope.studies.ribeiro._fig5 import COUNT, FIXED, ORBITS
from mnemoscope.studies.ribeiro._fig5 import cells as cells_of
from mnemoscope.studies.ribeiro._separated_symbols import (
    CLIP_ERROR,
    FEW_WORDS,
    QUICK,
    SETTINGS,
    Scenario,
    bifurcation,
    runs,
)
from mnemoscope.sweeps import Job
from mnemoscope.tasks import Symbols


def figure(number: int, scenario: Scenario, other: Scenario, claims: tuple[Claim, ...], would_change: str) -> None:
    """Register the figure of one scenario; claims and published cells are of its rows, one for each symbol."""

    def jobs(scale: Scale, seed: int) -> dict[Any, Job]:
        trained: dict[Any, Job] = dict(runs(scale, seed))
        trained.pop(other, None)  # at full size it is not known before which run will be of which scenario
        return {**trained, **{("orbits", name): bifurcation(scale, run) for name, run in trained.items()}}

    def cells(scale: Scale, done: Done) -> dict[tuple[str, str], CellValue]:
        found = cells_of(scale, done, Symbols.alphabet)
        return {(row, column): value for (row, column), value in found.items() if not row.startswith(other)}

    def charts(scale: Scale, done: Sequence[Done]) -> list[Panels]:
        found = found_for(done, scenario)
        return [] if found is None else rows(*found, scenario)

    fixed = [[1.0, 1.0] if scenario == "good" and symbol in "pq" else [0.0, None] for symbol in Symbols.alphabet]
    study(
        Study(
            f"ribeiro/fig{number}",
            f"Figure {number}",
            f"bifurcation of all outputs under all symbols, {scenario} scenario",
            jobs,
            cells,
            charts,
            claims=claims,
            published=table(
                [f"{scenario}, {symbol}" for symbol in Symbols.alphabet],
                (FIXED, COUNT),
                fixed,
                row_title="scenario, input",
                note="read from the words on Figure 5: the paper prints no numbers",
                within=0.01,
            ),
            settings=(*SETTINGS, *ORBITS),
            quick=(*QUICK, *settings(s=("[-0.5, 1.5], 21 values", "ours"))),
            words="Different colors correspond to attractors resulting from different initial conditions.",
            errata=(FEW_WORDS, CLIP_ERROR),
            would_change=would_change,
        )
    )


figure(
    8,
    "good",
    "bad",
    (
        Claim("one fixed point under p and under q", ("good, p", "good, q"), FIXED, at_least=1),
        Claim(
            "no single fixed point under any of the distractors a, b, c, d",
            tuple(f"good, {symbol}" for symbol in "abcd"),
            FIXED,
            at_most=0,
        ),
    ),
    "A good solution at the paper's T = 150: ours is at T = 60.",
)
figure(
    9,
    "bad",
    "good",
    (
        Claim(
            "no single fixed point under any symbol",
            tuple(f"bad, {symbol}" for symbol in Symbols.alphabet),
            FIXED,
            at_most=0,
        ),
    ),
    "More seeds, or longer training, at the paper's size.",
)
