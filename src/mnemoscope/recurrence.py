"""The one contract: a recurrence is an initial state and a step.

Whatever has these two can be run over a sequence, fed in pieces, traced and examined.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, TypeVar

import torch
from torch import Tensor, nn

from mnemoscope.errors import MnemoscopeError

State: TypeAlias = Any
"""A tensor, or a (nested) tuple of states. Every tensor in it is (layers * directions, batch, ...)."""

S = TypeVar("S", bound=State)


def map_state(fn: Callable[[Tensor], Tensor], state: S) -> S:
    """Apply `fn` to every tensor of a state and keep its structure."""
    if type(state) is Tensor:  # first, for speed: to learn that a tensor lacks an attribute takes long
        return fn(state)  # type: ignore[return-value]
    if hasattr(state, "map_state"):  # a state of its own kind; it may be a tensor that carries others
        return state.map_state(fn)
    if isinstance(state, Tensor):
        return fn(state)  # type: ignore[return-value]
    if not isinstance(state, tuple | list):  # not any sequence: the items of a string are strings again
        raise MnemoscopeError(f"a state is a tensor or a (nested) tuple of tensors; got {describe(state)}")
    items = [map_state(fn, item) for item in state]
    return type(state)(*items) if hasattr(state, "_fields") else tuple(items)  # type: ignore[return-value]


def leaves(state: State) -> list[Tensor]:
    """Return the tensors of a state, in a fixed order."""
    tensors: list[Tensor] = []

    def collect(tensor: Tensor) -> Tensor:
        tensors.append(tensor)
        return tensor

    map_state(collect, state)
    return tensors


def rebuild(state: S, tensors: Sequence[Tensor]) -> S:
    """Return a state with the structure of `state` and these tensors, in the order of `leaves`."""
    remaining = iter(tensors)
    return map_state(lambda _: next(remaining), state)


def detach(state: S) -> S:
    """Return the same state, detached from the graph: what truncated backpropagation carries over.

    Examples:
        >>> layer = mnemoscope.LSTM(3, 16)
        >>> state = None
        >>> for chunk in torch.randn(40, 4, 3).split(20):
        ...     output, state = layer(chunk, state)
        ...     output.sum().backward()
        ...     state = mnemoscope.detach(state)
    """
    return map_state(Tensor.detach, state)


def to(state: S, *args: Any, **kwargs: Any) -> S:
    """Move a state as ``Tensor.to`` does; integer tensors (clocks, origins) keep their type.

    Examples:
        >>> output, state = mnemoscope.RelLSTM(3, 16)(torch.randn(20, 4, 3))
        >>> h, c = mnemoscope.to(state, torch.float64)
    """

    def move(tensor: Tensor) -> Tensor:
        if tensor.is_floating_point():
            return tensor.to(*args, **kwargs)
        device = torch.empty(0, device=tensor.device).to(*args, **kwargs).device  # where a number would go
        return tensor.to(device, copy=kwargs.get("copy", False), non_blocking=kwargs.get("non_blocking", False))

    return map_state(move, state)


def select(state: S, rows: Any) -> S:
    """Return the state of some sequences of the batch.

    `rows` is an index, a slice, a list, or a tensor of indices or a mask. A single index, of whatever integer type,
    gives a batch of one.

    Examples:
        >>> output, state = mnemoscope.LSTM(3, 16)(torch.randn(20, 4, 3))
        >>> h, c = mnemoscope.select(state, [0, 2])
        >>> h.shape
        torch.Size([1, 2, 16])
    """
    single = not isinstance(rows, slice | Sequence) and getattr(rows, "ndim", 0) == 0
    return map_state(lambda t: t[:, [int(rows)] if single else rows], state)


def reset(state: S, rows: Any, initial: State | None = None) -> S:
    """Return the state in which some sequences of the batch begin anew; the others go on, with their gradients.

    A memory is empty in these rows. Slots of a growing memory that are then empty in all rows are dropped.

    Args:
        state: every tensor (layers * directions, batch, ...), also nn.LSTM's (h, c). It is not changed.
        rows: a mask (batch,) of bool, or indices; a tensor, an array, a list, a slice or one index.
        initial: the state before the first step, of one sequence or of the whole batch: ``layer.initial_state(1)``, or
            a learned one. By default zeros and an empty memory, with which every layer but `RAC` begins.

    Examples:
        >>> layer = mnemoscope.RelRNN(3, 16)
        >>> output, h = layer(torch.randn(20, 4, 3))
        >>> h = mnemoscope.reset(h, torch.tensor([True, False, False, False]))  # sequence 0 has ended
        >>> bool(h[:, 0].any()), bool(h[:, 1].any())
        (False, True)
    """
    tensors = leaves(state)
    if not tensors or tensors[0].dim() < 2:
        raise MnemoscopeError(f"reset needs a state (layers * directions, batch, ...); got {describe(state)}")
    mask = row_mask(rows, tensors[0].shape[1])
    if not isinstance(rows, Tensor) and not mask.any():
        return state
    return _reset(state, mask.to(tensors[0].device), initial)


def _reset(state: State, mask: Tensor, initial: State | None) -> State:
    if hasattr(state, "reset_rows"):  # a state of its own kind, which knows what its tensors mean
        return state.reset_rows(mask, initial)
    if isinstance(state, Tensor):
        return fill_rows(state, mask, 0 if initial is None else initial_part(state, initial))
    parts = initial_parts(state, initial)
    items = [_reset(item, mask, part) for item, part in zip(state, parts, strict=True)]
    return type(state)(*items) if hasattr(state, "_fields") else type(state)(items)


def fill_rows(tensor: Tensor, mask: Tensor, value: Tensor | float) -> Tensor:
    """Return a tensor (layers * directions, batch, ...) with `value` in the rows that a mask (batch,) marks."""
    return torch.where(mask.view(1, -1, *[1] * (tensor.dim() - 2)), value, tensor)


def initial_parts(state: Sequence[State], initial: State | None) -> Sequence[State | None]:
    """Return the initial state of each part of a state; None for each if it is zero."""
    if initial is None:
        return [None] * len(state)
    parts = initial if isinstance(initial, tuple | list) else (initial,)
    if len(parts) != len(state):
        raise MnemoscopeError(f"reset: the initial state is {describe(initial)}, the state {describe(state)}")
    return parts


def initial_part(tensor: Tensor, initial: State) -> Tensor:
    """Return the initial state of one tensor, which must be of one sequence or of the whole batch."""
    if isinstance(initial, tuple | list) and len(initial) == 1:
        (initial,) = initial
    expected = tensor.shape[:1] + tensor.shape[2:]
    fits = isinstance(initial, Tensor) and initial.shape[:1] + initial.shape[2:] == expected
    if not fits or initial.shape[1] not in (1, tensor.shape[1]):
        raise MnemoscopeError(f"reset: the initial state is {describe(initial)}, the state {describe(tensor)}")
    return initial


def row_mask(rows: Any, batch: int) -> Tensor:
    """Return a mask (batch,) of the sequences that a mask, indices, a slice or an index name."""
    if isinstance(rows, slice):
        rows = torch.arange(batch)[rows]
    rule = f"rows must be a mask of bool, [{batch}], or different indices of the batch"
    try:
        rows = torch.as_tensor(rows)
    except (TypeError, ValueError, RuntimeError):
        raise MnemoscopeError(f"{rule}; got {describe(rows)}") from None
    if rows.dtype is torch.bool and rows.shape == (batch,):
        return rows
    mask = torch.zeros(batch, dtype=torch.bool, device=rows.device)
    if not rows.numel():
        return mask
    if rows.dtype not in (torch.int32, torch.int64) or rows.dim() > 1:
        raise MnemoscopeError(f"{rule}; got {list(rows.shape)} of {str(rows.dtype).removeprefix('torch.')}")
    try:
        mask[rows.long()] = True
    except IndexError:
        raise MnemoscopeError(f"rows must be indices of a batch of {batch}; got {rows.tolist()}") from None

    # A mask of 0 and 1, read as indices, would reset rows 0 and 1. On a GPU the check would wait for the device, and
    # while torch compiles there are no numbers to check.
    readable = rows.device.type == "cpu" and not torch.compiler.is_compiling()
    if readable and int(mask.sum()) < rows.numel():
        hint = "if these zeros and ones are a mask, make it one of bool"
        raise MnemoscopeError(f"{rule}; got {rows.tolist()}: {hint}")
    return mask


def describe(state: State) -> str:
    """Return a state's shapes in words, for an error message."""
    if isinstance(state, Tensor):
        return f"a tensor {list(state.shape)}"
    name = type(state).__name__
    inside = f" of ({', '.join(describe(item) for item in state)})" if isinstance(state, tuple | list) else ""
    return f"{'an' if name[0] in 'AEIOaeio' else 'a'} {name}{inside}"


