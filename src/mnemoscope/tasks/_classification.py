"""What several tasks share: one class to name at the end of the sequence, and a finite set of sequences."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from mnemoscope.tasks._seeded import generator
from mnemoscope.tasks._task import Split, Task, require


@dataclass(frozen=True)
class AnswerAtEnd(Task):
    """A task whose answer is one class a sequence, read at the last step: targets are (B,) int64."""

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs[-1], targets)

    def metrics(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        correct = outputs[-1].argmax(-1) == targets
        return {"loss": self.loss(outputs, targets).item(), "accuracy": correct.float().mean().item()}


def epoch_rows(task: Task, count: int, step: int, size: int, split: Split) -> Tensor:
    """Which of `count` sequences batch `step` holds.

    Training goes through all of them in a new order every epoch and leaves out the few that do not fill a batch;
    held-out sequences come in their own order, the last batch shorter.
    """
    place = step % batches(count, size, split) * size
    if split != "train":
        return torch.arange(place, min(place + size, count), device="cpu")
    return _order(task.name, task.seed, step // batches(count, size, split), count)[place : place + size]


def batches(count: int, size: int, split: Split) -> int:
    """How many batches one pass over `count` sequences has."""
    require(split != "train" or size <= count, "size", size, f"at most the {count} training sequences there are")
    return count // size if split == "train" else -(-count // size)


@lru_cache(maxsize=8)
def _order(name: str, seed: int, epoch: int, count: int) -> Tensor:
    return torch.randperm(count, generator=generator(name, seed, "order", epoch), device="cpu")


def entropy(counts: Tensor) -> float:
    """The entropy in nats of the distribution that `counts` are proportional to."""
    return torch.special.entr(counts.double() / counts.sum()).sum().item()
