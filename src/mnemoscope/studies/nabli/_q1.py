"""Question 1: weights that keep the variance of preactivations through fifty layers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from mnemoscope.report import Axis, Chart
from mnemoscope.studies import Claim, Done, Scale, Study, band, measure, settings, study, table
from mnemoscope.sweeps import Job
from mnemoscope.theory.foundations import variances_through_layers

DEPTH = 50
UNITS: tuple[Literal["linear", "relu"], ...] = ("linear", "relu")
DISTRIBUTIONS: tuple[Literal["gaussian", "uniform"], ...] = ("gaussian", "uniform")
CASES = [f"{unit}, {distribution}" for unit in UNITS for distribution in DISTRIBUTIONS]
WRONG = "relu, variance 1/d"


def jobs(scale: Scale, seed: int) -> dict[Any, Job]:
    return {"variances": measure(variances, seconds=3, seed=seed)}


def variances(*, seed: int) -> Mapping[str, Any]:
    """The mean square of preactivations by layer, over 48 random networks, for each case and for a wrong one."""
    found: dict[str, Any] = {}
    for unit in UNITS:
        for distribution in DISTRIBUTIONS:
            by_layer = variances_through_layers(unit, distribution, depth=DEPTH, seed=seed)
            found[f"{unit}, {distribution}"] = by_layer.mean(1)
    by_layer = variances_through_layers("relu", "gaussian", depth=DEPTH, seed=seed, scale=math.sqrt(0.5))
    return {**found, WRONG: by_layer.mean(1)}


def cells(scale: Scale, done: Done) -> dict[tuple[str, str], float]:
    values = {}
    for case in (*CASES, WRONG):
        by_layer = done["variances"][case]
        values[case, "gain a layer"] = float((by_layer[1:] / by_layer[:-1]).mean())
        values[case, f"variance after {DEPTH} layers"] = float(by_layer[-1])
    return values


def charts(scale: Scale, done: Sequence[Done]) -> list[Chart]:
    layers = np.arange(DEPTH + 1)
    lines = tuple(
        band(case, {one.seed: (layers, one["variances"][case]) for one in done}, number)
        for number, case in enumerate((*CASES, WRONG))
    )
    y = Axis("variance of preactivations", log=True, switch=True)
    return [Chart("variance", "Variance by layer", Axis("layer"), y, lines)]


study(
    Study(
        "nabli/q1",
        "Question 1",
        "weights of variance 1/d, or 2/d for ReLUs, keep the variance of preactivations at 1",
        jobs,
        cells,
        charts,
        claims=(
            Claim("the four schemes gain at most 2 % of variance a layer", CASES, "gain a layer", 0.98, 1.02),
            Claim("ReLUs with variance 1/d lose everything", WRONG, f"variance after {DEPTH} layers", at_most=1e-12),
        ),
        published=table(
            (*CASES, WRONG),
            ("gain a layer", f"variance after {DEPTH} layers"),
            [[1.0, None]] * 4 + [[0.5, None]],
            row_title="units, distribution",
            note="what the text proves, in expectation",
            within=0.02,
        ),
        settings=settings(depth=(DEPTH, "ours"), width=(96, "ours"), networks=(48, "ours")),
        words="Centred weights of variance 1/d (linear) or 2/d (ReLU) keep preactivations at mean 0, variance 1.",
        errata=(
            "The scheme with 2/d is He's, not Glorot's, which has fan-in and fan-out.",
            "Uncorrelated a do not make ReLU(a) uncorrelated; harmless, because weights of mean 0 remove covariances.",
        ),
        would_change="Networks so narrow that their variance drifts by chance.",
    )
)
