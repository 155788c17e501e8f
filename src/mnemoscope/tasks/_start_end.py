"""Levine et al.'s question (2018, section 3) as a task: does the end of a sequence repeat its start?"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from mnemoscope.tasks._classification import SequenceClassification
from mnemoscope.tasks._seeded import one_hot, random_permutations
from mnemoscope.tasks._task import Batch, Split, require, require_at_least


@dataclass(frozen=True)
class StartEnd(SequenceClassification):
    """Decide at the last step whether the end of the sequence repeats its start (class 1) or not (class 0).

    With `span` = T / 2 start and end are the two halves, and the indicator of equality has the largest possible
    Start-End separation rank, symbols ** (T / 2). An end that does not repeat the start differs at `changes` steps
    only. So no part of the start may be forgotten, and every single symbol is as likely in either class.
    """

    name = "start-end"
    output_size = 2
    solved = 0.99

    T: int = 20
    """Steps of a sequence; those between start and end are random symbols."""
    span: int = 10
    """Steps of the start, and of the end that may repeat it."""
    symbols: int = 4
    """Number of different symbols."""
    changes: int = 1
    """At how many steps an end differs that does not repeat the start."""

    def __post_init__(self) -> None:
        require_at_least(self, span=1, symbols=2, changes=1)
        require_at_least(self, T=2 * self.span)
        require(self.changes <= self.span, "changes", self.changes, f"at most the span, {self.span}")

    @property
    def input_size(self) -> int:
        return self.symbols

    @property
    def length(self) -> int:
        return self.T

    @property
    def needs(self) -> int:
        return self.T - self.span

    @property
    def baseline(self) -> float:
        """ln 2: half of the sequences repeat."""
        return math.log(2)

    def _batch(self, step: int, size: int, split: Split) -> Batch:
        random = self.generator(split, step)
        symbols = torch.randint(0, self.symbols, (self.T, size), generator=random, device="cpu")
        repeats = _balanced(size, random)
        shifts = self._shifts(size, random) * (1 - repeats)
        symbols[-self.span :] = (symbols[: self.span] + shifts) % self.symbols
        return Batch(one_hot(symbols, self.symbols), repeats)

    def _shifts(self, size: int, random: torch.Generator) -> Tensor:
        """Return how far to shift each symbol (span, size), non-zero in `changes` rows of each column."""
        changed = random_permutations(self.span, size, random) < self.changes
        return torch.randint(1, self.symbols, (self.span, size), generator=random, device="cpu") * changed


def _balanced(size: int, random: torch.Generator) -> Tensor:
    """Return half zeros and half ones in random order (size,). If `size` is odd, the extra one is random."""
    coin = torch.randint(0, 2, (1,), generator=random, device="cpu")
    return (torch.randperm(size, generator=random, device="cpu") + coin) % 2
