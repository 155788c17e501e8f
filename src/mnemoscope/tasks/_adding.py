"""The adding problem (Hochreiter & Schmidhuber 1997, with the markers of Arjovsky et al. 2016)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from mnemoscope.tasks._task import Batch, Split, Task, at_least


@dataclass(frozen=True)
class Adding(Task):
    """T numbers in [0, 1), two of them marked: say the sum of the two at the end.

    One marker stands in each half. Inputs are (number, marker), targets (B, 1).
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
        at_least(self, T=2)

    @property
    def length(self) -> int:
        return self.T

    @property
    def baseline(self) -> float:
        """Always to say 1 costs the variance of the sum of two uniform numbers, 2 / 12."""
        return 1 / 6

    def _batch(self, step: int, size: int, split: Split) -> Batch:
        random, half = self.generator(split, step), self.T // 2
        numbers = torch.rand((self.T, size), generator=random, device="cpu", dtype=torch.float32)
        first = torch.randint(0, half, (1, size), generator=random, device="cpu")
        second = torch.randint(half, self.T, (1, size), generator=random, device="cpu")
        places = torch.cat([first, second])
        markers = torch.zeros_like(numbers).scatter_(0, places, 1.0)
        return Batch(torch.stack([numbers, markers], -1), numbers.gather(0, places).sum(0).unsqueeze(-1))

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.mse_loss(outputs[-1], targets)

    def metrics(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        """`accuracy` counts answers within 0.04 of the sum, Hochreiter & Schmidhuber's criterion."""
        loss, close = self.loss(outputs, targets).item(), (outputs[-1] - targets).abs() < 0.04
        return {"loss": loss, "mse": loss, "accuracy": close.float().mean().item()}
