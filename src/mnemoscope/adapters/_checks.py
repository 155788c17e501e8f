"""Errors at the door: inputs that are no sequences, weights that are no numbers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from mnemoscope.errors import MnemoscopeError


def check_sequences(inputs: Any) -> Tensor:
    """The inputs, if they are a batch of sequences without NaN."""
    if not isinstance(inputs, Tensor):
        raise MnemoscopeError(
            "inputs must be a tensor of sequences, (time, batch, features) or ids (time, batch); got a "
            f"{type(inputs).__name__}"
        )
    if inputs.dim() < 2 or 0 in inputs.shape:
        given = list(inputs.shape)
        raise MnemoscopeError(f"inputs must have a time and a batch dimension, and no empty one; got {given}")
    if inputs.is_floating_point() and not bool(torch.isfinite(inputs).all()):
        bad = int((~torch.isfinite(inputs)).sum())
        raise MnemoscopeError(f"inputs hold {bad} values that are NaN or infinite; mend them before examining a model")
    return inputs.detach()


def check_model(model: Any, inputs: Tensor) -> None:
    """Refuse weights that are not numbers, and inputs that are elsewhere."""
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
