"""Weight normalization: batch normalization's form, a projected gradient, a growing norm (Nabli 2019, question 4)."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from mnemoscope.theory._statement import PAPERS, Row, statement


def normalized_weight(u: Tensor, gamma: float) -> Tensor:
    """w = gamma u / ||u||, for u (d,)."""
    return gamma * u / u.norm()


def batch_normalized(x: Tensor, u: Tensor, gamma: float, beta: float, mean: Tensor, covariance: Tensor) -> Tensor:
    """gamma (y - mu_y) / sigma_y + beta of y = u . x with the moments of x: x (..., d), mean (d,), covariance (d, d).

    For mean 0 and covariance I it is w . x + beta with w = `normalized_weight` (eq. 19). Unit variances alone are not
    enough: sigma_y^2 = u^T covariance u is ||u||^2 only for uncorrelated entries.
    """
    sigma = (u @ covariance @ u).sqrt()
    return gamma * ((x - mean) @ u) / sigma + beta


def normalized_gradient(u: Tensor, gamma: float, gradient: Tensor) -> Tensor:
    """grad_u L = s W_perp grad_w L with s = gamma/||u|| and W_perp = I - u u^T/||u||^2, from grad_w L (d,)."""
    along = (u @ gradient) / u.square().sum() * u
    return gamma / u.norm() * (gradient - along)


def norm_after_step(u: Tensor, gamma: float, gradient: Tensor, alpha: float) -> float:
    """||u - alpha grad_u L|| = sqrt(||u||^2 + ||alpha s W_perp grad_w L||^2): no step of gradient descent shrinks u."""
    return math.hypot(float(u.norm()), alpha * float(normalized_gradient(u, gamma, gradient).norm()))


@statement(
    "nabli-question-4",
    paper=PAPERS["foundations"],
    where="question 4, eq. 19",
    status="holds",
    claim="with whitened inputs weight normalization is batch normalization; its gradient is orthogonal to u, whose "
    "norm grows with every step",
)
def question_4() -> Iterator[Row]:
    generator = torch.Generator().manual_seed(0)
    u = torch.randn(6, generator=generator, dtype=torch.float64)
    g = torch.randn(6, generator=generator, dtype=torch.float64)
    x = torch.randn(50, 6, generator=generator).double()
    zero = torch.zeros(6).double()
    eye = torch.eye(6).double()
    w = normalized_weight(u, 1.7)
    same = batch_normalized(x, u, 1.7, 0.3, zero, eye) - (x @ w + 0.3)
    yield Row("whitened x: difference from batch normalization", 1e-12, float(same.abs().max()))
    correlated = eye + 0.5 * (1 - eye)
    other = batch_normalized(x, u, 1.7, 0.3, zero, correlated) - (x @ w + 0.3)
    yield Row("correlated x, unit variances: difference", 1e-2, float(other.abs().max()), ">=")
    found = normalized_gradient(u, 1.7, g)
    yield Row("|u . grad_u L|", 1e-12, abs(float(u @ found)))
    yield Row("difference from torch's weight_norm", 1e-12, float((found - _torch_gradient(u, 1.7, g)).norm()))
    for alpha in (0.1, 1.0):
        stepped = float((u - alpha * found).norm())
        yield Row(f"alpha={alpha}: ||u|| after a step", norm_after_step(u, 1.7, g, alpha), stepped, "==")
        yield Row(f"alpha={alpha}: ||u|| grows", float(u.norm()), stepped, ">=")


def _torch_gradient(u: Tensor, gamma: float, gradient: Tensor) -> Tensor:
    """What torch.nn.utils.parametrizations.weight_norm gives u for a loss with the gradient `gradient` in w."""
    layer = parametrizations.weight_norm(nn.Linear(len(u), 1, bias=False, dtype=u.dtype))
    magnitude = layer.parametrizations.weight.original0
    direction = layer.parametrizations.weight.original1
    with torch.no_grad():
        magnitude.fill_(gamma)
        direction.copy_(u[None])
    return torch.autograd.grad((layer.weight * gradient).sum(), direction)[0][0]
