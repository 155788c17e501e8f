"""A small task of numbers, whose updates can be made by hand."""

from __future__ import annotations

import torch
from torch import Tensor

from mnemoscope.tasks import Custom
from mnemoscope.training import NetworkConfig, SequenceModel

QUIET = {"evaluate_every": 10**6, "evaluate_batches": 1, "threads": 1, "batch_size": 3}


def regression(step: int, size: int, split: str) -> tuple[Tensor, Tensor]:
    """Say at the last of four steps the sum of all inputs."""
    random = torch.Generator().manual_seed(hash((split == "train", step)) % 2**31)
    x = torch.randn(4, size, 2, generator=random)
    return x, x.sum((0, 2), keepdim=True)[0]


TASK = Custom(regression, input_size=2, output_size=1, length=4, answer="numbers")


def model(name: str = "LinearSystem", hidden: int = 3) -> SequenceModel:
    torch.manual_seed(0)
    return SequenceModel(2, 1, NetworkConfig(name, hidden))
