"""Gradients of a bidirectional recurrence (Nabli 2019, question 6).

h^f_t = sigma(W^f x_t + U^f h^f_{t-1}),  h^b_t = sigma(W^b x_t + U^b h^b_{t+1}),  o_t = V^f h^f_t + V^b h^b_t.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from mnemoscope.theory._statement import PAPERS, Row, statement


class Direction(NamedTuple):
    """The weights of one direction: W (n, d), U (n, n), V (m, n)."""

    W: Tensor
    U: Tensor
    V: Tensor


def computational_graph(steps: int) -> list[tuple[str, str]]:
    """The edges (from, to) among x_t, f_t, b_t (the two states) and o_t, t = 1 .. steps (6.1)."""
    edges = [(f"x{t}", f"{d}{t}") for t in range(1, steps + 1) for d in "fb"]
    edges += [(f"{d}{t}", f"o{t}") for t in range(1, steps + 1) for d in "fb"]
    edges += [(f"f{t}", f"f{t + 1}") for t in range(1, steps)]
    return edges + [(f"b{t + 1}", f"b{t}") for t in range(1, steps)]


def states(x: Tensor, weights: Direction) -> Tensor:
    """h_1 .. h_T of one direction, run forward over x (T, d) from zero: (T, n)."""
    h = x.new_zeros(len(weights.U))
    visited = []
    for x_t in x.unbind(0):
        h = torch.sigmoid(weights.W @ x_t + weights.U @ h)
        visited.append(h)
    return torch.stack(visited)


def outputs(x: Tensor, forward: Direction, backward: Direction) -> tuple[Tensor, Tensor, Tensor]:
    """o, h^f and h^b over x (T, d): (T, m), (T, n), (T, n)."""
    h_f = states(x, forward)
    h_b = states(x.flip(0), backward).flip(0)
    return h_f @ forward.V.T + h_b @ backward.V.T, h_f, h_b


def bidirectional_gradients(h: Tensor, weights: Direction, gradient: Tensor, *, reverse: bool = False) -> Tensor:
    """grad_{h_t} L for every t from grad_{o_t} L (T, m): (T, n) (eqs 31 and 32, with the direct term they lack).

    grad_{h_t} L = V^T grad_{o_t} L + U^T diag(h_s (1 - h_s)) grad_{h_s} L with s = t + 1 for the forward states and
    s = t - 1 for the backward ones (``reverse=True``). Without V^T grad_{o_t} L the loss never enters.
    """
    if reverse:
        return bidirectional_gradients(h.flip(0), weights, gradient.flip(0)).flip(0)
    backward = [gradient[-1] @ weights.V]  # from the last step to the first
    for t in reversed(range(len(h) - 1)):
        through_state = (h[t + 1] * (1 - h[t + 1]) * backward[-1]) @ weights.U
        backward.append(gradient[t] @ weights.V + through_state)
    return torch.stack(backward[::-1])


@statement(
    "nabli-question-6",
    paper=PAPERS["foundations"],
    where="question 6, eqs 26-32",
    status="corrected",
    claim="gradients of the states go from step to step by U^T diag(h (1 - h)), and each step adds V^T grad_{o_t} L",
    correction="Eqs 31 and 32 lack the direct term V^T grad_{o_t} L, through which the loss enters at all; as printed, "
    "with the gradient at the last step known, they are right only where the loss reads the last output alone.",
)
def question_6() -> Iterator[Row]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(9, 3, generator=generator).double()
    y = torch.randn(9, 2, generator=generator).double()
    shapes = ((4, 3), (4, 4), (2, 4))
    forward, backward = (Direction(*(torch.randn(s, generator=generator).double() for s in shapes)) for _ in range(2))
    o, h_f, h_b = outputs(x, forward, backward)
    slope = o - y  # of 1/2 sum ||o_t - y_t||^2
    for name, weights, h, reverse in (("forward", forward, h_f, False), ("backward", backward, h_b, True)):
        ours = bidirectional_gradients(h, weights, slope, reverse=reverse)
        exact = by_backpropagation(x, y, forward, backward, reverse)
        yield Row(f"{name}: difference from backpropagation", 1e-12, float((ours - exact).norm() / exact.norm()))
        end = 0 if reverse else -1
        last = torch.zeros_like(slope)
        last[end] = slope[end]
        printed = bidirectional_gradients(h, weights, last, reverse=reverse)
        gap = float((printed - exact).norm() / exact.norm())
        yield Row(f"{name}: difference without the direct term", 0.1, gap, ">=")


def by_backpropagation(x: Tensor, y: Tensor, forward: Direction, backward: Direction, reverse: bool) -> Tensor:
    """d/dh_t of 1/2 sum ||o_t - y_t||^2 for the states of one direction, each moved by a zero that is a leaf."""
    if reverse:
        return by_backpropagation(x.flip(0), y.flip(0), backward, forward, reverse=False).flip(0)
    moves = torch.zeros(len(x), len(forward.U), dtype=x.dtype, requires_grad=True)
    h = x.new_zeros(len(forward.U))
    visited = []
    for x_t, move in zip(x, moves, strict=True):
        h = torch.sigmoid(forward.W @ x_t + forward.U @ h) + move
        visited.append(h)
    opposite = states(x.flip(0), backward).flip(0)
    o = torch.stack(visited) @ forward.V.T + opposite @ backward.V.T
    (exact,) = torch.autograd.grad(0.5 * (o - y).square().sum(), moves)
    return exact
