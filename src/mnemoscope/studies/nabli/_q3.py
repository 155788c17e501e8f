"""Question 3: momentum and running averages of gradients make the same steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from mnemoscope.report import Axis, Chart, Line, Style
from mnemoscope.studies import Claim, Done, Scale, Study, band, measure, settings, study, table
from mnemoscope.sweeps import Job
from mnemoscope.theory.foundations import (
    as_running_average,
    bias_corrected,
    momentum_updates,
    running_average,
    running_average_updates,
)

BETA, STEPS, SEQUENCES, MEAN = 0.9, 40, 4000, 1.0
RATES = ((0.0, 0.1), (0.9, 0.1), (0.99, 3.0))


def jobs(scale: Scale, seed: int) -> dict[Any, Job]:
    return {"averages": measure(averages, seconds=2, seed=seed)}


def averages(*, seed: int) -> Mapping[str, Any]:
    """How far the two ways to write momentum are apart, and the mean of running averages of random gradients."""
    generator = torch.Generator().manual_seed(seed)
    g = MEAN + torch.randn(STEPS, SEQUENCES, generator=generator, dtype=torch.float64)
    gaps = [
        float((momentum_updates(g, *rate) - running_average_updates(g, *as_running_average(*rate))).abs().max())
        for rate in RATES
    ]
    v = running_average(g, BETA)
    expected = MEAN * (1 - BETA ** torch.arange(1, STEPS + 1, dtype=torch.float64))
    off = (v.mean(1) - expected).abs() / (v.std(1) / SEQUENCES**0.5)
    corrected = bias_corrected(v, BETA).mean(1)
    return {"gaps": gaps, "mean": v.mean(1), "corrected": corrected, "expected": expected, "off": float(off.max())}


def cells(scale: Scale, done: Done) -> dict[tuple[str, str], float]:
    result = done["averages"]
    values = {
        (f"alpha = {a}", "difference of the steps"): gap for (a, _), gap in zip(RATES, result["gaps"], strict=True)
    }
    values[f"beta = {BETA}", "largest distance in standard errors"] = result["off"]
    values[f"beta = {BETA}", "first average"] = float(result["mean"][0])
    return values


def charts(scale: Scale, done: Sequence[Done]) -> list[Chart]:
    n = np.arange(1, STEPS + 1, dtype=float)
    lines = (
        band("mean of v_n", {one.seed: (n, one["averages"]["mean"]) for one in done}, 0),
        band("divided by 1 - beta^n", {one.seed: (n, one["averages"]["corrected"]) for one in done}, 1),
        Line("(1 - beta^n) E[g]", n, done[0]["averages"]["expected"], style=Style(6, 2)),
    )
    return [Chart("average", "Running average of gradients of mean 1", Axis("n"), Axis("average"), lines)]


study(
    Study(
        "nabli/q3",
        "Question 3",
        "momentum is a running average with beta = alpha and delta = epsilon/(1 - alpha)",
        jobs,
        cells,
        charts,
        claims=(
            Claim("both make the same steps", column="difference of the steps", at_most=1e-10),
            Claim("E[v_n] = (1 - beta^n) E[g]", column="largest distance in standard errors", at_most=5.0),
        ),
        published=table(
            [f"alpha = {alpha}" for alpha, _ in RATES],
            ("difference of the steps",),
            [[0.0]] * 3,
            note="what the text proves",
        ),
        settings=settings(beta=(BETA, "ours"), sequences=(SEQUENCES, "ours"), gradients=("N(1, 1)", "ours")),
        words="The two update rules are equivalent; the average is biased towards zero by 1 - beta^n.",
    )
)
