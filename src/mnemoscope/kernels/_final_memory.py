"""The memory that a self-attentive run leaves behind, and its backward pass.

Names are those of `_operators`: h (T, B, n), U_a (n, n), values0 and keys0 (B, m, n). slots (B, m) names the
state in each slot by its index, carried states first, then new ones, -1 for an empty slot; None under full
attention, which keeps every state.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class FinalMemoryGradients(NamedTuple):
    """dh (T, B, n), dU_a (n, n), dvalues0 and dkeys0 (B, m, n)."""

    dh: Tensor
    dU_a: Tensor
    dvalues0: Tensor
    dkeys0: Tensor


def final_memory(h: Tensor, U_a: Tensor, values0: Tensor, keys0: Tensor, slots: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return values and keys after the last step. An empty slot keeps what it held."""
    if slots is None:
        values = h.transpose(0, 1)  # (B, T, n)
        keys = (h @ U_a.T).transpose(0, 1)
        return torch.cat([values0, values], 1), torch.cat([keys0, keys], 1)
    carried, old, new = _locate(slots)
    new_states = h.flatten(0, 1)[new]  # (B, m, n)
    values = torch.where(carried, values0.gather(1, old.expand_as(values0)), new_states)
    keys = torch.where(carried, keys0.gather(1, old.expand_as(keys0)), new_states @ U_a.T)
    return values, keys


def final_origin(slots: Tensor, origin0: Tensor, clock0: Tensor) -> Tensor:
    """Return the step at which each state was made, -1 for an empty slot (B, m); origin0 (B, m), clock0 (B,)."""
    m = slots.shape[1]
    if not m:
        return origin0.clone()
    carried = origin0.gather(1, slots.clamp(0, m - 1))
    made = slots + (clock0[:, None] - m)
    return torch.where(slots < m, carried, made).masked_fill_(slots < 0, -1)


def final_memory_backward(
    dvalues: Tensor | None,
    dkeys: Tensor | None,
    h: Tensor,
    U_a: Tensor,
    values0: Tensor,
    slots: Tensor | None,
    lengths: Tensor | None,
) -> FinalMemoryGradients:
    """Return the gradients of `final_memory`'s arguments from those of its results; differentiable itself.

    It uses only operations that torch can batch (`is_grads_batched`): no flatten, no einsum, no slices.
    """
    T, B, n = h.shape
    m = values0.shape[1] if slots is None else slots.shape[1]
    shape = (B, m + T, n) if slots is None else (B, m, n)
    dvalues = h.new_zeros(shape) if dvalues is None else dvalues
    dkeys = h.new_zeros(shape) if dkeys is None else dkeys

    # Full attention: the carried slots, then one slot for each step.
    if slots is None:
        past_length = torch.zeros(B, T, 1, dtype=torch.bool, device=h.device)
        if lengths is not None:
            past_length = (torch.arange(T, device=h.device) >= lengths[:, None])[..., None]
        dvalues_new = dvalues.narrow(1, m, T).masked_fill(past_length, 0)
        dkeys_new = dkeys.narrow(1, m, T).masked_fill(past_length, 0)
        return FinalMemoryGradients(
            dh=(dvalues_new + dkeys_new @ U_a).transpose(0, 1),
            dU_a=_sum_of_outer_products(dkeys_new, h.transpose(0, 1)),
            dvalues0=dvalues.narrow(1, 0, m),
            dkeys0=dkeys.narrow(1, 0, m),
        )

    # Slots: a new state's gradient goes to its step, a carried state's to the slot it came from.
    carried, old, new = _locate(slots)
    dkeys_new = dkeys.masked_fill(carried, 0)
    dvalues_new = dvalues.masked_fill(carried, 0) + dkeys_new @ U_a
    dh = h.new_zeros(T * B, n).index_add(0, new.reshape(-1), dvalues_new.reshape(-1, n)).view(T, B, n)

    def to_carried(gradient: Tensor) -> Tensor:
        if not values0.numel():  # nothing was carried in
            return torch.zeros_like(values0)
        return torch.zeros_like(values0).scatter_add(1, old.expand_as(values0), gradient.masked_fill(~carried, 0))

    return FinalMemoryGradients(
        dh=dh,
        dU_a=_sum_of_outer_products(dkeys_new, h.reshape(T * B, n)[new]),
        dvalues0=to_carried(dvalues),
        dkeys0=to_carried(dkeys),
    )


def _sum_of_outer_products(left: Tensor, right: Tensor) -> Tensor:
    """Return the sum of left_i right_i^T over all rows i: (..., n) and (..., n) -> (n, n)."""
    return left.reshape(-1, left.shape[-1]).T @ right.reshape(-1, right.shape[-1])


def _locate(slots: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return which slots hold carried states (B, m, 1), from which slot each came (B, m, 1), and the other states'
    rows.

    The rows (B, m) are those of h as (T * B, n).
    """
    B, m = slots.shape
    held = torch.where(slots < 0, torch.arange(m, device=slots.device), slots)
    batch = torch.arange(B, device=slots.device)[:, None]
    carried = (held < m)[..., None]
    old = held.clamp(max=m - 1)[..., None]
    new = (held - m).clamp(min=0) * B + batch
    return carried, old, new
