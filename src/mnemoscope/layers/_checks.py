"""Errors for wrong arguments, inputs and states of layers: the rule, what was received, what to do."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

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

_LAST_STEP = 2**62  # a clock can go on from here for longer than any run


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
    """Check nn.LSTM's arguments, switches aside. Messages contain torch's, by which people search."""
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
            f"{name}: proj_size argument is only supported for LSTM, RelLSTM, MemLSTM and SAB; got {proj_size!r} (put "
            "an nn.Linear behind the layer)"
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
    dimensions = x.dim()
    if not packed and dimensions not in (2, 3):
        raise InputError(
            f"{layer._get_name()} expects input {_layout(layer)}, or (time, input_size) unbatched; got {list(x.shape)}"
        )
    if x.shape[-1] != layer.input_size:
        raise InputError(
            f"{layer._get_name()} was made with input_size={layer.input_size}; got input {list(x.shape)}, whose last "
            f"dimension is {x.shape[-1]}"
        )
    time = 1 if layer.batch_first and dimensions == 3 and not packed else 0
    if x.shape[time] == 0:
        raise InputError(
            f"{layer._get_name()} needs a sequence of at least one step; got input {list(x.shape)}, {_layout(layer)}"
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
    shapes = [(layer.num_layers * layer.num_directions, batch, size) for size in layer.state_sizes]
    memory = coerced.memory if isinstance(coerced, AttentiveState) else None
    tensors = leaves(coerced)
    if [_shape(tensor) for tensor in tensors[: len(shapes)]] != shapes:
        raise state_error(layer, state, batch)
    if memory is not None:
        _check_shape(layer, "s", coerced.s, shapes[0])
        _check_memory_shapes(cast("MemoryLayer", layer), memory, shapes[0])
    counters = () if memory is None else (memory.origin, memory.clock)
    for tensor in tensors:
        if all(tensor is not counter for counter in counters):
            _check_floating_point(layer, tensor, x)
        if tensor.device != x.device:
            raise InputError(
                f"{layer._get_name()} got input on {x.device} and a state on {tensor.device}: move it with "
                "mnemoscope.to(state, x.device)"
            )
    if memory is not None:
        _check_steps(layer, memory)
    return coerced


def add_batch_axis(layer: Layer, state: State) -> State:
    """Return an unbatched state as that of one sequence. What is not a tensor is left to `check_state`."""

    def add(tensor: Any) -> Any:
        if isinstance(tensor, Tensor) and tensor.dim() == 0:
            raise state_error(layer, state)
        return tensor.unsqueeze(1) if isinstance(tensor, Tensor) else tensor

    return map_state(add, state)


def _shape(tensor: Any) -> Any:
    """Return a tensor's shape; None for anything else, and for a tensor that is not laid out by strides."""
    return tensor.shape if isinstance(tensor, Tensor) and tensor.layout is torch.strided else None


def _check_shape(layer: Layer, name: str, tensor: Any, shape: tuple[int, ...]) -> None:
    if _shape(tensor) != shape:
        raise InputError(
            f"{layer._get_name()}'s state does not fit: its {name} must be a tensor {list(shape)}; got "
            f"{describe(tensor)}: was it made by another layer, or for another batch?"
        )


def _check_memory_shapes(layer: MemoryLayer, memory: Memory, shape: tuple[int, int, int]) -> None:
    """Check the shapes of a memory, and that its counters are integers; `shape` is that of h."""
    origin_shape = _shape(memory.origin)
    slots = origin_shape[-1] if origin_shape else 0
    if not layer.memory_fits(slots):
        raise InputError(
            f"{layer._get_name()}'s state does not fit: its memory must have the layer's own number of slots; got "
            f"{slots}: was it made by another layer?"
        )
    layers, batch, n = shape
    _check_shape(layer, "memory.values", memory.values, (layers, batch, slots, n))
    _check_shape(layer, "memory.keys", memory.keys, (layers, batch, slots, n))
    _check_shape(layer, "memory.origin", memory.origin, (layers, batch, slots))
    _check_shape(layer, "memory.relevance", memory.relevance, (layers, batch, slots))
    _check_shape(layer, "memory.clock", memory.clock, (layers, batch))
    for name, tensor in (("origin", memory.origin), ("clock", memory.clock)):
        if tensor.dtype != torch.int64:
            raise InputError(
                f"{layer._get_name()}'s state does not fit: its memory.{name} counts steps in torch.int64; got "
                f"{tensor.dtype}: convert a state with mnemoscope.to(state, dtype), which leaves its integers"
            )


def _check_floating_point(layer: Layer, tensor: Tensor, x: Tensor) -> None:
    """Check that a tensor of a state has the type of the input x; under autocast, any floating-point type."""
    if tensor.dtype == x.dtype or (tensor.is_floating_point() and torch.is_autocast_enabled(x.device.type)):
        return
    raise InputError(
        f"{layer._get_name()} got input of {x.dtype} and a state of {tensor.dtype}: convert it with "
        f"mnemoscope.to(state, {x.dtype})"
    )


def _check_steps(layer: Layer, memory: Memory) -> None:
    """Check that a clock is not negative, and that a state was made before it; -1 is an empty slot."""
    origin, clock = memory.origin, memory.clock
    if clock.device.type != "cpu" or not clock.numel() or kernels.is_traced_or_transformed():
        return
    first, last = torch.aminmax(clock)
    made_before = (origin >= -1) & (origin < clock.unsqueeze(-1))
    if int(first) < 0 or int(last) > _LAST_STEP or not made_before.all():
        raise InputError(
            f"{layer._get_name()}'s state does not fit: its memory.clock must count steps from 0 on, and "
            f"its memory.origin must be steps before the clock, or -1; got clocks from {int(first)} to {int(last)}"
            f"{_range_of(origin)}: carry on a state as a layer returned it"
        )


def _range_of(origin: Tensor) -> str:
    return f" and origins from {int(origin.min())} to {int(origin.max())}" if origin.numel() else ""


def state_error(layer: Layer, state: State, batch: int | None = None) -> InputError:
    first = layer.num_layers * layer.num_directions
    shapes = dict.fromkeys(f"[{first}, {'batch' if batch is None else batch}, {size}]" for size in layer.state_sizes)
    return InputError(
        f"{layer._get_name()} expects a state of {' and '.join(layer.state_names)}, (layers * directions, batch, "
        f"hidden_size) = {' and '.join(shapes)}; got {describe(state)}: was it made by another layer, or for another "
        "batch?"
    )
