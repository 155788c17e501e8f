"""Question 2: dropout in linear regression is ridge regression with a weight for each feature."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from mnemoscope.report import Axis, Chart, Points, Style
from mnemoscope.studies import Claim, Done, Scale, Study, band, measure, settings, study, table
from mnemoscope.sweeps import Job
from mnemoscope.theory.foundations import dropout_minimizer, expected_loss, ridge_minimizer

KEEPS = (0.2, 0.5, 0.9)
MASKS = 20_000


def jobs(scale: Scale, seed: int) -> dict[Any, Job]:
    return {"dropout": measure(sampled_losses, seconds=3, seed=seed)}


def sampled_losses(*, seed: int) -> Mapping[str, Any]:
    """The loss over random masks beside its expectation, the slope at the minimum, and what scaling a feature does."""
    generator = torch.Generator().manual_seed(seed)
    X = torch.randn(12, 4, generator=generator, dtype=torch.float64)
    y, w = (torch.randn(size, generator=generator).double() for size in (12, 4))
    found: dict[str, Any] = {"sampled": [], "expected": [], "errors": [], "slopes": []}
    for keep in KEEPS:
        mask = torch.rand(MASKS, *X.shape, generator=generator, dtype=X.dtype) < keep
        losses = ((mask * X) @ w - y).square().sum(1)
        exact = float(expected_loss(X, y, w, keep))
        best = dropout_minimizer(X, y, keep).requires_grad_()
        (slope,) = torch.autograd.grad(expected_loss(X, y, best, keep), best)
        found["sampled"].append(float(losses.mean()))
        found["expected"].append(exact)
        found["errors"].append(abs(float(losses.mean()) - exact) / (float(losses.std()) / MASKS**0.5))
        found["slopes"].append(float(slope.norm()))
    scaled = X * torch.tensor([10.0, 1.0, 1.0, 1.0], dtype=torch.float64)
    for name, solve in (("dropout moves", dropout_minimizer), ("ridge moves", ridge_minimizer)):
        found[name] = float((X @ solve(X, y, 0.5) - scaled @ solve(scaled, y, 0.5)).norm())
    grid = torch.linspace(0.05, 1, 40).tolist()
    return {**found, "grid": grid, "curve": [float(expected_loss(X, y, w, keep)) for keep in grid]}


def cells(scale: Scale, done: Done) -> dict[tuple[str, str], float]:
    result = done["dropout"]
    values = {}
    for number, keep in enumerate(KEEPS):
        values[f"p = {keep}", "distance in standard errors"] = result["errors"][number]
        values[f"p = {keep}", "slope at the minimum"] = result["slopes"][number]
    values["a feature times ten", "dropout's predictions move by"] = result["dropout moves"]
    values["a feature times ten", "ridge's predictions move by"] = result["ridge moves"]
    return values


def charts(scale: Scale, done: Sequence[Done]) -> list[Chart]:
    results = [one["dropout"] for one in done]
    line = band("expectation", {one.seed: (one["dropout"]["grid"], one["dropout"]["curve"]) for one in done})
    keeps = np.tile(KEEPS, len(results))
    points = Points("20,000 masks", keeps, np.concatenate([one["sampled"] for one in results]), Style(1, 1))
    return [Chart("loss", "Loss under dropout", Axis("probability to keep"), Axis("loss"), (line, points))]


study(
    Study(
        "nabli/q2",
        "Question 2",
        "dropout on the inputs of linear regression is, in expectation, weighted ridge regression",
        jobs,
        cells,
        charts,
        claims=(
            Claim("the loss over 20,000 masks is its expectation", column="distance in standard errors", at_most=5.0),
            Claim("the closed form is the minimum", column="slope at the minimum", at_most=1e-10),
            Claim(
                "Gamma weights the columns: scaling a feature changes nothing under dropout",
                column="dropout's predictions move by",
                at_most=1e-10,
                form="corrected",
            ),
            Claim(
                "but scaling a feature changes ridge's predictions",
                column="ridge's predictions move by",
                at_least=1e-3,
                form="corrected",
            ),
        ),
        published=table(
            [f"p = {keep}" for keep in KEEPS],
            ("distance in standard errors", "slope at the minimum"),
            [[0.0, 0.0]] * 3,
            note="what the text proves",
        ),
        settings=settings(X=("12 x 4, Gaussian", "ours"), masks=(MASKS, "ours")),
        words="Dropout corresponds, in expectation, to a weighted ridge regression.",
        errata=("The text says that Gamma weights the rows of X; it weights its columns.",),
    )
)
