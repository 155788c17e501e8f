"""Data sets: a fixed number of sequences in each split."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from mnemoscope.tasks._seeded import generator
from mnemoscope.tasks._task import Batch, Split, Task, require


@dataclass(frozen=True)
class FiniteData(Task):
    """A task with a finite set of sequences.

    Training goes through all of them in a new order every epoch and drops the last ones that do not fill a batch.
    Evaluation takes every sequence once, in a fixed order; its last batch may be smaller. So do the batches of the
    held-out splits.
    """

    @abstractmethod
    def _count(self, split: Split) -> int:
        """Return the number of sequences of a split."""

    @abstractmethod
    def _select(self, rows: Tensor, split: Split) -> Batch:
        """Return these sequences of a split as a batch."""

    def steps_per_epoch(self, size: int, split: Split = "train") -> int:
        if split != "train":
            return self.evaluation_steps(size, split)
        count = self._count(split)
        require(size <= count, "size", size, f"at most the {count} training sequences there are")
        return count // size

    def evaluation_steps(self, size: int, split: Split) -> int:
        return -(-self._count(split) // size)

    def _batch(self, step: int, size: int, split: Split) -> Batch:
        epoch, batch = divmod(step, self.steps_per_epoch(size, split))
        if split != "train":
            return self.evaluation_batch(batch, size, split)
        order = _epoch_order(self.name, self.seed, epoch, self._count(split))
        return self._select(order[batch * size : (batch + 1) * size], split)

    def evaluation_batch(self, step: int, size: int, split: Split) -> Batch:
        start = step * size
        return self._select(torch.arange(start, min(start + size, self._count(split)), device="cpu"), split)


@lru_cache(maxsize=8)
def _epoch_order(name: str, seed: int, epoch: int, count: int) -> Tensor:
    return torch.randperm(count, generator=generator(name, seed, "order", epoch), device="cpu")
