"""Whether attention's loops may compute tanh(q + k) from e^{2q} e^{2k}.

An exponential is clamped at the limits of its dtype. Where that of q is clamped and k is as large with the other sign,
their sum is lost. Such a run is left to `_portable.py`, which adds q + k first.
"""

from __future__ import annotations

import torch
from torch import Tensor

LARGEST = {torch.float32: 43.0, torch.float64: 350.0}  # e^{2q} and e^{-2q} are then normal numbers
TANH_SATURATED = 20.0  # |tanh| is 1 to any precision from here on


def overflowed(h: Tensor, s: Tensor, s0: Tensor, keys0: Tensor, W_a: Tensor, U_a: Tensor) -> bool:
    """True if a run lost some sum q + k. It cannot have if no query and no key was larger than `LARGEST`.

    Args:
        h, s, s0, keys0: the states (T, B, n) and (B, n) and the carried keys (B, m, n). The queries and keys of the
            first wrong step are still right.
        W_a, U_a: (n, n).
    """
    largest = LARGEST[h.dtype]
    queries = _range(s0 @ W_a.T, s @ W_a.T)
    keys = _range(keys0, h @ U_a.T)
    return _cancels(queries, keys, largest) or _cancels(keys, queries, largest)


def _range(*tensors: Tensor) -> tuple[Tensor, Tensor]:
    """Return the least and the largest value of each unit, (n,); a row of NaN does not hide the others."""
    rows = torch.cat([t.reshape(-1, t.shape[-1]) for t in tensors]).nan_to_num()
    return rows.amin(0), rows.amax(0)


def _cancels(clamped: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor], largest: float) -> bool:
    """True if, in some unit, one is clamped and the other may bring the sum back to where tanh is not saturated."""
    low, high = clamped
    other_low, other_high = other
    positive = (high > largest) & (other_low < TANH_SATURATED - largest)
    negative = (low < -largest) & (other_high > largest - TANH_SATURATED)
    return bool((positive | negative).any())
