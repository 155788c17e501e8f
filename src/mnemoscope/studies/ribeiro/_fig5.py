"""Figure 5: where the first output ends up under p, q and a, between the final and the initial weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mnemoscope.report import Panels
from mnemoscope.studies import CellValue, Claim, Done, Note, Scale, Study, settings, study, table
from mnemoscope.studies.ribeiro._bifurcations import found_for, panel
from mnemoscope.studies.ribeiro._separated_symbols import (
    CLIP_ERROR,
    FEW_WORDS,
    QUICK,
    SCENARIOS,
    SETTINGS,
    bifurcation,
    count,
    is_fixed,
    runs,
)
from mnemoscope.sweeps import Job

SYMBOLS = "pqa"
FIXED, COUNT = "one fixed point at s = 0", "attractors at s = 0"
ORBITS = settings(
    starts=("10, normal, standard deviation 100", "code"),
    steps=("800, the last 100 recorded", "code", "code: 400 recorded"),
    s=("[-0.5, 1.5], 101 values", "ours"),
    attractors=("those with a period, and all orbits without one as one more", "ours"),
)


def jobs(scale: Scale, seed: int) -> dict[Any, Job]:
    trained: dict[Any, Job] = dict(runs(scale, seed))
    return {**trained, **{("orbits", name): bifurcation(scale, run) for name, run in trained.items()}}


def cells(scale: Scale, done: Done, symbols: str = SYMBOLS) -> dict[tuple[str, str], CellValue]:
    found: dict[tuple[str, str], CellValue] = {}
    for key, result in done.items():
        if not isinstance(key, tuple):
            continue
        if result.diverged_at_once:
            found |= {
                (f"neither, {symbol}", column): Note("diverged") for symbol in symbols for column in (FIXED, COUNT)
            }
            continue
        for symbol in symbols:
            row = f"{result['scenario']}, {symbol}"
            if (row, FIXED) not in found:
                found[row, FIXED] = float(is_fixed(result, symbol))
                found[row, COUNT] = count(result, symbol)
    return found


def charts(scale: Scale, done: Sequence[Done]) -> list[Panels]:
    drawn = []
    for name in SCENARIOS:
        found = found_for(done, name)
        if found is not None:
            seed, result = found
            panels = tuple(panel(result, symbol, 0, symbol, f"constant input {symbol}", steps=8) for symbol in SYMBOLS)
            title = f"The first output under constant symbols, {name} scenario (s = 0 final, 1 initial; seed {seed})"
            drawn.append(Panels(f"outputs-{name}", title, panels, columns=3))
    return drawn


study(
    Study(
        "ribeiro/fig5",
        "Figure 5",
        "bifurcation of the first output under p, q and a",
        jobs,
        cells,
        charts,
        claims=(
            Claim("good: one fixed point under p and under q", ("good, p", "good, q"), FIXED, at_least=1),
            Claim("good: no single fixed point under the distractor a", "good, a", FIXED, at_most=0),
            Claim("bad: no single fixed point under p, q or a", ("bad, p", "bad, q", "bad, a"), FIXED, at_most=0),
        ),
        published=table(
            [f"{name}, {symbol}" for name in SCENARIOS for symbol in SYMBOLS],
            (FIXED, COUNT),
            [[1.0, 1.0], [1.0, 1.0], [0.0, None], [0.0, None], [0.0, None], [0.0, None]],
            row_title="scenario, input",
            note="read from the words: the paper prints no numbers",
            within=0.01,
        ),
        settings=(*SETTINGS, *ORBITS),
        quick=(*QUICK, *settings(s=("[-0.5, 1.5], 21 values", "ours"))),
        words="In the good performance scenario the output converges to a fixed point under a non-distractor symbol, "
        "and the network provides distinct output values under a distractor; in the bad one it does so in all cases.",
        errata=(
            FEW_WORDS,
            CLIP_ERROR,
            "The caption speaks of a periodic or chaotic attractor under a distractor, the text of distinct output "
            "values, which several fixed points have too. We ask for anything but one fixed point.",
            "The text speaks of all s in [0, 1] in the bad scenario; at s = 1 are the initial weights, for which it "
            "says itself that there are simple fixed points. We ask at s = 0.",
        ),
        would_change="A good solution at the paper's T = 150: ours is at T = 60.",
    )
)