class Attention(NamedTuple):
    """What one layer attended to in one step, slot by slot of its memory.

    Attributes:
        weights: (batch, slots), the attention given to the state in each slot; zero for an empty slot.
        origin: (batch, slots), the step at which that state was made, -1 for an empty slot.
        relevance: (batch, slots), the attention that it has received so far, as far as it is counted; None if the
            layer does not count.
    """

    weights: Tensor
    origin: Tensor
    relevance: Tensor | None = None


class Screening(NamedTuple):
    """How a memory of constant size is filled.

    Attributes:
        buffer: slots [0, buffer) hold the last states, the others hold older states kept for their relevance.
        decay: what the relevance of the older states is multiplied by at every step.
    """

    buffer: int
    decay: float = 1.0


class AdditiveParameters(NamedTuple):
    """W_a, U_a (n, n) and v (n,) of the scores v^T tanh(W_a s + U_a h_i), and the factor f of s = f (h + c)."""

    query: Tensor
    key: Tensor
    score: Tensor
    factor: float


class Recurrence(nn.Module, ABC):
    """A network that reads a sequence one step at a time.

    Write `initial_state` and `step`; the loop over time, traces, Jacobians and every scope follow from them. The state
    must hold everything that the next step needs, so that a sequence fed in pieces gives the numbers and the gradients
    of one fed whole. A recurrence that attends to its past says so by `observe`.

    Examples:
        >>> class Sum(mnemoscope.Recurrence):
        ...     input_size = hidden_size = 3
        ...     def initial_state(self, batch):
        ...         return torch.zeros(1, batch, 3)
        ...     def step(self, x, state):
        ...         h = 0.9 * state + x
        ...         return h[0], h
        >>> output, state = Sum()(torch.randn(20, 4, 3))  # (20, 4, 3) and (1, 4, 3)
    """

    input_size: int
    hidden_size: int
    num_layers: int = 1
    batch_first: bool = False
    """Whether `forward` reads (batch, time, features) instead of (time, batch, features)."""
    bidirectional: bool = False

    @property
    def output_size(self) -> int:
        """Features of one step's output."""
        return self.hidden_size

    @abstractmethod
    def initial_state(self, batch: int) -> State:
        """Return the state before the first step, every tensor (layers * directions, batch, ...)."""

    @abstractmethod
    def step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """Return the output (batch, output_size) of one step's input x (batch, input_size), and the next state."""

    def observe(self, x: Tensor, state: State) -> tuple[Tensor, State, tuple[Attention, ...] | None]:
        """Return `step`'s result, and what each layer attended to; None without attention."""
        output, state = self.step(x, state)
        return output, state, None

    @property
    def screening(self) -> Screening | None:
        """How the memory is kept at a constant size; None if there is none, or if it keeps every state."""
        return None

    def additive_parameters(self, layer: int = 0) -> AdditiveParameters | None:
        """Return what the additive attention of one layer is computed with; None if it has none."""
        return None

    def forward(self, x: Tensor, state: State | None = None, *, starts: Tensor | None = None) -> tuple[Tensor, State]:
        """Return the outputs (time, batch, output_size) of x (time, batch, input_size), and the last state.

        `starts` (time, batch) is True where a new sequence begins: the step there comes from the initial state.
        """
        if state is None:
            state = self.initial_state(x.shape[1])
        initial = None if starts is None else self.initial_state(x.shape[1])
        outputs = []
        for t, x_t in enumerate(x.unbind(0)):  # indexing x[t] would make the backward pass quadratic in time
            if starts is not None:
                state = reset(state, starts[t], initial)
            output, state = self.step(x_t, state)
            outputs.append(output)
        return torch.stack(outputs), state


