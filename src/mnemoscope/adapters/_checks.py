"""Checks of what a user gives: inputs must be sequences, weights must be finite."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from mnemoscope.errors import MnemoscopeError


def check_sequences(inputs: Any) -> Tensor:
    """Return the inputs, detached, if they are a batch of sequences without NaN."""
    if not isinstance(inputs, Tensor):
        raise MnemoscopeError(
            "inputs must be a tensor of sequences, (time, batch, features) or ids (time, batch); got a "
            f"{type(inputs).__name__}"
        )
    if inputs.dim() < 2 or 0 in inputs.shape:
        shape = list(inputs.shape)
        raise MnemoscopeError(f"inputs must have a time and a batch dimension, and no empty one; got {shape}")
    if inputs.is_floating_point() and not bool(torch.isfinite(inputs).all()):
        bad = int((~torch.isfinite(inputs)).sum())
        raise MnemoscopeError(f"inputs hold {bad} values that are NaN or infinite; fix them before examining a model")
    return inputs.detach()


def check_model(model: Any, inputs: Tensor) -> None:
    """Raise if a weight is NaN or infinite, or on another device than the inputs."""
    if not isinstance(model, nn.Module):
        return
    for name, parameter in model.named_parameters():
        if parameter.device != inputs.device:
            raise MnemoscopeError(
                f"the model's {name} is on {parameter.device}, the inputs are on {inputs.device}: move one with "
                f".to({str(parameter.device)!r})"
            )
        if not bool(torch.isfinite(parameter).all()):
            bad = int((~torch.isfinite(parameter)).sum())
            raise MnemoscopeError(
                f"the model's {name} holds {bad} of {parameter.numel()} values that are NaN or infinite: training has "
                "diverged; examine an earlier checkpoint"
            )
