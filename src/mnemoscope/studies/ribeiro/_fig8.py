"""Figure 8: where all outputs end up under every constant symbol, good scenario."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mnemoscope.report import Panels
from mnemoscope.studies import CellValue, Claim, Done, Scale, Study, settings, study, table
from mnemoscope.studies.ribeiro._bifurcations import found_for, rows
from mnemoscope.studies.ribeiro._fig5 import COUNT, FIXED, ORBITS
from mnemoscope.studies.ribeiro._fig5 import cells as cells_of
from mnemoscope.studies.ribeiro._separated_symbols import CLIP_ERROR, FEW_WORDS, QUICK, SETTINGS, bifurcation, runs
from mnemoscope.sweeps import Job
from mnemoscope.tasks import Symbols

RELEVANT, DISTRACTORS = ("good, p", "good, q"), tuple(f"good, {symbol}" for symbol in "abcd")


def jobs(scale: Scale, seed: int) -> dict[Any, Job]:
    trained: dict[Any, Job] = dict(runs(scale, seed))
    if scale == "quick":
        del trained["bad"]
    return {**trained, **{("orbits", name): bifurcation(scale, run) for name, run in trained.items()}}


def cells(scale: Scale, done: Done) -> dict[tuple[str, str], CellValue]:
    found = cells_of(scale, done, Symbols.alphabet)
    return {(row, column): value for (row, column), value in found.items() if not row.startswith("bad")}


def charts(scale: Scale, done: Sequence[Done]) -> list[Panels]:
    result = found_for(done, "good")
    return [] if result is None else rows(result, "good")


study(
    Study(
        "ribeiro/fig8",
        "Figure 8",
        "bifurcation of all outputs under all symbols, good scenario",
        jobs,
        cells,
        charts,
        claims=(
            Claim("one fixed point under p and under q", RELEVANT, FIXED, at_least=1),
            Claim("no single fixed point under any of the distractors a, b, c, d", DISTRACTORS, FIXED, at_most=0),
        ),
        published=table(
            [*RELEVANT, *DISTRACTORS],
            (FIXED, COUNT),
            [[1.0, 1.0]] * 2 + [[0.0, None]] * 4,
            row_title="scenario, input",
            note="read from the words on Figure 5: the paper prints no numbers",
        ),
        settings=(*SETTINGS, *ORBITS),
        quick=(*QUICK, *settings(s=("[-0.5, 1.5], 21 values", "ours"))),
        words="Different colors correspond to attractors resulting from different initial conditions.",
        errata=(FEW_WORDS, CLIP_ERROR),
        would_change="A good solution at the paper's T = 150: ours is at T = 60.",
    )
)
