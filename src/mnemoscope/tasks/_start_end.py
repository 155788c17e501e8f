"""Levine et al.'s question (2018, section 3) as a task: is the end of a sequence tied to its start?"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from mnemoscope.tasks._classification import AnswerAtEnd
from mnemoscope.tasks._seeded import one_hot, permutations
from mnemoscope.tasks._task import Batch, Split, at_least, require


@dataclass(frozen=True)
class StartEnd(AnswerAtEnd):
    """Decide at the last step whether the end of the sequence repeats its start (class 1) or not (class 0).

    With `span` = T / 2 start and end are the two halves, and the indicator of equality has the largest Start-End
    separation rank there is, symbols ** (T / 2). An end that does not repeat differs in `changes` places only, so that
    no part of the start may be forgotten, and every single symbol is as likely under either answer.
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
    """In how many places an end differs that does not repeat the start."""

    def __post_init__(self) -> None:
        at_least(self, span=1, symbols=2, changes=1)
        at_least(self, T=2 * self.span)
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
        """Half the sequences repeat."""
        return math.log(2)

    def _batch(self, step: int, size: int, split: Split) -> Batch:
        random = self.generator(split, step)
        symbols = torch.randint(0, self.symbols, (self.T, size), generator=random, device="cpu")
        repeats = _balanced(size, random)
        symbols[-self.span :] = (symbols[: self.span] + self._shifts(size, random) * (1 - repeats)) % self.symbols
        return Batch(one_hot(symbols, self.symbols), repeats)

    def _shifts(self, size: int, random: torch.Generator) -> Tensor:
        """(span, size): how far to turn each symbol, not 0 in `changes` places of each column."""
        changed = permutations(self.span, size, random) < self.changes
        return torch.randint(1, self.symbols, (self.span, size), generator=random, device="cpu") * changed


def _balanced(size: int, random: torch.Generator) -> Tensor:
    """Half zeros and half ones in random order; of an odd number a coin decides the last."""
    coin = torch.randint(0, 2, (1,), generator=random, device="cpu")
    return (torch.randperm(size, generator=random, device="cpu") + coin) % 2
