"""Checks of what a user gives: inputs must be sequences, weights must be finite."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence

from mnemoscope.errors import MnemoscopeError, first_line


def read_sequences(inputs: Any, model: Any) -> Tensor:
    """Return the inputs as a tensor, detached, if they are sequences without NaN.

    Takes tensors, arrays, nested lists of numbers, a list of sequences and a packed sequence, whose sequences are cut
    to the shortest. Arrays and lists get the number format of the model's weights, a packed sequence the layout that
    the model reads.
    """
    tensor = _as_tensor(inputs, model)
    if tensor.dim() == 0 or 0 in tensor.shape or (tensor.dim() == 1 and tensor.is_floating_point()):
        shape = list(tensor.shape)
        raise MnemoscopeError(f"inputs must have a time and a batch dimension, and no empty one; got {shape}")
    if tensor.is_complex() or tensor.layout is not torch.strided:
        kind = "complex numbers" if tensor.is_complex() else "sparse"
        fix = "give real and imaginary parts as features" if tensor.is_complex() else "give inputs.to_dense()"
        raise MnemoscopeError(f"inputs are {kind}: {fix}")
    if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
        bad = int((~torch.isfinite(tensor)).sum())
        raise MnemoscopeError(f"inputs hold {bad} values that are NaN or infinite; fix them before examining a model")
    return tensor.detach()


def _as_tensor(inputs: Any, model: Any) -> Tensor:
    if isinstance(inputs, Tensor):
        return inputs
    if isinstance(inputs, PackedSequence):
        padded, lengths = pad_packed_sequence(inputs)
        padded = padded[: _shortest(lengths.tolist())]
        return padded.transpose(0, 1) if getattr(model, "batch_first", False) is True else padded
    try:
        if isinstance(inputs, np.ndarray):
            tensor = torch.from_numpy(np.ascontiguousarray(inputs))
        elif isinstance(inputs, list | tuple) and inputs:
            tensor = _from_list(inputs)
        else:
            of_parts = ": pass its main tensor, and the rest as kwargs=" if isinstance(inputs, Mapping) else ""
            raise TypeError(f"got a {type(inputs).__name__}{of_parts}")
    except (TypeError, ValueError) as error:
        raise MnemoscopeError(
            "inputs must be a tensor of sequences, (time, batch, features) or ids (time, batch), an array, a list or a "
            f"packed sequence; {first_line(error)}"
        ) from error
    return _as_weights(tensor, model)


def _from_list(inputs: Any) -> Tensor:
    """Return nested numbers as a tensor; sequences of several lengths as (batch, shortest, ...).

    Tensors (batch, time, features) in a list are several arguments, or a batch with its targets, and no sequences.
    """
    rows = [torch.as_tensor(row) for row in inputs]
    if not isinstance(inputs[0], Tensor) and any(row.dim() != rows[0].dim() for row in rows):
        raise ValueError("the sequences of the list have different numbers of dimensions")
    several_inputs = isinstance(inputs[0], Tensor) and rows[0].dim() == 3  # as (batch, time, features)
    if several_inputs or any(row.shape[1:] != rows[0].shape[1:] or row.dim() != rows[0].dim() for row in rows):
        sizes = ", ".join(str(list(row.shape)) for row in rows[:3]) + (", ..." if len(rows) > 3 else "")
        raise ValueError(
            f"got a {type(inputs).__name__} of {sizes}: a list holds one sequence each, (time, features), of as many "
            "features; of several arguments of a forward pass the first, and the others as kwargs=, of a batch with "
            "its targets pass those as targets="
        )
    if rows[0].dim() == 0:
        return torch.stack(rows)
    shortest = _shortest([len(row) for row in rows])
    return torch.stack([row[:shortest] for row in rows])


def _shortest(lengths: list[int]) -> int:
    """Return the shortest length, and say so if there are longer ones."""
    shortest, longest = min(lengths), max(lengths)
    if shortest < longest:
        warnings.warn(
            f"the sequences have {shortest} to {longest} steps: all are cut to their first {shortest}", stacklevel=2
        )
    return shortest


def _as_weights(tensor: Tensor, model: Any) -> Tensor:
    """Return real numbers in the format and on the device of the model's weights, and whole numbers as ids."""
    weights = [p for p in model.parameters() if p.is_floating_point()] if isinstance(model, nn.Module) else []
    device = weights[0].device if weights else torch.device("cpu")
    if not tensor.is_floating_point():
        return tensor.to(device, torch.int64)
    return tensor.to(device, weights[0].dtype if weights else torch.get_default_dtype())


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
