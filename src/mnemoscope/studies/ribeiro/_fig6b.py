"""Figure 6b: the cost of a word model between its final and its initial weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mnemoscope.report import Axis, Chart, Marker
from mnemoscope.scopes import landscape
from mnemoscope.studies import CellValue, Claim, Done, Note, Result, Scale, Study, band, measure, settings, study, table
from mnemoscope.studies.ribeiro._chaotic_lstm import local_minima
from mnemoscope.studies.ribeiro._word_model import DATA, QUICK, SETTINGS, both_ends, training_run
from mnemoscope.sweeps import Job

FINAL, INITIAL, ROUGHNESS, MINIMA = "cost at s = 0", "cost at s = 1", "roughness", "local minima, s in [-0.5, 1]"


def jobs(scale: Scale, seed: int) -> dict[Any, Job]:
    run = training_run(scale, seed)
    points, sequences, seconds = (61, 10, 25) if scale == "quick" else (101, 10, 400)
    return {"run": run, "line": measure(cost_line, needs=run, seconds=seconds, points=points, sequences=sequences)}


def cost_line(run: Result, *, points: int, sequences: int) -> Mapping[str, Any]:
    """The held-out cost at s theta_init + (1 - s) theta_final for s in [-0.5, 1.5], the tied embedding included."""
    initial, final = both_ends(run)
    task = run.run.task
    batch = task.batch(0, sequences, "valid")
    device = final.readout.weight.device
    found = landscape(
        final,
        batch.inputs.to(device),
        targets=batch.targets.to(device),
        loss=task.loss,
        to=initial.state_dict(),
        line=True,
        points=points,
        x_range=(-0.5, 1.5),
        x_label="s",
    )
    return {
        "s": found.series["x"],
        "cost": found.series["cost"],
        "final": found.figures["cost"],
        "initial": found.figures["cost_to"],
        "roughness": found.figures["roughness"],
    }


def cells(scale: Scale, done: Done) -> dict[tuple[str, str], CellValue]:
    result = done["line"]
    if result.diverged_at_once:
        return {("line", column): Note("diverged") for column in (FINAL, INITIAL, ROUGHNESS, MINIMA)}
    near = result["s"] <= 1 + 1e-9
    return {
        ("line", FINAL): result["final"],
        ("line", INITIAL): result["initial"],
        ("line", ROUGHNESS): result["roughness"],
        ("line", MINIMA): float(local_minima(np.asarray(result["cost"]))[near].sum()),
    }


def charts(scale: Scale, done: Sequence[Done]) -> list[Chart]:
    line = band("held-out cost", {one.seed: (one["line"]["s"], one["line"]["cost"]) for one in done})
    where = (Marker("x", 0.0, "final"), Marker("x", 1.0, "initial"))
    return [Chart("cost", "Cost from final to initial weights", Axis("s"), Axis("cost", switch=True), (line,), where)]


study(
    Study(
        "ribeiro/fig6b",
        "Figure 6b",
        "cost of a word model along a line",
        jobs,
        cells,
        charts,
        claims=(
            Claim("smooth: less than 4 times as rough as a parabola", column=ROUGHNESS, at_most=4),
            Claim("one minimum between s = -0.5 and 1", column=MINIMA, at_least=1, at_most=1),
        ),
        published=table(("line",), (FINAL, INITIAL, ROUGHNESS, MINIMA), note="the paper prints no numbers"),
        settings=(*SETTINGS, *settings(s=("[-0.5, 1.5], 101 points, 10 held-out sequences", "ours"))),
        quick=(*QUICK, *settings(points=(61, "ours"))),
        words="The cost function is well behaved and smooth close to the solution.",
        would_change="A cost that is rough between our points.",
        data=DATA,
    )
)
