"""The memory that a sequence of an attentive layer starts with."""

from __future__ import annotations

from typing import NamedTuple

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
