"""Whether attention's loops may take tanh(q + k) apart into e^{2q} e^{2k}.

Beyond the range of its type an exponential is cut off. Where q is cut off and k is as large with the other sign, their
sum is lost; such a walk is left to `portable.py`, which bends q + k itself.
"""

from __future__ import annotations

import torch
from torch import Tensor

LARGEST = {torch.float32: 43.0, torch.float64: 350.0}  # e^{2q} and e^{-2q} are then normal numbers
BENT = 20.0  # |tanh| is 1 to any precision from here on


def lost(reached: Tensor, h: Tensor, s: Tensor, s0: Tensor, keys0: Tensor, W_a: Tensor, U_a: Tensor) -> bool:
    """Whether a walk lost some sum q + k, by its states: h, s (T, B, n), s0 (B, n), carried keys (B, m, n).

    reached (B,) is the largest modulus of each row's queries and keys. The first wrong step has right ones.
    """
    largest = LARGEST[h.dtype]
    if not reached.numel() or float(reached.max()) < largest:
        return False
    return _opposed(_reach(s0 @ W_a.T, s @ W_a.T), _reach(keys0, h @ U_a.T), largest)


def _reach(*tensors: Tensor) -> tuple[Tensor, Tensor]:
    """The least and the largest value of each unit (n,)."""
    rows = torch.cat([t.reshape(-1, t.shape[-1]) for t in tensors]).nan_to_num()  # a lost row hides no other
    return rows.amin(0), rows.amax(0)


def _opposed(queries: tuple[Tensor, Tensor], keys: tuple[Tensor, Tensor], largest: float) -> bool:
    """Whether, in some unit, one is cut off and the other may bring the sum back to where tanh still bends."""
    found = False
    for (low, high), (other_low, other_high) in ((queries, keys), (keys, queries)):
        found |= bool(((high > largest) & (other_low < BENT - largest)).any())
        found |= bool(((low < -largest) & (other_high > largest - BENT)).any())
    return found