@dataclass(frozen=True)
class Trace:
    """A run of T steps, with everything that happened in it.

    `states[0]` is the state before the first step, `states[t]` the one after step t. For layers with a memory,
    `attention[t][layer]` is (batch, slots): the weights used in step t, and `origin[t][layer]` (batch, slots): the step
    at which each attended state was made, -1 for an empty slot.
    """

    output: Tensor  # (T, batch, output_size)
    states: tuple[State, ...]
    attention: tuple[tuple[Tensor, ...], ...] | None = None
    origin: tuple[tuple[Tensor, ...], ...] | None = None

    def stacked(self, leaf: int = 0) -> Tensor:
        """Return one tensor of the state over time, without the initial one: (T, layers, batch, ...)."""
        return torch.stack([leaves(state)[leaf] for state in self.states[1:]])

    def attention_by_origin(self, layer: int = 0) -> Tensor:
        """Return the attention that step t gave to the state made at each earlier step: (batch, T, steps)."""
        if self.attention is None or self.origin is None:
            raise MnemoscopeError("this model has no attention: attention_by_origin needs a layer with a memory")
        origins = [step[layer] for step in self.origin]
        width = 1 + max((int(origin.max()) for origin in origins if origin.numel()), default=0)
        rows = []
        for weights, origin in zip(self.attention, origins, strict=True):
            zeros = weights[layer].new_zeros(weights[layer].shape[0], width)
            filled = torch.where(origin >= 0, weights[layer], 0)
            rows.append(zeros.scatter_add(1, origin.clamp(min=0), filled))
        return torch.stack(rows, 1)


