"""The memory that a walk with attention leaves behind, and the way back from it to the states that it holds.

Names are those of `ops.py`: h (T, B, n), U_a (n, n), values0 and keys0 (B, m, n), and slots (B, m), which name what is
held as indices into [carried | new], -1 an empty slot; None under full attention, which holds everything.
"""

from __future__ import annotations

import torch
from torch import Tensor


def remembered(h: Tensor, U_a: Tensor, values0: Tensor, keys0: Tensor, slots: Tensor | None) -> tuple[Tensor, Tensor]:
    """Values and keys after the last step. An empty slot keeps what stood there."""
    if slots is None:
        values, keys = h.transpose(0, 1), (h @ U_a.T).transpose(0, 1)  # (B, T, n)
        return torch.cat([values0, values], 1), torch.cat([keys0, keys], 1)
    carried, old, new = _places(slots)
    made = h.flatten(0, 1)[new]  # (B, m, n)
    values = torch.where(carried, values0.gather(1, old.expand_as(values0)), made)
    return values, torch.where(carried, keys0.gather(1, old.expand_as(keys0)), made @ U_a.T)


def through_memory(
    dvalues: Tensor | None, dkeys: Tensor | None, h: Tensor, U_a: Tensor, values0: Tensor, keys0: Tensor,
    slots: Tensor | None, lengths: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """From the gradients of both to those of h, U_a, values0 and keys0; differentiable itself.

    In operations that torch knows how to batch (`is_grads_batched`), which flatten, einsum and slices are not among.
    """
    (T, B, n), m = h.shape, values0.shape[1]
    size = values0.shape if slots is not None else (B, m + T, n)
    dvalues = h.new_zeros(size) if dvalues is None else dvalues
    dkeys = h.new_zeros(size) if dkeys is None else dkeys
    if slots is None:
        ended = torch.zeros(B, T, 1, dtype=torch.bool, device=h.device)
        if lengths is not None:  # past a row's length there is no state
            ended = (torch.arange(T, device=h.device) >= lengths[:, None])[..., None]
        by_value, by_key = (d.narrow(1, m, T).masked_fill(ended, 0) for d in (dvalues, dkeys))
        dh, made = (by_value + by_key @ U_a).transpose(0, 1), h.transpose(0, 1)
        return dh, _summed(by_key, made), dvalues.narrow(1, 0, m), dkeys.narrow(1, 0, m)
    carried, old, new = _places(slots)
    by_key, made = dkeys.masked_fill(carried, 0), h.reshape(T * B, n)[new]
    by_value = dvalues.masked_fill(carried, 0) + by_key @ U_a
    dh = h.new_zeros(T * B, n).index_add(0, new.reshape(-1), by_value.reshape(-1, n)).view(T, B, n)

    def before(d: Tensor) -> Tensor:
        return torch.zeros_like(values0).scatter_add(1, old.expand_as(values0), d.masked_fill(~carried, 0))

    return dh, _summed(by_key, made), before(dvalues), before(dkeys)


def _summed(left: Tensor, right: Tensor) -> Tensor:
    """The sum of left_i right_i^T over all rows i: (..., n) and (..., n) -> (n, n)."""
    return left.reshape(-1, left.shape[-1]).T @ right.reshape(-1, right.shape[-1])


def _places(slots: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Which slots hold carried states (B, m, 1), whence (B, m, 1), and in which rows of (T * B, n) the others lie."""
    B, m = slots.shape
    held = torch.where(slots < 0, torch.arange(m, device=slots.device), slots)
    batch = torch.arange(B, device=slots.device)[:, None]
    return (held < m)[..., None], held.clamp(max=m - 1)[..., None], (held - m).clamp(min=0) * B + batch
