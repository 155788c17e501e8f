"""Gradients of weights and biases, from those of the products that a backward loop returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from mnemoscope.kernels._operator import Projection


class WeightGradients(NamedTuple):
    """dV (H, n) of the state's weights, dU (G, E) of the inputs', and those of the biases that there are.

    db_ih (G) is that of b_ih. db_hh (H) is the sum of what dV is made of; b_hh may be of its first rows alone. dU_a
    (n, n) is that of attention's keys, dv (n) that of its scores.
    """

    dV: Tensor
    dU: Tensor
    db_ih: Tensor | None
    db_hh: Tensor | None
    dU_a: Tensor | None
    dv: Tensor | None


weight_gradient_backends: dict[str, Callable[..., WeightGradients | None]] = {}
"""By the type of a device: what makes the gradients of all weights of a projecting run (`SavedRun.all_at_once`)."""


def weight_gradient(dz: Tensor, first: Tensor, states: Tensor) -> Tensor:
    """Return sum_t dz_t^T state_{t-1}; dz (T, B, G), first (B, n) or without elements, states (T, B, n).

    The shifted states are not copied. On the CPU the product is made as its transpose, which BLAS does faster for tall
    matrices; elsewhere torch would copy that into the weight's own layout.
    """
    has_first = first.numel() > 0
    steps, batch, _ = dz.shape
    if steps == 1 and not has_first:
        return dz.new_zeros(dz.shape[2], states.shape[2])
    if steps == 1:
        return _product(dz[0], first)
    later, earlier = rows(dz)[batch:], rows(states)[:-batch]
    if not has_first:
        return _product(later, earlier)
    if dz.is_cpu:
        return torch.addmm(first.T @ dz[0], earlier.T, later).T
    return torch.addmm(dz[0].T @ first, later.T, earlier)


def _product(left: Tensor, right: Tensor) -> Tensor:
    """Return left^T right for tall matrices."""
    return torch.mm(right.t(), left).t() if left.is_cpu else torch.mm(left.t(), right)


def rows(t: Tensor) -> Tensor:
    """Return all rows of a tensor of three axes below each other; torch cannot batch a flatten (`is_grads_batched`)."""
    first, second, width = t.shape
    return t.reshape(first * second, width)


def projection_gradients(
    projection: Projection, dxp: Tensor | None, needs: Sequence[bool], made: WeightGradients | None
) -> tuple[Tensor | None, ...]:
    """Return the gradients of a projection's fields from that of xp; `needs` says which are asked for.

    `made` are those of the weights that were made with V's.
    """
    if dxp is None:
        return (None, None, None, None)
    x, U, _, b_hh = projection
    needs_dx, needs_dU, needs_b_ih, needs_b_hh = needs[:4]
    dx = dxp @ U if needs_dx else None
    if made is not None:
        db_hh = made.db_hh
        if b_hh is not None and db_hh is not None and db_hh.shape[0] > b_hh.shape[0]:
            db_hh = db_hh[: b_hh.shape[0]]
        return dx, made.dU, made.db_ih, db_hh
    flat = rows(dxp)
    dU = torch.mm(flat.t(), rows(x)) if needs_dU else None
    if not needs_b_ih and not needs_b_hh:
        return dx, dU, None, None
    if needs_b_ih and needs_b_hh and b_hh is not None and b_hh.shape[0] == flat.shape[1]:
        # Two tensors by one operation: of one for both, autograd would make a copy.
        db, db_hh = flat.expand(2, *flat.shape).sum(1).unbind(0)
        return dx, dU, db, db_hh
    db = flat.sum(0)
    db_hh = db if b_hh is None else db[: b_hh.shape[0]]
    return dx, dU, db if needs_b_ih else None, db_hh if needs_b_hh else None
