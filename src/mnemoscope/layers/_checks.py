"""Errors for wrong arguments, inputs and states of layers: the rule, what was received, what to do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mnemoscope.errors import MnemoscopeError
from mnemoscope.recurrence import State, describe, leaves

if TYPE_CHECKING:
    from mnemoscope.layers._base import Layer


def check_arguments(
    layer: Layer, input_size: Any, hidden_size: Any, num_layers: Any, dropout: Any, proj_size: Any
) -> None:
    """Check nn.LSTM's arguments, switches aside."""
    name = type(layer).__name__
    check_int(layer, "input_size", input_size)
    check_int(layer, "hidden_size", hidden_size)
    check_int(layer, "num_layers", num_layers)
    if isinstance(dropout, bool) or not isinstance(dropout, int | float) or not 0 <= dropout <= 1:
        raise MnemoscopeError(f"{name}: dropout must be a probability in [0, 1]; got {dropout!r}")
    if proj_size != 0:
        raise MnemoscopeError(
            f"{name}: projections are not supported, so proj_size must be 0; got {proj_size!r} (put an nn.Linear "
            "behind the layer)"
        )


def check_int(layer: Layer, option: str, value: Any, least: int = 1) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise MnemoscopeError(
            f"{type(layer).__name__}: {option} must be a whole number of at least {least}; got {value!r}"
        )


def check_bool(layer: Layer, option: str, value: Any) -> None:
    # nn.RNN takes its nonlinearity where nn.LSTM takes bias: RNN(3, 4, 1, "relu") must not pass.
    if not isinstance(value, bool):
        raise MnemoscopeError(
            f"{type(layer).__name__}: {option} must be True or False; got {value!r} (own options go by keyword)"
        )


def check_choice(layer: Layer, option: str, value: Any, allowed: Sequence[str]) -> None:
    if value not in allowed:
        first, last = ", ".join(map(repr, allowed[:-1])), repr(allowed[-1])
        raise MnemoscopeError(f"{type(layer).__name__}: {option} must be {first} or {last}; got {value!r}")


def check_input(layer: Layer, x: Any, packed: bool = False) -> None:
    if not isinstance(x, Tensor):
        raise MnemoscopeError(f"{layer._get_name()} expects a tensor or a PackedSequence; got a {type(x).__name__}")
    dimensions = x.dim()
    if not packed and dimensions not in (2, 3):
        raise MnemoscopeError(
            f"{layer._get_name()} expects input {_layout(layer)}, or (time, input_size) unbatched; got {list(x.shape)}"
        )
    if x.shape[-1] != layer.input_size:
        raise MnemoscopeError(
            f"{layer._get_name()} was made with input_size={layer.input_size}; got input {list(x.shape)}, whose last "
            f"dimension is {x.shape[-1]}"
        )
    time = 1 if layer.batch_first and dimensions == 3 and not packed else 0
    if x.shape[time] == 0:
        raise MnemoscopeError(
            f"{layer._get_name()} needs a sequence of at least one step; got input {list(x.shape)}, {_layout(layer)}"
        )
    expected = next(iter(layer._parameters.values()), None)
    if expected is None:  # a replica of nn.DataParallel holds its weights as plain tensors
        return
    if x.dtype != expected.dtype and not torch.is_autocast_enabled(x.device.type):
        raise MnemoscopeError(
            f"{layer._get_name()}'s parameters are {expected.dtype}; got input of {x.dtype}: convert one with "
            f".to({expected.dtype}) or layer.to(x.dtype)"
        )
    if x.device != expected.device:
        raise MnemoscopeError(
            f"{layer._get_name()}'s parameters are on {expected.device}; got input on {x.device}: move one with "
            ".to(device)"
        )


def _layout(layer: Layer) -> str:
    return "(batch, time, input_size)" if layer.batch_first else "(time, batch, input_size)"


def check_state(layer: Layer, state: State, x: Tensor) -> State:
    """Return the state in the form that the layer works with, or raise an error that says what does not fit."""
    coerced = layer.coerce_state(state)
    shape = (layer.num_layers * layer.num_directions, x.shape[1], layer.hidden_size)
    visible = leaves(coerced)[: len(layer.state_names)]
    if len(visible) != len(layer.state_names) or any(tuple(t.shape) != shape for t in visible):
        raise state_error(layer, state, list(shape))
    for k, tensor in enumerate(leaves(coerced)):
        check_dtype = tensor.is_floating_point() or k < len(visible)  # clocks and origins are integers
        _check_dtype_and_device(layer, tensor, x, check_dtype)
    return coerced


def _check_dtype_and_device(layer: Layer, tensor: Tensor, x: Tensor, check_dtype: bool) -> None:
    """Check that a tensor of a state has the type and the device of the input x."""
    if check_dtype and tensor.dtype != x.dtype and not torch.is_autocast_enabled(x.device.type):
        raise MnemoscopeError(
            f"{layer._get_name()} got input of {x.dtype} and a state of {tensor.dtype}: convert it with "
            f"mnemoscope.to(state, {x.dtype})"
        )
    if tensor.device != x.device:
        raise MnemoscopeError(
            f"{layer._get_name()} got input on {x.device} and a state on {tensor.device}: move it with "
            "mnemoscope.to(state, x.device)"
        )


def state_error(layer: Layer, state: State, shape: list[Any] | None = None) -> MnemoscopeError:
    expected = shape or [layer.num_layers * layer.num_directions, "batch", layer.hidden_size]
    names = " and ".join(layer.state_names)
    return MnemoscopeError(
        f"{layer._get_name()} expects a state of {names}, (layers * directions, batch, hidden_size) = {expected}; "
        f"got {describe(state)}: was it made by another layer, or for another batch?"
    )
