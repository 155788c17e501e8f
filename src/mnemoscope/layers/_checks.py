"""Errors for wrong arguments, inputs and states of layers: the rule, what was received, what to do."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor

from mnemoscope import kernels
from mnemoscope.errors import MnemoscopeError
from mnemoscope.layers._carried import AttentiveState
from mnemoscope.layers._memory import Memory
from mnemoscope.recurrence import State, describe, leaves, map_state

if TYPE_CHECKING:
    from mnemoscope.layers._base import Layer
    from mnemoscope.layers._memory_layer import MemoryLayer


class InputError(MnemoscopeError, RuntimeError):
    """What a layer is called with does not fit it; a RuntimeError too, as torch's layers raise it."""


class ArgumentTypeError(MnemoscopeError, TypeError):
    """A constructor's argument is of another type; a TypeError too, as torch's layers raise it."""


def warn_caller(message: str) -> None:
    """Warn, in the name of the line that made or called a layer."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(("mnemoscope.layers", "torch.")):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, stacklevel=level)


def check_arguments(
    layer: Layer, input_size: Any, hidden_size: Any, num_layers: Any, dropout: Any, proj_size: Any
) -> None:
    """Check nn.LSTM's arguments, switches aside. Here and below, messages contain torch's words: people search them."""
    name = type(layer).__name__
    check_int(layer, "input_size", input_size)
    check_int(layer, "hidden_size", hidden_size)
    check_int(layer, "num_layers", num_layers)
    if isinstance(dropout, bool) or not isinstance(dropout, int | float) or not 0 <= dropout <= 1:
        raise MnemoscopeError(f"{name}: dropout should be a number in range [0, 1], a probability; got {dropout!r}")
    if dropout > 0 and num_layers == 1:
        warn_caller(
            f"{name}: dropout option adds dropout after all but last recurrent layer, so non-zero dropout expects "
            f"num_layers greater than 1, but got dropout={dropout} and num_layers={num_layers}"
        )
    check_int(layer, "proj_size", proj_size, least=0)
    if proj_size and not layer.has_projection:
        raise MnemoscopeError(
            f"{name}: proj_size argument is only supported for LSTM, not RNN or GRU (and for RelLSTM, MemLSTM and "
            f"SAB); got {proj_size!r}: put an nn.Linear behind the layer"
        )
    if proj_size >= hidden_size:
        raise MnemoscopeError(f"{name}: proj_size has to be smaller than hidden_size, {hidden_size}; got {proj_size!r}")


def check_int(layer: Layer, option: str, value: Any, least: int = 1) -> None:
    name = type(layer).__name__
    if not isinstance(value, int) or isinstance(value, bool):
        raise ArgumentTypeError(f"{name}: {option} should be of type int, got: {type(value).__name__} ({value!r})")
    if value < least:
        rule = "greater than zero" if least == 1 else f"at least {least}"
        raise MnemoscopeError(f"{name}: {option} must be {rule}; got {value!r}")


def check_bool(layer: Layer, option: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise ArgumentTypeError(
            f"{type(layer).__name__}: {option} should be of type bool, got: {type(value).__name__} ({value!r}); the "
            "layer's own options go by keyword"
        )


def check_choice(layer: Layer, option: str, value: Any, allowed: Sequence[str]) -> None:
    if value not in allowed:
        first, last = ", ".join(map(repr, allowed[:-1])), repr(allowed[-1])
        raise MnemoscopeError(f"{type(layer).__name__}: {option} must be {first} or {last}; got {value!r}")


def check_input(layer: Layer, x: Any, packed: bool = False) -> None:
    if not isinstance(x, Tensor):
        raise InputError(f"{layer._get_name()} expects a tensor or a PackedSequence; got a {type(x).__name__}")
    if torch.jit.is_tracing():  # sizes are not numbers there, and torch warns of every comparison
        return
    dimensions = x.dim()
    if not packed and dimensions not in (2, 3):
        raise InputError(
            f"{layer._get_name()}: Expected input to be 2D or 3D, {_layout(layer)}, or (time, input_size) unbatched; "
            f"got {dimensions}D, {list(x.shape)}"
        )
    if x.shape[-1] != layer.input_size:
        raise InputError(
            f"{layer._get_name()}: input.size(-1) must be equal to input_size. Expected {layer.input_size}, got "
            f"{x.shape[-1]}: input {list(x.shape)}"
        )
    time = 1 if layer.batch_first and dimensions == 3 and not packed else 0
    if x.shape[time] == 0:
        raise InputError(
            f"{layer._get_name()}: Expected sequence length to be larger than 0 in RNN; got input {list(x.shape)}, "
            f"{_layout(layer)}"
        )
    expected = next(iter(layer._parameters.values()), None)
    if expected is None:  # a replica of nn.DataParallel holds its weights as plain tensors
        return
    if x.dtype != expected.dtype and not torch.is_autocast_enabled(x.device.type):
        raise InputError(
            f"{layer._get_name()}: RNN input dtype ({x.dtype}) does not match weight dtype ({expected.dtype}). "
            f"Convert input: input.to({expected.dtype}), or convert model: model.to({x.dtype})"
        )
    if x.device != expected.device:
        raise InputError(
            f"{layer._get_name()}'s parameters are on {expected.device}; got input on {x.device}: move one with "
            ".to(device)"
        )


def check_step_input(layer: Layer, x: Any) -> None:
    if not isinstance(x, Tensor) or x.dim() != 2 or x.shape[1] != layer.input_size:
        raise MnemoscopeError(
            f"{layer._get_name()}.step expects the input of one step, (batch, input_size) with "
            f"input_size={layer.input_size}; got {describe(x)}"
        )


def _layout(layer: Layer) -> str:
    return "(batch, time, input_size)" if layer.batch_first else "(time, batch, input_size)"


def check_state(layer: Layer, state: State, x: Tensor, batch: int) -> State:
    """Return the state in the form that the layer works with, or raise an error that says what does not fit.

    Every tensor of it is checked here and nowhere else: shape, type and device, and on the CPU the numbers that count
    steps. On a GPU reading them would wait for the device; there the kernels bring them into range.

    Args:
        layer: the layer that will read the state.
        state: what the caller gave.
        x: the input, whose type and device the state must have.
        batch: the number of sequences.
    """
    coerced = layer.coerce_state(state)
    memory = coerced.memory if isinstance(coerced, AttentiveState) else None
    device = x.device
    for part in _parts(layer, coerced, x.dtype, batch):
        _, tensor, shape, dtype = part
        if (
            not isinstance(tensor, Tensor)
            or tensor.shape != shape
            or tensor.dtype != dtype
            or tensor.device != device
            or tensor.layout is not torch.strided
        ):
            _explain_misfit(layer, state, part, x, batch)
    if memory is not None and x.is_cpu and not kernels.is_traced_or_transformed():
        _check_steps(layer, memory)
    return coerced


class _Part(NamedTuple):
    """One tensor of a state, and the shape and the type that it must have."""

    name: str
    tensor: Any
    shape: tuple[int, ...]
    dtype: torch.dtype


def _parts(layer: Layer, state: State, dtype: torch.dtype, batch: int) -> list[_Part]:
    """Return every tensor of a state with what is expected of it; `dtype` is that of the input."""
    layers = layer.num_layers * layer.num_directions
    shapes = [(layers, batch, size) for size in layer.state_sizes]
    if not isinstance(state, AttentiveState):
        tensors = [state] if isinstance(state, Tensor) else leaves(state)
        named = zip(layer.state_names, tensors, shapes, strict=False)
        rest = tensors[len(shapes) :]  # of a layer with a state of its own form
        return [_Part(name, tensor, shape, dtype) for name, tensor, shape in named] + [
            _Part("part", tensor, tensor.shape, dtype if tensor.is_floating_point() else tensor.dtype)
            for tensor in rest
        ]
    h_shape = shapes[0]
    memory = state.memory
    slots = cast("MemoryLayer", layer).fixed_slots
    if slots is None:  # any number, but the same everywhere
        slots = memory.origin.shape[-1] if isinstance(memory.origin, Tensor) and memory.origin.dim() else 0
    slots_shape = (layers, batch, slots)
    values_shape = (layers, batch, slots, h_shape[2])
    return [
        *[_Part(*part, dtype) for part in zip(layer.state_names, state, shapes, strict=True)],
        _Part("s", state.s, h_shape, dtype),
        _Part("memory.values", memory.values, values_shape, dtype),
        _Part("memory.keys", memory.keys, values_shape, dtype),
        _Part("memory.origin", memory.origin, slots_shape, torch.int64),
        _Part("memory.relevance", memory.relevance, slots_shape, dtype),
        _Part("memory.clock", memory.clock, (layers, batch), torch.int64),
    ]


def _explain_misfit(layer: Layer, state: State, part: _Part, x: Tensor, batch: int) -> None:
    """Raise the error that a part of a state calls for; none under autocast, where any floating-point type will do."""
    name, tensor, shape, dtype = part
    if not isinstance(tensor, Tensor) or tensor.layout is not torch.strided or tensor.shape != shape:
        if name in layer.state_names:
            raise state_error(layer, state, batch)
        raise InputError(
            f"{layer._get_name()}'s state does not fit: its {name} must be a tensor {list(shape)}; got "
            f"{describe(tensor)}: was it made by another layer, or for another batch?"
        )
    if tensor.device != x.device:
        raise InputError(
            f"{layer._get_name()} got input on {x.device} and a state on {tensor.device}: move it with "
            "mnemoscope.to(state, x.device)"
        )
    if dtype == torch.int64:
        raise InputError(
            f"{layer._get_name()}'s state does not fit: its {name} counts steps in torch.int64; got "
            f"{tensor.dtype}: convert a state with mnemoscope.to(state, dtype), which leaves its integers"
        )
    if not tensor.is_floating_point() or not torch.is_autocast_enabled(x.device.type):
        raise InputError(
            f"{layer._get_name()} got input of {x.dtype} and a state of {tensor.dtype}: convert it with "
            f"mnemoscope.to(state, {x.dtype})"
        )


def _check_steps(layer: Layer, memory: Memory) -> None:
    """Check that a clock is not negative, and that a state was made before it; -1 is an empty slot."""
    origin, clock = memory.origin, memory.clock
    if not kernels.steps_in_range(origin, clock):
        origins = f" and origins from {int(origin.min())} to {int(origin.max())}" if origin.numel() else ""
        raise InputError(
            f"{layer._get_name()}'s state does not fit: its memory.clock must count steps from 0 on, and its "
            f"memory.origin must be steps before the clock, or -1; got clocks from {int(clock.min())} to "
            f"{int(clock.max())}{origins}: carry on a state as a layer returned it"
        )


def add_batch_axis(layer: Layer, state: State) -> State:
    """Return an unbatched state as that of one sequence. What is not a tensor is left to `check_state`."""

    def add(tensor: Any) -> Any:
        if isinstance(tensor, Tensor) and tensor.dim() == 0:
            raise state_error(layer, state)
        return tensor.unsqueeze(1) if isinstance(tensor, Tensor) else tensor

    return map_state(add, state)


def state_error(layer: Layer, state: State, batch: int | None = None) -> InputError:
    first = layer.num_layers * layer.num_directions
    shapes = dict.fromkeys(f"[{first}, {'batch' if batch is None else batch}, {size}]" for size in layer.state_sizes)
    return InputError(
        f"{layer._get_name()} expects a state of {' and '.join(layer.state_names)}. Expected hidden size (layers * "
        f"directions, batch, hidden_size) = {' and '.join(shapes)}, got {describe(state)}: was it made by another "
        "layer, or for another batch?"
    )


def weight_error(layer: Layer, name: str, weight: Any, shape: tuple[int, ...], device: torch.device) -> InputError:
    where = f" on {device}, as those before it" if weight.device != device else ""
    return InputError(
        f"{layer._get_name()}'s {name} must be {list(shape)}{where}; got {describe(weight)}"
        + (f" on {weight.device}: was it not loaded?" if where else ": was it replaced by the weight of another layer?")
    )
