"""Widely separated symbols (Ribeiro et al. 2019, section 5 and appendix A.2)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from mnemoscope.tasks._classification import SequenceClassification
from mnemoscope.tasks._finite import FiniteData
from mnemoscope.tasks._seeded import one_hot
from mnemoscope.tasks._task import Batch, Split, require_at_least

ALPHABET = "pqabcd"
"""The symbols in the order of the input's features. p and q matter, the others are distractors."""


@dataclass(frozen=True)
class Symbols(SequenceClassification, FiniteData):
    """Distractors a, b, c, d, and early on two symbols p or q: classify at the end which two, and in which order.

    The classes are (p, p), (p, q), (q, p), (q, q). The sequences are drawn once, as many for training as for each of
    the held-out splits. (The authors' code has T = 200 where the paper has 150.)
    """

    name = "symbols"
    alphabet = ALPHABET
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
    """Number of steps among which the step of each of the two symbols is drawn."""
    sequences: int = 1000
    """Sequences of each split."""

    def __post_init__(self) -> None:
        require_at_least(self, window=1, sequences=1, first=0)
        require_at_least(self, second=self.first + self.window)
        require_at_least(self, T=self.second + self.window)

    @property
    def length(self) -> int:
        return self.T

    @property
    def needs(self) -> int:
        return self.T - 1 - self.first

    @property
    def baseline(self) -> float:
        """ln 4: a guess among four classes."""
        return math.log(4)

    def _count(self, split: Split) -> int:
        return self.sequences

    def _select(self, rows: Tensor, split: Split) -> Batch:
        symbols, classes = _draw(self, split)
        return Batch(one_hot(symbols[:, rows], self.input_size), classes[rows])


@lru_cache(maxsize=6)
def _draw(task: Symbols, split: Split) -> tuple[Tensor, Tensor]:
    """Return all sequences of a split (T, sequences) and their classes (sequences,)."""
    random = task.generator(split)
    count = task.sequences
    symbols = torch.randint(2, len(ALPHABET), (task.T, count), generator=random, device="cpu")
    starts = torch.tensor([[task.first], [task.second]], device="cpu")
    steps = starts + torch.randint(0, task.window, (2, count), generator=random, device="cpu")
    relevant = torch.randint(0, 2, (2, count), generator=random, device="cpu")
    classes = 2 * relevant[0] + relevant[1]
    return symbols.scatter_(0, steps, relevant), classes
