"""Figure 6a: where a word model ends up under a constant word, between its final and its initial weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from mnemoscope.report import Axis, Chart, Points, Style
from mnemoscope.scopes import attractors
from mnemoscope.studies import CellValue, Claim, Done, Note, Result, Scale, Study, measure, settings, study, table
from mnemoscope.studies.ribeiro._separated_symbols import STARTS, way
from mnemoscope.studies.ribeiro._word_model import DATA, QUICK, SETTINGS, both_ends, training_run
from mnemoscope.sweeps import Job

FREQUENT = 3  # constant inputs: as many of the most frequent words
LONGEST, APERIODIC, COUNT = "longest period", "orbits without a period", "most attractors"


def jobs(scale: Scale, seed: int) -> dict[Any, Job]:
    run = training_run(scale, seed)
    points, seconds = (21, 25) if scale == "quick" else (41, 300)
    return {"run": run, "orbits": measure(orbits, needs=run, seconds=seconds, points=points)}


def orbits(run: Result, *, points: int) -> Mapping[str, Any]:
    """Where states and the first output end up under each of a few frequent words, for s in [-0.5, 1.5]."""
    initial, final = both_ends(run)
    s = np.linspace(-0.5, 1.5, points)
    batch = run.run.task.batch(0, 4, "valid")
    ids = batch.inputs.to(final.readout.weight.device)
    words = torch.bincount(ids.flatten()).topk(FREQUENT).indices
    found = attractors(
        final,
        ids,
        path=way(initial, final),
        values=s.tolist(),
        constants=words,
        starts=STARTS,
        steps=300,
        recorded=64,
        outputs=[int(words[0])],
        fixed=False,
    )
    basins, period = found.series["basins"], found.series["period"]  # (words, s, starts)
    return {
        "s": s,
        "longest": period.max(-1),
        "aperiodic": (period == 0).mean(-1),
        "attractors": np.rint((1 / (basins * STARTS)).sum(-1)),
        "outputs": found.series["outputs"][..., -2:, 0].astype(np.float32),
    }


def cells(scale: Scale, done: Done) -> dict[tuple[str, str], CellValue]:
    result = done["orbits"]
    if result.diverged_at_once:
        return {("s in [0, 1]", column): Note("diverged") for column in (LONGEST, APERIODIC, COUNT)}
    between = (result["s"] >= -1e-9) & (result["s"] <= 1 + 1e-9)
    return {
        ("s in [0, 1]", LONGEST): float(result["longest"][:, between].max()),
        ("s in [0, 1]", APERIODIC): float(result["aperiodic"][:, between].mean()),
        ("s in [0, 1]", COUNT): float(result["attractors"][:, between].max()),
    }


def charts(scale: Scale, done: Sequence[Done]) -> list[Chart]:
    result = done[0]["orbits"]
    marks = []
    for number, outputs in enumerate(result["outputs"].astype(float)):  # (s, starts, steps)
        s = np.broadcast_to(result["s"][:, None, None], outputs.shape)
        marks.append(Points(f"constant word {number + 1}", s.flatten(), outputs.flatten(), Style(number, number)))
    x, y = Axis("s (0 final, 1 initial)"), Axis("score of a frequent word")
    return [Chart("orbits", "Where the output ends up under a constant word", x, y, tuple(marks))]


study(
    Study(
        "ribeiro/fig6a",
        "Figure 6a",
        "bifurcation diagram of a word model",
        jobs,
        cells,
        charts,
        claims=(
            Claim("no orbit is without a period for s in [0, 1]", column=APERIODIC, at_most=0),
            Claim("all periods are 1: only fixed points", column=LONGEST, at_least=1, at_most=1),
        ),
        published=table(
            ("s in [0, 1]",),
            (LONGEST, APERIODIC, COUNT),
            [[1, 0, None]],
            note="read from the words: only simple fixed points",
        ),
        settings=(
            *SETTINGS,
            *settings(
                inputs=("the three most frequent words, each constant", "ours", "the paper does not say"),
                starts=("10, standard normal", "ours"),
                s=("[-0.5, 1.5], 41 values", "ours"),
            ),
        ),
        quick=(*QUICK, *settings(s=("[-0.5, 1.5], 21 values", "ours"))),
        words="The bifurcation diagram indicates only simple fixed points.",
        would_change="Other constant inputs.",
        data=DATA,
    )
)
