"""The memory that a sequence of an attentive layer starts with."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class CarriedMemory(NamedTuple):
    """The memory that a sequence starts with.

    An index into it counts the m slots that were carried in first, then the T new states; -1 is an empty slot.

    values0 and keys0 (B, m, n); origin0 (B, m) int64, the step at which a state was made, -1 for an empty slot;
    relevance0 (B, m); clock0 (B,) int64, the steps made so far.
    """

    values0: Tensor
    keys0: Tensor
    origin0: Tensor
    relevance0: Tensor
    clock0: Tensor


def empty_memory(like: Tensor, batch: int, slots: int) -> CarriedMemory:
    """Return a memory of that many slots, all of them empty, for states of the type and the features of `like`."""
    values, keys = like.new_zeros(2, batch, slots, like.shape[-1])
    return CarriedMemory(
        values0=values,
        keys0=keys,
        origin0=torch.full((batch, slots), -1, device=like.device),
        relevance0=like.new_zeros(batch, slots),
        clock0=torch.zeros(batch, dtype=torch.int64, device=like.device),
    )
