"""What several tasks share: one class per sequence as the target, and batches of a finite set of sequences."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from mnemoscope.tasks._seeded import generator
from mnemoscope.tasks._task import Split, Task, require


@dataclass(frozen=True)
class SequenceClassification(Task):
    """A task with one class per sequence, predicted at the last step. Targets are (B,) int64."""

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs[-1], targets)

    def metrics(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        correct = outputs[-1].argmax(-1) == targets
        return {"loss": self.loss(outputs, targets).item(), "accuracy": correct.float().mean().item()}


def batch_indices(task: Task, count: int, step: int, size: int, split: Split) -> Tensor:
    """Return which of `count` sequences are in batch `step`.

    Training goes through all sequences in a new order every epoch and drops the last ones that do not fill a batch.
    Held-out sequences come in a fixed order, and their last batch may be smaller.
    """
    epoch, batch = divmod(step, batches_per_epoch(count, size, split))
    start = batch * size
    if split == "train":
        return _epoch_order(task.name, task.seed, epoch, count)[start : start + size]
    return torch.arange(start, min(start + size, count), device="cpu")


def batches_per_epoch(count: int, size: int, split: Split) -> int:
    """Return how many batches one pass over `count` sequences has: rounded down for training, else up."""
    if split == "train":
        require(size <= count, "size", size, f"at most the {count} training sequences there are")
        return count // size
    return -(-count // size)


@lru_cache(maxsize=8)
def _epoch_order(name: str, seed: int, epoch: int, count: int) -> Tensor:
    return torch.randperm(count, generator=generator(name, seed, "order", epoch), device="cpu")


def entropy(counts: Tensor) -> float:
    """Return the entropy, in nats, of the distribution proportional to `counts`."""
    return torch.special.entr(counts.double() / counts.sum()).sum().item()
