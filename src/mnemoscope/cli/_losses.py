"""Losses by name, or from a user's own Python, as `mnemoscope examine --loss` takes them."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.nn import functional as F

from mnemoscope.cli._factories import import_attribute
from mnemoscope.errors import MnemoscopeError

Loss = Callable[[Tensor, Tensor], Tensor]


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy of outputs (..., classes) and classes (...); a target of -100 does not count."""
    return F.cross_entropy(outputs.flatten(0, -2), targets.flatten())


LOSSES: dict[str, Loss] = {
    "mse": F.mse_loss,
    "l1": F.l1_loss,
    "cross-entropy": cross_entropy,
    "bce": F.binary_cross_entropy_with_logits,
}


def read_loss(name: str) -> Loss:
    """Return the loss of this name, or the function package.module:function or path/to/file.py:function."""
    if name in LOSSES:
        return LOSSES[name]
    if ":" not in name:
        raise MnemoscopeError(f"loss = {name!r} is not a loss; use {', '.join(LOSSES)} or package.module:function")
    loss = import_attribute(name)
    if not callable(loss):
        raise MnemoscopeError(f"{name} is a {type(loss).__name__}; it must be a function loss(outputs, targets)")
    return loss
