"""Momentum and running averages of gradients are the same updates (Nabli 2019, question 3)."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from mnemoscope.errors import MnemoscopeError
from mnemoscope.theory._statement import PAPERS, Row, statement


def momentum_updates(gradients: Tensor, alpha: float, epsilon: float) -> Tensor:
    """The steps -v_t with v_t = alpha v_{t-1} + epsilon g_t, v_0 = 0 (eq. 17): gradients (T, ...) -> (T, ...)."""
    return -_accumulate(gradients, alpha, epsilon)


def running_average_updates(gradients: Tensor, beta: float, delta: float) -> Tensor:
    """The steps -delta v_t with v_t = beta v_{t-1} + (1 - beta) g_t, v_0 = 0 (eq. 18): (T, ...) -> (T, ...)."""
    return -delta * _accumulate(gradients, beta, 1 - beta)


def as_running_average(alpha: float, epsilon: float) -> tuple[float, float]:
    """(beta, delta) = (alpha, epsilon / (1 - alpha)), whose running average makes the steps of momentum."""
    if not 0 <= alpha < 1:
        raise MnemoscopeError(f"a running average has 0 <= alpha < 1; got {alpha}")
    return alpha, epsilon / (1 - alpha)


def running_average(gradients: Tensor, beta: float) -> Tensor:
    """v_1 .. v_T unrolled: v_n = (1 - beta) sum_{t<=n} beta^(n-t) g_t, (T, ...) -> (T, ...)."""
    t = torch.arange(len(gradients), device=gradients.device)
    weights = (1 - beta) * torch.tensor(beta, dtype=gradients.dtype) ** (t[:, None] - t[None, :]).clamp(min=0)
    return torch.tensordot(weights.tril(), gradients, 1)


def bias_corrected(averages: Tensor, beta: float) -> Tensor:
    """v_n / (1 - beta^n) for n = 1 .. T: where gradients are stationary its expectation is theirs."""
    n = torch.arange(1, len(averages) + 1, dtype=averages.dtype, device=averages.device)
    return averages / (1 - beta**n).view(-1, *[1] * (averages.dim() - 1))


def _accumulate(gradients: Tensor, decay: float, weight: float) -> Tensor:
    v = torch.zeros_like(gradients[0])
    averages = []
    for g in gradients.unbind(0):
        v = decay * v + weight * g
        averages.append(v)
    return torch.stack(averages)


@statement(
    "nabli-question-3",
    paper=PAPERS["foundations"],
    where="question 3, eqs 17-18",
    status="holds",
    claim="momentum (alpha, epsilon) is a running average with beta = alpha and delta = epsilon/(1 - alpha); divided "
    "by 1 - beta^n the average is unbiased",
)
def question_3() -> Iterator[Row]:
    g = torch.randn(30, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for alpha, epsilon in ((0.0, 0.1), (0.9, 0.1), (0.99, 3.0)):
        ours = momentum_updates(g, alpha, epsilon)
        averaged = running_average_updates(g, *as_running_average(alpha, epsilon))
        yield Row(f"alpha={alpha}: difference of the steps", 1e-12, float((ours - averaged).abs().max()))
        gap = float((ours - _sgd(g, alpha, epsilon)).abs().max())
        yield Row(f"alpha={alpha}: difference from torch.optim.SGD", 1e-12, gap)
    unrolled = running_average(g, 0.9) + running_average_updates(g, 0.9, 1.0)
    yield Row("beta=0.9: difference of the unrolled average", 1e-12, float(unrolled.abs().max()))
    constant = bias_corrected(running_average(torch.ones(30, 1, dtype=torch.float64), 0.9), 0.9)
    yield Row("constant gradient 1: corrected average, from 1", 1e-12, float((constant - 1).abs().max()))
    first = float(running_average(torch.ones(1, 1, dtype=torch.float64), 0.9)[0])
    yield Row("constant gradient 1: first average without correction", 1 - 0.9, first, "==")


def _sgd(gradients: Tensor, momentum: float, rate: float) -> Tensor:
    """The steps that torch's SGD makes for given gradients."""
    theta = torch.zeros_like(gradients[0]).requires_grad_()
    optimizer = torch.optim.SGD([theta], lr=rate, momentum=momentum)
    positions = [torch.zeros_like(gradients[0])]
    for g in gradients.unbind(0):
        theta.grad = g.clone()
        optimizer.step()
        positions.append(theta.detach().clone())
    return torch.stack(positions).diff(dim=0)
