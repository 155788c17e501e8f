"""Question 5: when the gradients of a recurrence must vanish, and what explosion needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.functional import jacobian

from mnemoscope.report import Axis, Chart
from mnemoscope.studies import Claim, Done, Scale, Study, band, measure, settings, study, table
from mnemoscope.sweeps import Job
from mnemoscope.theory.foundations import activation_states, gradient_bound, preactivation_states

STEPS, DELTA = 40, 0.9
MAPS = ("sigmoid, delta = 0.9", "||W|| = 0.95, a rotation", "||W|| = 50, nilpotent", "||W|| = 1.1, a rotation")


def jobs(scale: Scale, seed: int) -> dict[Any, Job]:
    return {"gradients": measure(gradients, seconds=3, seed=seed)}


def gradients(*, seed: int) -> Mapping[str, Any]:
    """||dh_T/dh_0|| for T = 1 .. 40 of four recurrences, and how far apart the two ways to write one are."""
    generator = torch.Generator().manual_seed(seed)
    W, start = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((5, 5), (5,)))
    drive = torch.randn(STEPS, 5, generator=generator, dtype=torch.float64)
    W = W * 4 * DELTA / torch.linalg.matrix_norm(W, ord=2)  # the sigmoid's slope is at most 1/4
    gap = torch.sigmoid(preactivation_states(W, drive, start)) - activation_states(W, drive, torch.sigmoid(start))
    angle = torch.rand(1, generator=generator, dtype=torch.float64) * 3
    turn = torch.stack([torch.cat([angle.cos(), -angle.sin()]), torch.cat([angle.sin(), angle.cos()])])
    nilpotent = torch.tensor([[0.0, 50.0], [0.0, 0.0]], dtype=torch.float64)
    sizes = {MAPS[0]: _sizes(W, drive, start, torch.sigmoid)}
    for name, matrix in zip(MAPS[1:], (0.95 * turn, nilpotent, 1.1 * turn), strict=True):
        sizes[name] = _sizes(matrix, drive.new_zeros(STEPS, 2), drive.new_zeros(2), torch.clone)
    bound = [gradient_bound(W, 0.25, T) for T in range(1, STEPS + 1)]
    return {**sizes, "gap": float(gap.abs().max()), "over the bound": max(np.array(sizes[MAPS[0]]) / np.array(bound))}


def _sizes(W: Tensor, drive: Tensor, h: Tensor, phi: Any) -> list[float]:
    """The spectral norm of dh_T/dh_0 for every T."""
    J = jacobian(lambda start: preactivation_states(W, drive, start, phi), h)
    return [float(torch.linalg.matrix_norm(one, ord=2)) for one in J]


def cells(scale: Scale, done: Done) -> dict[tuple[str, str], float]:
    result = done["gradients"]
    values: dict[tuple[str, str], float] = {(name, "||dh_40/dh_0||"): result[name][-1] for name in MAPS}
    values[MAPS[0], "largest ||dh_T/dh_0|| / delta^T"] = result["over the bound"]
    values[MAPS[0], "difference of sigma(h) and g"] = result["gap"]
    return values


def charts(scale: Scale, done: Sequence[Done]) -> list[Chart]:
    T = np.arange(1, STEPS + 1, dtype=float)
    lines = tuple(
        band(name, {one.seed: (T, one["gradients"][name]) for one in done}, number) for number, name in enumerate(MAPS)
    )
    y = Axis("||dh_T/dh_0||", log=True, switch=True)
    return [Chart("gradients", "Gradients through T steps", Axis("T"), y, lines)]


study(
    Study(
        "nabli/q5",
        "Question 5",
        "gradients fall like delta^T where ||W|| <= delta/gamma; what explosion needs",
        jobs,
        cells,
        charts,
        claims=(
            Claim("both ways to write the recurrence agree", column="difference of sigma(h) and g", at_most=1e-12),
            Claim("||dh_T/dh_0|| <= delta^T", column="largest ||dh_T/dh_0|| / delta^T", at_most=1 + 1e-9),
            Claim(
                "||W|| above delta/gamma is not sufficient for explosion: with 0.95 gradients vanish",
                MAPS[1],
                "||dh_40/dh_0||",
                at_most=0.2,
            ),
            Claim("nor is any norm: nilpotent weights of norm 50 forget all", MAPS[2], "||dh_40/dh_0||", at_most=0.0),
            Claim(
                "explosion needs even more, ||W|| above 1/gamma, with which it can happen",
                check=lambda c: c[MAPS[1], "||dh_40/dh_0||"] < 0.2 and c[MAPS[3], "||dh_40/dh_0||"] > 40,
                form="ours",
            ),
        ),
        published=table(MAPS, ("||dh_40/dh_0||",), row_title="recurrence", note="no numbers in the text"),
        settings=settings(steps=(STEPS, "ours"), delta=(DELTA, "ours"), size=(5, "ours")),
        words="A largest singular value above delta/gamma is necessary for exploding gradients, but not sufficient.",
        errata=(
            "Lemma 5.1 holds for non-zero eigenvalues: a wide W adds zeros to W^T W.",
            "Explosion needs a largest singular value above 1/gamma; that it needs one above "
            "delta/gamma is true, but weaker.",
        ),
    )
)
