"""What several tasks share: one class per sequence as the target, and the entropy of classes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from mnemoscope.tasks._task import Task


@dataclass(frozen=True)
class SequenceClassification(Task):
    """A task with one class per sequence, predicted at the last step. Targets are (B,) int64."""

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs[-1], targets)

    def metrics(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        correct = outputs[-1].argmax(-1) == targets
        return {"loss": self.loss(outputs, targets).item(), "accuracy": correct.float().mean().item()}


def entropy(counts: Tensor) -> float:
    """Return the entropy, in nats, of the distribution proportional to `counts`."""
    return torch.special.entr(counts.double() / counts.sum()).sum().item()
