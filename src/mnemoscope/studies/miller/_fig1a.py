"""Figure 1a: how fast the gradient of the truncated model comes near that of the recurrent one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mnemoscope.report import Axis, Chart, Line, Marker, Style
from mnemoscope.studies import Claim, Done, Scale, Study, band, measure, settings, study, table
from mnemoscope.sweeps import Job
from mnemoscope.tasks import Gaussian

MODELS: dict[str, Callable[[Tensor], Tensor]] = {"linear": lambda z: z, "tanh": torch.tanh}
SCALINGS = ("balanced", "literal")
WINDOWS = (2, 3, 5, 7, 10, 14, 18, 22, 26, 30, 35, 40, 45, 50)
INSTANCES = 10
LAM = 0.75


def jobs(scale: Scale, seed: int) -> dict[Any, Job]:
    return {
        (model, scaling): measure(gradient_gaps, seconds=0.5, model=model, scaling=scaling, seed=seed)
        for model in MODELS
        for scaling in SCALINGS
    }


def gradient_gaps(*, model: str, scaling: str, seed: int) -> Mapping[str, Any]:
    """||grad p_T - grad p_T^k|| for each k, the mean over ten instances, and the fit of c k lambda^k to it."""
    gaps = np.zeros((INSTANCES, len(WINDOWS)))
    for number, row in enumerate(gaps):
        task = Gaussian(seed=INSTANCES * seed + number, scaling=scaling)  # type: ignore[arg-type]
        system = task.system(0)
        batch = task.batch(0, 1)
        x, y = batch.inputs[:, 0].double(), batch.targets[0].double()
        whole = _gradient(x, y, system, MODELS[model])
        row[:] = [float((whole - _gradient(x[-k:], y, system, MODELS[model])).norm()) for k in WINDOWS]
    mean = gaps.mean(0)
    rate, r2 = _fit(np.array(WINDOWS, dtype=float), mean)
    return {"lambda": rate, "r2": r2, "windows": list(WINDOWS), "gaps": mean}


def _gradient(x: Tensor, y: Tensor, system: Any, phi: Callable[[Tensor], Tensor]) -> Tensor:
    """The gradient of 1/2 (C h_T + D x_T - y)^2 in U and W, flat, through all of x (T, d), from h_0 = 0."""
    U, W = (weight.clone().requires_grad_() for weight in (system.U, system.W))
    h = x.new_zeros(len(W))
    for u in x @ U.T:
        h = phi(W @ h + u)
    loss = 0.5 * (system.predict(h, x[-1]) - y).square().sum()
    return torch.cat([gradient.flatten() for gradient in torch.autograd.grad(loss, (U, W))])


def _fit(k: np.ndarray, gaps: np.ndarray) -> tuple[float, float]:
    """lambda and r^2 of the line log(gap / k) = log c + k log lambda, where the gap is above rounding."""
    known = gaps > 1e-12 * gaps.max()
    x, y = k[known], np.log(gaps[known] / k[known])
    slope, offset = np.polyfit(x, y, 1)
    residual = y - (slope * x + offset)
    return float(np.exp(slope)), float(1 - residual.var() / y.var())


def cells(scale: Scale, done: Done) -> dict[tuple[str, str], float]:
    found = {}
    for (model, scaling), result in done.items():
        found[f"{model}, {scaling}", "lambda"] = result["lambda"]
        found[f"{model}, {scaling}", "r^2"] = result["r2"]
    return found


def charts(scale: Scale, done: Sequence[Done]) -> list[Chart]:
    lines: list[Line] = []
    for number, model in enumerate(MODELS):
        measured = {one.seed: one[model, "balanced"] for one in done}
        curves = {seed: (found["windows"], found["gaps"]) for seed, found in measured.items()}
        lines.append(band(f"{model} system", curves, number))
    k = np.array(WINDOWS, dtype=float)
    scaled = k * LAM**k * lines[0].y[0] / (k[0] * LAM ** k[0])
    lines.append(Line("k 0.75^k", k, scaled, style=Style(6, 2)))
    y = Axis("gradient's difference", log=True, switch=True)
    where = (Marker("x", 35.0, "k = 35 of Figure 1b"),)
    return [Chart("gap", "Difference of the gradients against the window", Axis("k"), y, tuple(lines), where)]


study(
    Study(
        "miller/fig1a",
        "Figure 1a",
        "the truncated model's gradient approaches the recurrent one's like k lambda^k",
        jobs,
        cells,
        charts,
        claims=(
            Claim("linear: lambda within 0.65 and 0.80", "linear, balanced", "lambda", at_least=0.65, at_most=0.80),
            Claim("linear: k lambda^k fits with r^2 of 0.99", "linear, balanced", "r^2", at_least=0.99),
            Claim(
                "tanh: lambda within 0.65 and 0.80",
                "tanh, balanced",
                "lambda",
                at_least=0.65,
                at_most=0.80,
                form="printed",
            ),
            Claim(
                "tanh: k lambda^k fits with r^2 of 0.99, but with a lambda of 0.65 or less: it forgets faster",
                check=lambda found: (
                    found["tanh, balanced", "r^2"] >= 0.99 and found["tanh, balanced", "lambda"] <= 0.65
                ),
                form="corrected",
            ),
            Claim(
                "tanh, with the printed variances, follows k 0.75^k (within 0.65 and 0.80)",
                "tanh, literal",
                "lambda",
                at_least=0.65,
                at_most=0.80,
                form="printed",
                headline=False,
            ),
            Claim(
                "tanh, with the printed variances, saturates: lambda below 0.4",
                "tanh, literal",
                "lambda",
                at_most=0.4,
                form="corrected",
                headline=False,
            ),
        ),
        published=table(
            [f"{model}, {scaling}" for model in MODELS for scaling in SCALINGS],
            ("lambda", "r^2"),
            [[LAM, None]] * 4,
            row_title="system, variances",
            note="the paper prints no fit: lambda is that of its system",
            within=0.1,
        ),
        settings=settings(
            T=(200, "paper"),
            x=("N(0, 4 I_32)", "paper", "N(0, I) where balanced"),
            y=("U[-2, 2]", "paper"),
            lam=(LAM, "paper"),
            weights=("U, W ~ N(0, 0.5)", "paper", "divided by the fan-in where balanced"),
            n=(32, "ours", "from the shapes of W and C"),
            runs=(INSTANCES, "paper"),
            w=("U and W", "ours", "the paper does not say whether C and D are trained"),
        ),
        words="The curves decay exponentially and closely match k lambda^k.",
        errata=(
            "With the printed variances tanh saturates; dividing them by the fan-in is the usable reading.",
            "Lemma 2 is an upper bound, with k lambda^(k-1).",
        ),
        would_change="The authors' variances, if they are not those that are printed.",
        surprise=lambda quick, full: (
            "The linear system follows k 0.75^k, the tanh network does not: with the printed variances it saturates "
            f"and forgets like {quick['tanh, literal', 'lambda']:.2f}^k, with variances divided by the fan-in like "
            f"{quick['tanh, balanced', 'lambda']:.2f}^k."
        ),
    )
)
