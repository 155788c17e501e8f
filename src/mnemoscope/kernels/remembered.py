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
    carried, old, new = _places(slots, h)
    made = h.flatten(0, 1)[new]  # (B, m, n)
    values = torch.where(carried, values0.gather(1, old.expand_as(values0)), made)
    return values, torch.where(carried, keys0.gather(1, old.expand_as(keys0)), made @ U_a.T)


def through_memory(
    dvalues: Tensor | None, dkeys: Tensor | None, h: Tensor, U_a: Tensor, values0: Tensor, keys0: Tensor,
    slots: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """From the gradients of both to those of h, U_a, values0 and keys0; differentiable itself."""
    (T, B, n), m = h.shape, values0.shape[1]
    size = values0.shape if slots is not None else (B, m + T, n)
    dvalues = h.new_zeros(size) if dvalues is None else dvalues
    dkeys = h.new_zeros(size) if dkeys is None else dkeys
    if slots is None:
        by_key, made = dkeys[:, m:], h.transpose(0, 1)
        dh = (dvalues[:, m:] + by_key @ U_a).transpose(0, 1)
        return dh, torch.einsum("bti,btj->ij", by_key, made), dvalues[:, :m], dkeys[:, :m]
    carried, old, new = _places(slots, h)
    by_key, made = dkeys.masked_fill(carried, 0), h.flatten(0, 1)[new]
    by_value = dvalues.masked_fill(carried, 0) + by_key @ U_a
    dh = torch.zeros_like(h).flatten(0, 1).index_add(0, new.flatten(), by_value.flatten(0, 1)).view_as(h)


    def before(d: Tensor) -> Tensor:
        return torch.zeros_like(values0).scatter_add(1, old.expand_as(values0), d.masked_fill(~carried, 0))

    return dh, torch.einsum("bmi,bmj->ij", by_key, made), before(dvalues), before(dkeys)


def _places(slots: Tensor, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Which slots hold carried states (B, m, 1), whence (B, m, 1), and in which rows of (T * B, n) the others lie."""
    B, m = slots.shape
    held = torch.where(slots < 0, torch.arange(m, device=slots.device), slots)
    batch = torch.arange(B, device=slots.device)[:, None]
    return (held < m)[..., None], held.clamp(max=m - 1)[..., None], (held - m).clamp(min=0) * B + batch
