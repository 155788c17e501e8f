"""Where a run computes, and in which numbers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor, nn

from mnemoscope.tasks import Batch
from mnemoscope.training._config import Precision

_DTYPES: dict[Precision, torch.dtype] = {"64-true": torch.float64, "bf16-true": torch.bfloat16}


class Placement:
    """The device of a run, and the precision of its numbers.

    With 64-true and bf16-true weights, inputs and whatever the model creates have that type. With bf16-mixed weights
    stay float32, inputs are bfloat16, and `torch.autocast` chooses for each operation. In all three the loss is
    float32; with 32-true and tf32-true nothing is converted.

    Args:
        precision: of the configuration.
        device: of all tensors; a GPU becomes the current one.
    """

    def __init__(self, precision: Precision, device: torch.device) -> None:
        self.device = device
        self._weights = _DTYPES.get(precision)
        self._inputs = torch.bfloat16 if precision == "bf16-mixed" else self._weights
        self._is_mixed = precision == "bf16-mixed"
        if device.type == "cuda":
            torch.cuda.set_device(device)

    def move_model(self, model: nn.Module) -> None:
        """Move the model to the device and convert its weights, in place."""
        model.to(self.device)
        if self._weights is torch.float64:  # not by `to`, which would drop the imaginary part of complex weights
            model.double()
        elif self._weights is torch.bfloat16:
            model.bfloat16()

    def move_batch(self, batch: Batch) -> Batch:
        """Return a batch on the device, its floating-point tensors in the type of inputs."""
        return Batch(*map(self._move, batch))

    def _move(self, tensor: Tensor) -> Tensor:
        moved = tensor.to(self.device, non_blocking=True)
        return moved if self._inputs is None or not moved.is_floating_point() else moved.to(self._inputs)

    def computing(self) -> AbstractContextManager[None]:
        """Return the context of a forward pass."""
        if self._is_mixed:
            return torch.autocast(self.device.type, dtype=torch.bfloat16)
        return nullcontext() if self._weights is None else _creating(self._weights)

    def to_loss(self, loss: Tensor) -> Tensor:
        """Return a loss in the precision that its mean is taken in."""
        return loss if self._inputs is None else loss.to(torch.get_default_dtype())


@contextmanager
def _creating(dtype: torch.dtype) -> Iterator[None]:
    """Give new tensors this type, unless they are asked for in another."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
