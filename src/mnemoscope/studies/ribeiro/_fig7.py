"""Figure 7: the cost of the chaotic LSTM over a plane through zero, theta_true and random weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from mnemoscope.report import Axis, Chart, Plane
from mnemoscope.scopes import landscape
from mnemoscope.studies import Claim, Done, Scale, Study, measure, settings, study, table
from mnemoscope.studies.ribeiro._chaotic_lstm import (
    INTRICATE,
    SETTINGS,
    SIGN_ERROR,
    SIGNS,
    Signs,
    inside,
    local_minima,
    mean_square,
    network,
    silence,
)
from mnemoscope.sweeps import Job

POINTS = {"quick": 101, "full": 151}
DRAWN = 76  # points of the chart along each axis
NEAR = 0.1  # |s_2| of the rows whose minima are counted
FEWEST, BEYOND, ROUGHNESS = "fewest minima of a row, s1 in [0.9, 1.45]", "minima, s1 >= 1.6", "roughness"


def jobs(scale: Scale, seed: int) -> dict[Any, Job]:
    points = POINTS[scale]
    return {signs: measure(plane, seconds=points / 15, signs=signs, points=points, seed=seed) for signs in SIGNS}


def plane(*, signs: Signs, points: int, seed: int) -> Mapping[str, Any]:
    """The cost at s_1 theta_true + s_2 theta_random, s_1 in [0, 2] and s_2 in [-0.5, 0.5]; theta_random ~ U[0, 1)."""
    true = network(signs)
    x = silence()
    generator = torch.Generator().manual_seed(seed)
    random = {
        name: torch.rand(p.shape, generator=generator, dtype=torch.float64) for name, p in true.state_dict().items()
    }
    found = landscape(
        network(signs, 0.0),
        x,
        targets=true(x)[0].detach(),
        loss=mean_square,
        to=true.state_dict(),
        third=random,
        points=points,
        x_range=(0.0, 2.0),
        y_range=(-0.5, 0.5),
        x_label="s1",
        y_label="s2",
    )
    return {
        "s1": found.series["x"],
        "s2": found.series["y"],
        "cost": found.series["cost"],
        "roughness": found.figures["roughness"],
    }


def cells(scale: Scale, done: Done) -> dict[tuple[str, str], float]:
    found: dict[tuple[str, str], float] = {}
    for signs, result in done.items():
        rows = local_minima(result["cost"])[np.abs(result["s2"]) <= NEAR + 1e-9]
        found[signs, FEWEST] = float(rows[:, inside(result["s1"], INTRICATE)].sum(1).min())
        found[signs, BEYOND] = float(rows[:, result["s1"] >= 1.6 - 1e-9].sum())
        found[signs, ROUGHNESS] = result["roughness"]
    return found


def charts(scale: Scale, done: Sequence[Done]) -> list[Chart]:
    result = done[0]["corrected"]
    every = max(1, len(result["s1"]) // DRAWN)
    s1, s2, cost = result["s1"][::every], result["s2"][::every], result["cost"][::every, ::every]
    mark = Plane("cost", s1, s2, np.round(cost, 4))
    title = "The cost over the plane, with the right signs"
    return [Chart("plane", title, Axis("s1, of theta_true"), Axis("s2, of random weights"), (mark,))]


study(
    Study(
        "ribeiro/fig7",
        "Figure 7",
        "the cost of the chaotic LSTM over a plane",
        jobs,
        cells,
        charts,
        claims=(
            Claim("printed signs: 5 minima in every row near theta_true", "printed", FEWEST, 5, form="printed"),
            Claim("right signs: 5 minima in every row near theta_true", "corrected", FEWEST, 5, form="corrected"),
            Claim(
                "printed signs: no minimum in these rows for s1 >= 1.6", "printed", BEYOND, at_most=0, form="printed"
            ),
            Claim(
                "right signs: no minimum in these rows for s1 >= 1.6", "corrected", BEYOND, at_most=0, form="corrected"
            ),
            Claim("right signs: ten times as rough as a parabola", "corrected", ROUGHNESS, at_least=10),
        ),
        published=table(SIGNS, (FEWEST, BEYOND, ROUGHNESS), row_title="weights", note="the paper counts no minima"),
        settings=(
            *SETTINGS,
            *settings(
                s1=("[0, 2]", "code"),
                s2=("[-0.5, 0.5]", "code"),
                points=("151 x 151", "ours", "code: 152 x 151"),
                theta_random=("U[0, 1)", "code"),
                rows=(f"|s2| <= {NEAR}, minima along s1", "ours"),
            ),
        ),
        quick=settings(points=("101 x 101", "ours")),
        words="There is an entire region where the cost function is intricate and has many neighboring local minima.",
        errata=(SIGN_ERROR,),
        would_change="Other weights than those of the authors' code.",
    )
)
