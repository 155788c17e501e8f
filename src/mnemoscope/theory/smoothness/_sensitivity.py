"""Derivatives carried forward in time (Ribeiro et al. 2019, appendix B)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import jacrev

from mnemoscope.theory._statement import PAPERS, Row, statement

Map = Callable[[Tensor, Tensor, Tensor], Tensor]
"""f or g: (x (n,), u (d,), theta (p,)) -> a vector."""


class Run(NamedTuple):
    """A simulation of N + 1 steps with the derivatives of everything in theta."""

    states: Tensor  # x_0 .. x_N: (N + 1, n)
    outputs: Tensor  # y_0 .. y_N: (N + 1, m)
    D: Tensor  # dx_t/dtheta: (N + 1, n, p)
    J: Tensor  # dy_t/dtheta: (N + 1, m, p)


def simulate(f: Map, g: Map, theta: Tensor, x: Tensor, inputs: Tensor) -> tuple[Tensor, Tensor]:
    """x_0 .. x_N and y_0 .. y_N of x_{t+1} = f(x_t, u_t; theta), y_t = g(x_t, u_t; theta) (eq. 1), u (N + 1, d)."""
    states = []
    outputs = []
    for u in inputs.unbind(0):
        states.append(x)
        outputs.append(g(x, u, theta))
        x = f(x, u, theta)
    return torch.stack(states), torch.stack(outputs)


def sensitivities(f: Map, g: Map, theta: Tensor, x: Tensor, inputs: Tensor) -> Run:
    """The states, the outputs and D_{t+1} = A_t D_t + B_t, J_t = C_t D_t + F_t with D_0 = 0 (eq. 12).

    No graph is kept for a backward pass; the work of a step grows with the number of parameters instead.
    """
    D = x.new_zeros(len(x), len(theta))
    found = []
    for u in inputs.unbind(0):
        C, F = jacrev(g, argnums=(0, 2))(x, u, theta)
        found.append((x, g(x, u, theta), D, C @ D + F))
        A, B = jacrev(f, argnums=(0, 2))(x, u, theta)
        x = f(x, u, theta)
        D = A @ D + B
    return Run(*map(torch.stack, zip(*found, strict=True)))


def unrolled(A: Tensor, B: Tensor, C: Tensor, F: Tensor) -> Tensor:
    """J_t = C_t sum_{l=0}^{t-1} A_{t-1} ... A_{l+1} B_l + F_t (eq. 22, corrected) from Jacobians of steps 0 .. N.

    The text sums l = 1 .. t over A_t ... A_{l+1} B_l, which is D_{t+1} without its first term.
    """
    result = []
    for t in range(len(A)):
        total = torch.zeros_like(B[0])
        for l in range(t):
            term = B[l]
            for j in range(l + 1, t):
                term = A[j] @ term
            total = total + term
        result.append(C[t] @ total + F[t])
    return torch.stack(result)


def cost_gradient(J: Tensor, slopes: Tensor) -> Tensor:
    """grad V = 1/N sum_t J_t^T l'(y_t) (eq. 13, with the transpose it needs): J (N, m, p), slopes (N, m) -> (p,)."""
    return torch.einsum("tmp,tm->p", J, slopes) / len(J)


def tanh_network(n: int, d: int, m: int) -> tuple[Map, Map, int]:
    """f, g and the number of parameters of a tanh RNN with a linear read-out, both in theta."""
    sizes = [n * n, n * d, m * n]

    def f(x: Tensor, u: Tensor, theta: Tensor) -> Tensor:
        W, U, _ = theta.split(sizes)
        return torch.tanh(W.view(n, n) @ x + U.view(n, d) @ u)

    def g(x: Tensor, u: Tensor, theta: Tensor) -> Tensor:
        return theta.split(sizes)[2].view(m, n) @ x

    return f, g, sum(sizes)


@statement(
    "ribeiro-sensitivities",
    paper=PAPERS["smoothness"],
    where="appendix B, eqs 12, 13, 22",
    status="corrected",
    claim="derivatives carried forward by D_t and J_t equal backpropagation",
    correction="Eq. 13 needs J_t^T, as J_t is dy_t/dtheta. Eq. 22 is off by one: B_t belongs to D_{t+1}, and B_0 is "
    "left out of the printed sum.",
)
def forward_equals_backward() -> Iterator[Row]:
    generator = torch.Generator().manual_seed(0)
    f, g, size = tanh_network(4, 2, 3)
    theta = torch.randn(size, generator=generator, dtype=torch.float64).requires_grad_()
    x = torch.randn(4, generator=generator).double()
    u = torch.randn(13, 2, generator=generator).double()
    target = torch.randn(13, 3, generator=generator).double()
    _, outputs = simulate(f, g, theta, x, u)
    (backward,) = torch.autograd.grad((outputs - target)[1:].square().sum(1).mean(), theta)
    run = sensitivities(f, g, theta.detach(), x, u)
    slopes = 2 * (run.outputs - target)
    gap = float((cost_gradient(run.J[1:], slopes[1:]) - backward).norm() / backward.norm())
    yield Row("tanh RNN, n=4, N=12: relative difference of the gradients", 1e-12, gap)
    yield from _printed_sum(run, f, g, theta.detach(), u)


def _printed_sum(run: Run, f: Map, g: Map, theta: Tensor, u: Tensor) -> Iterator[Row]:
    (A, B), (C, F) = (torch.vmap(jacrev(m, (0, 2)), (0, 0, None))(run.states, u, theta) for m in (f, g))
    yield Row("eq. 22, corrected: difference", 1e-12, float((unrolled(A, B, C, F) - run.J).norm() / run.J.norm()))
    printed = C[1] @ B[1] + F[1]  # the sum from l = 1 to t = 1
    yield Row("eq. 22 as printed, t=1: difference", 1e-2, float((printed - run.J[1]).norm() / run.J[1].norm()), ">=")
