"""Dropout in linear regression is ridge regression with a weight for each feature (Nabli 2019, question 2)."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from mnemoscope.errors import MnemoscopeError
from mnemoscope.theory._statement import PAPERS, Row, statement


def column_norms(X: Tensor) -> Tensor:
    """The diagonal of Gamma, Gamma^2 = diag(X^T X): the length of each feature's *column* (d,) of X (n, d)."""
    return torch.linalg.vector_norm(X, dim=0)


def expected_loss(X: Tensor, y: Tensor, w: Tensor, keep: float) -> Tensor:
    """E_R ||(R * X) w - y||^2 over masks R_ij ~ Bernoulli(keep): ||y - p X w||^2 + p (1 - p) ||Gamma w||^2."""
    _check(keep)
    fit = (y - keep * X @ w).square().sum()
    return fit + keep * (1 - keep) * (column_norms(X) * w).square().sum()


def dropout_minimizer(X: Tensor, y: Tensor, keep: float) -> Tensor:
    """The w that minimises `expected_loss`: p w = (X^T X + (1 - p)/p Gamma^2)^-1 X^T y."""
    _check(keep)
    ridge = (1 - keep) / keep * column_norms(X).square().diag()
    return torch.linalg.solve(X.T @ X + ridge, X.T @ y) / keep


def ridge_minimizer(X: Tensor, y: Tensor, strength: float) -> Tensor:
    """The w that minimises ||y - X w||^2 + strength ||w||^2: (X^T X + strength I)^-1 X^T y."""
    return torch.linalg.solve(X.T @ X + strength * torch.eye(X.shape[1], dtype=X.dtype), X.T @ y)


def sampled_loss(X: Tensor, y: Tensor, w: Tensor, keep: float, masks: int, generator: torch.Generator) -> Tensor:
    """||(R * X) w - y||^2 for `masks` random masks R: (masks,)."""
    R = torch.rand(masks, *X.shape, generator=generator, dtype=X.dtype) < keep
    return ((R * X) @ w - y).square().sum(1)


def _check(keep: float) -> None:
    if not 0 < keep <= 1:
        raise MnemoscopeError(f"keep is the probability that an entry stays, 0 < keep <= 1; got {keep}")


@statement(
    "nabli-question-2",
    paper=PAPERS["foundations"],
    where="question 2, eqs 13-16",
    status="corrected",
    claim="dropout on the inputs of linear regression is, in expectation, ridge regression weighted by Gamma",
    correction="The text says that Gamma weights the rows of X; it weights its columns. Scaling a feature leaves the "
    "predictions under dropout as they are, and changes them under plain ridge.",
)
def question_2() -> Iterator[Row]:
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(12, 4, generator=generator, dtype=torch.float64)
    y = torch.randn(12, generator=generator).double()
    w = torch.randn(4, generator=generator).double()
    for keep in (0.2, 0.5, 0.9):
        losses = sampled_loss(X, y, w, keep, 20000, generator)
        error = float(losses.std()) / 20000**0.5
        off = abs(float(losses.mean() - expected_loss(X, y, w, keep)))
        yield Row(f"p={keep}: loss over 20,000 masks, from its expectation, in 5 errors", 5 * error, off)
        best = dropout_minimizer(X, y, keep).requires_grad_()
        (slope,) = torch.autograd.grad(expected_loss(X, y, best, keep), best)
        yield Row(f"p={keep}: gradient at the closed-form minimum", 1e-10, float(slope.norm()))
    best = dropout_minimizer(X, y, 1.0)
    plain = torch.linalg.lstsq(X, y[:, None]).solution[:, 0]
    yield Row("p=1: distance from least squares", 1e-10, float((best - plain).norm()))
    S = torch.tensor([10.0, 1.0, 1.0, 1.0], dtype=torch.float64)
    moved = [X @ solve(X, y, 0.5) - (X * S) @ solve(X * S, y, 0.5) for solve in (dropout_minimizer, ridge_minimizer)]
    yield Row("a feature times ten: change of dropout's predictions", 1e-10, float(moved[0].norm()))
    yield Row("a feature times ten: change of ridge's predictions", 1e-3, float(moved[1].norm()), ">=")
