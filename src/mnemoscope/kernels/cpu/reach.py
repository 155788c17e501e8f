"""Whether attention's loops may take tanh(q + k) apart into e^{2q} e^{2k}.

Beyond the range of its type an exponential is cut off. Where q is cut off and k is as large with the other sign, their
sum is lost; such a walk is left to `portable.py`, which bends q + k itself.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

LARGEST = {torch.float32: 43.0, torch.float64: 350.0}  # e^{2q} and e^{-2q} are then normal numbers
BENT = 20.0  # |tanh| is 1 to any precision from here on


def safe(
    h: Tensor, s: Tensor, s0: Tensor, values0: Tensor, keys0: Tensor, W_a: Tensor, U_a: Tensor, cell: str, phi: str
) -> bool:
    """By the states of a walk: h, s (T, B, n), s0 (B, n), carried (B, m, n). Its first wrong step has right ones."""
    largest = LARGEST[h.dtype]
    by_h = 1.0 if cell == "lstm" or phi == "tanh" else _modulus(h)
    by_s = max(_modulus(s0), by_h + max(by_h, _modulus(values0)))  # attention is a mean of states
    key, query = max(_modulus(keys0), by_h * _gain(U_a)), by_s * _gain(W_a)
    if max(key, query) < largest:
        return True
    return not _opposed(_reach(s0 @ W_a.T, s @ W_a.T), _reach(keys0, h @ U_a.T), largest)


def _modulus(tensor: Tensor) -> float:
    """The largest modulus; infinity where some row has no numbers, which says nothing of the others."""
    largest = float(tensor.abs().max()) if tensor.numel() else 0.0  # several times as fast as torch's norm
    return math.inf if math.isnan(largest) else largest


def _gain(matrix: Tensor) -> float:
    """The largest |W x| of an x whose entries are at most 1."""
    return float(matrix.abs().sum(1).max())


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
