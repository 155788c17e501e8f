"""Widely separated symbols (Ribeiro et al. 2019, section 5 and appendix A.2)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from mnemoscope.tasks._classification import AnswerAtEnd, batches, epoch_rows
from mnemoscope.tasks._seeded import one_hot
from mnemoscope.tasks._task import Batch, Split, at_least

ALPHABET = "pqabcd"
"""The symbols in the order of the input's features: p and q matter, the others distract."""


@dataclass(frozen=True)
class Symbols(AnswerAtEnd):
    """Distractors a, b, c, d, but for two of p or q early on: say at the end which two, and in which order.

    The classes are (p, p), (p, q), (q, p), (q, q). The sequences are drawn once, as many for training as for each of
    the held-out splits. (The authors' code has T = 200 where the paper has 150.)
    """

    name = "symbols"
    input_size = len(ALPHABET)
    output_size = 4
    solved = 0.99

    T: int = 150
    """Steps of a sequence."""
    first: int = 10
    """Earliest step, from 0, of the first symbol that matters."""
    second: int = 40
    """Earliest step, from 0, of the second symbol that matters."""
    window: int = 10
    """Number of steps among which each of the two places is drawn."""
    sequences: int = 1000
    """Sequences of each split."""

    def __post_init__(self) -> None:
        at_least(self, window=1, sequences=1, first=0)
        at_least(self, second=self.first + self.window)
        at_least(self, T=self.second + self.window)

    @property
    def length(self) -> int:
        return self.T

    @property
    def needs(self) -> int:
        return self.T - 1 - self.first

    @property
    def baseline(self) -> float:
        """A guess among four classes."""
        return math.log(4)

    def steps_per_epoch(self, size: int, split: Split = "train") -> int:
        return batches(self.sequences, size, split)

    def _batch(self, step: int, size: int, split: Split) -> Batch:
        symbols, classes = _draw(self, split)
        rows = epoch_rows(self, self.sequences, step, size, split)
        return Batch(one_hot(symbols[:, rows], self.input_size), classes[rows])


@lru_cache(maxsize=6)
def _draw(task: Symbols, split: Split) -> tuple[Tensor, Tensor]:
    """All sequences of a split, (T, sequences), and their classes."""
    random, count = task.generator(split), task.sequences
    symbols = torch.randint(2, len(ALPHABET), (task.T, count), generator=random, device="cpu")
    starts = torch.tensor([[task.first], [task.second]], device="cpu")
    places = starts + torch.randint(0, task.window, (2, count), generator=random, device="cpu")
    relevant = torch.randint(0, 2, (2, count), generator=random, device="cpu")
    return symbols.scatter_(0, places, relevant), 2 * relevant[0] + relevant[1]
