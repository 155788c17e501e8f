"""Question 4: weight normalization is batch normalization for white inputs, and its norm only grows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from mnemoscope.report import Axis, Chart
from mnemoscope.studies import Claim, Done, Scale, Study, band, measure, settings, study, table
from mnemoscope.sweeps import Job
from mnemoscope.theory.foundations import batch_normalized, normalized_gradient, normalized_weight

SIZE, STEPS, GAMMA, RATES = 6, 60, 1.7, (0.1, 1.0)


def jobs(scale: Scale, seed: int) -> dict[Any, Job]:
    return {"norms": measure(norms, seconds=1, seed=seed)}


def norms(*, seed: int) -> Mapping[str, Any]:
    """Differences from batch normalization, |u . grad_u L|, and ||u|| over gradient descent of a least-squares fit."""
    generator = torch.Generator().manual_seed(seed)
    u, target = (torch.randn(SIZE, generator=generator, dtype=torch.float64) for _ in range(2))
    x = torch.randn(50, SIZE, generator=generator).double()
    zero, eye = torch.zeros(SIZE).double(), torch.eye(SIZE).double()
    plain = x @ normalized_weight(u, GAMMA)
    found: dict[str, Any] = {}
    for name, covariance in (("white", eye), ("correlated", eye + 0.5 * (1 - eye))):
        found[name] = float((batch_normalized(x, u, GAMMA, 0.0, zero, covariance) - plain).abs().max())
    found["along"] = 0.0
    for rate in RATES:
        v, sizes = u.clone(), [float(u.norm())]
        for _ in range(STEPS):
            slope = normalized_gradient(v, GAMMA, x.T @ (x @ normalized_weight(v, GAMMA) - x @ target) / len(x))
            found["along"] = max(found["along"], abs(float(v @ slope)))
            v = v - rate * slope
            sizes.append(float(v.norm()))
        found[f"sizes at {rate}"] = sizes
    return found


def cells(scale: Scale, done: Done) -> dict[tuple[str, str], float]:
    result = done["norms"]
    values = {
        ("white inputs", "difference from batch normalization"): result["white"],
        ("correlated inputs", "difference from batch normalization"): result["correlated"],
        ("gradient descent", "largest |u . grad_u L|"): result["along"],
    }
    for rate in RATES:
        values["gradient descent", f"least growth of ||u|| a step, rate {rate}"] = float(
            np.diff(result[f"sizes at {rate}"]).min()
        )
    return values


def charts(scale: Scale, done: Sequence[Done]) -> list[Chart]:
    steps = np.arange(STEPS + 1, dtype=float)
    lines = tuple(
        band(f"rate {rate}", {one.seed: (steps, one["norms"][f"sizes at {rate}"]) for one in done}, number)
        for number, rate in enumerate(RATES)
    )
    return [Chart("norm", "The norm of u while learning", Axis("steps"), Axis("||u||"), lines)]


GROWTH = [f"least growth of ||u|| a step, rate {rate}" for rate in RATES]

study(
    Study(
        "nabli/q4",
        "Question 4",
        "weight normalization is batch normalization for white inputs; its norm grows with every step",
        jobs,
        cells,
        charts,
        claims=(
            Claim("equal for white inputs", "white inputs", "difference from batch normalization", at_most=1e-12),
            Claim("the gradient is orthogonal to u", column="largest |u . grad_u L|", at_most=1e-10),
            Claim("||u|| never shrinks", column=GROWTH, at_least=-1e-12),
            Claim(
                "the assumption is needed: correlated inputs differ",
                "correlated inputs",
                "difference from batch normalization",
                at_least=1e-2,
                form="ours",
            ),
        ),
        published=table(
            ("white inputs", "correlated inputs"),
            ("difference from batch normalization",),
            [[0.0], [None]],
            note="what the text proves",
        ),
        settings=settings(size=(SIZE, "ours"), steps=(STEPS, "ours"), loss=("least squares", "ours")),
        words="With inputs whose entries are uncorrelated and of unit variance both normalizations have "
        "the same form, and the norm of u increases.",
    )
)
