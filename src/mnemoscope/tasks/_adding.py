"""The adding problem (Hochreiter & Schmidhuber 1997, with the markers of Arjovsky et al. 2016)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from mnemoscope.tasks._task import Batch, Split, Task, require_at_least


@dataclass(frozen=True)
class Adding(Task):
    """T numbers in [0, 1), two of them marked: predict the sum of the two at the end.

    There is one marker in each half. Inputs are (number, marker), targets (B, 1).
    """

    name = "adding"
    metric = "mse"
    higher_is_better = False
    solved = 0.01
    input_size = 2
    output_size = 1

    T: int = 100
    """Steps of a sequence."""

    def __post_init__(self) -> None:
        require_at_least(self, T=2)

    @property
    def length(self) -> int:
        return self.T

    @property
    def baseline(self) -> float:
        """The variance of the sum of two uniform numbers, 2 / 12: the loss of always predicting 1."""
        return 1 / 6

    def _batch(self, step: int, size: int, split: Split) -> Batch:
        random = self.generator(split, step)
        half = self.T // 2
        numbers = torch.rand((self.T, size), generator=random, device="cpu", dtype=torch.float32)
        first = torch.randint(0, half, (1, size), generator=random, device="cpu")
        second = torch.randint(half, self.T, (1, size), generator=random, device="cpu")
        marked = torch.cat([first, second])  # (2, B) steps
        markers = torch.zeros_like(numbers).scatter_(0, marked, 1.0)
        sums = numbers.gather(0, marked).sum(0).unsqueeze(-1)
        return Batch(torch.stack([numbers, markers], -1), sums)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.mse_loss(outputs[-1], targets)

    def metrics(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        """`accuracy` counts predictions within 0.04 of the sum, Hochreiter & Schmidhuber's criterion."""
        loss = self.loss(outputs, targets).item()
        close = (outputs[-1] - targets).abs() < 0.04
        return {"loss": loss, "mse": loss, "accuracy": close.float().mean().item()}