def trace(model: Recurrence, x: Tensor, state: State | None = None, *, grad: bool = False) -> Trace:
    """Run `model` over x step by step and keep every state, output, attention weight and slot origin.

    x has the layout that the model itself expects, batched. With ``grad=True`` the run stays in the graph, and after a
    backward pass the output and every tensor of every state, the initial one included, have their ``.grad``: a state's
    is what reaches it from later steps, None where none of them reads it. Otherwise nothing is recorded.

    Examples:
        >>> layer = mnemoscope.LSTM(3, 16)
        >>> run = mnemoscope.trace(layer, torch.randn(20, 4, 3), grad=True)
        >>> run.output[-1].sum().backward()
        >>> h, c = run.states[5]  # after step 5; its gradient says how much the last output depends on it
        >>> h.grad.shape
        torch.Size([1, 4, 16])
    """
    if not hasattr(model, "observe"):
        raise MnemoscopeError(
            f"trace needs a Recurrence; got {type(model).__name__}: mnemoscope.adapters.as_recurrence makes one of it"
        )
    if not isinstance(x, Tensor) or x.dim() != 3:
        raise MnemoscopeError(f"trace expects batched input with 3 dimensions; got {describe(x)}")
    if model.batch_first:
        x = x.transpose(0, 1)
    if not len(x):
        raise MnemoscopeError(f"trace needs a sequence of at least one step; got {describe(x)}, time first")
    with torch.set_grad_enabled(grad):
        if state is None:
            state = map_state(_require_grad, model.initial_state(x.shape[1]))
        return _run(model, x, state, grad)


def _require_grad(tensor: Tensor) -> Tensor:
    """Return a tensor of the initial state that gradients can be asked for."""
    if not torch.is_grad_enabled() or not tensor.is_floating_point() or tensor.requires_grad:
        return tensor
    return tensor.detach().requires_grad_()


def _run(model: Recurrence, x: Tensor, state: State, grad: bool) -> Trace:
    outputs = []
    states = [state]
    weights = []
    origin = []
    for x_t in x.unbind(0):
        output, state, attention = model.observe(x_t, state)
        outputs.append(output)
        states.append(state)
        if attention is not None:
            weights.append(tuple(layer.weights for layer in attention))
            origin.append(tuple(layer.origin for layer in attention))

    output = torch.stack(outputs)
    if grad:
        for tensor in (output, *leaves(tuple(states))):
            if tensor.requires_grad:
                tensor.retain_grad()
    return Trace(output, tuple(states), tuple(weights) or None, tuple(origin) or None)
