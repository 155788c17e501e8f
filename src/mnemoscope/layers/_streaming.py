"""One step of an attentive layer by the compiled CPU kernel, for streams and agents: nothing is differentiated.

A step leaves the state that it is given as it was, unless the caller allows otherwise. Yet it does not copy a memory
that grows: it writes the new state into the first slot that no older state can see.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mnemoscope import kernels
from mnemoscope.layers._base import Layer
from mnemoscope.layers._carried import AttentiveState, CarryingTensor, present_state
from mnemoscope.layers._checks import check_state, check_step_input
from mnemoscope.layers._memory import Memory
from mnemoscope.layers._weights import Weights
from mnemoscope.recurrence import State
from mnemoscope.torch_internals import any_requires_grad, are_plain

if TYPE_CHECKING:
    from mnemoscope.layers._attentive import AdditiveAttention


class Room:
    """A memory with room for more slots than a state holds, which the states of one stream share.

    A state has the first slots of it. The step after it takes the next one, which only one step can.
    """

    def __init__(self, memory: Memory, slots: int) -> None:
        layers, batch, held, n = memory.values.shape
        self.values = memory.values.new_empty(layers, batch, slots, n)
        self.keys = torch.empty_like(self.values)
        self.origin = memory.origin.new_empty(layers, batch, slots)
        self.relevance = memory.relevance.new_empty(layers, batch, slots)
        for whole, part in zip(self.tensors, memory, strict=False):
            whole[:, :, :held] = part
        self._slots = slots
        self._held = held
        self._lock = threading.Lock()

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.values, self.keys, self.origin, self.relevance

    def claim(self, held: int) -> bool:
        """Take the slot behind the first `held`; False if there is none, or if another step has it."""
        with self._lock:
            if self._held != held or held == self._slots:
                return False
            self._held += 1
            return True

    def memory(self, held: int, clock: Tensor) -> Memory:
        """Return the memory of the first `held` slots."""
        values, keys, origin, relevance = (t.narrow(2, 0, held) for t in self.tensors)
        return Memory(values, keys, origin, relevance, clock)


class Made:
    """What a step leaves with the h it made, so that the next one need not check the state again.

    Attributes:
        layer, options: whose step it was.
        state: the state in the form that the layer computes with, every tensor contiguous but those of a `room`.
        room: the memory that this one is a part of, if it grows.
    """

    __slots__ = ("layer", "options", "room", "state")

    def __init__(
        self, layer: Layer, options: kernels.AttentionOptions, state: AttentiveState, room: Room | None
    ) -> None:
        self.layer = layer
        self.options = options
        self.state = state
        self.room = room

    def fits(self, layer: Layer, options: kernels.AttentionOptions, state: State, h: CarryingTensor, x: Tensor) -> bool:
        """True if the caller's state is what that step made, for another step of the same layer."""
        mine = self.state
        if self.layer is not layer or self.options != options or not h.is_current:
            return False
        if h.s is not mine.s or h.memory is not mine.memory or (len(mine) > 1 and state[1] is not mine[1]):
            return False
        return x.dtype is mine.s.dtype and x.shape[0] == mine.s.shape[1]


def step_by_kernel(layer: AdditiveAttention, x: Tensor, state: State, inplace: bool) -> tuple[Tensor, State] | None:
    """Return the output (batch, features) of one step and the state after it; None where the eager step must run."""
    check_step_input(layer, x)
    if not kernels.can_step("attentive", x):
        return None
    options = layer.kernel_attention()
    if options is None or layer.bidirectional or not layer.unchanged_from(Layer, "observe", "project"):
        return None
    weights = [layer.weights(index) for index in range(layer.num_layers)]
    V = weights[0].weight_hh
    if V.dtype is not x.dtype or not V.is_cpu or not are_plain([x], on_cuda=False):
        return None

    # The state before the step.
    h = state[0] if isinstance(state, tuple | list) and state else state
    carrier = h if isinstance(h, CarryingTensor) else None
    made: Made | None = None if carrier is None else carrier.made
    if made is not None and carrier is not None and made.fits(layer, options, state, carrier, x):
        before = made.state
    else:
        made = None
        before = check_state(layer, state, x, x.shape[0])
        read = [*before, before.s, *before.memory, *(t for w in weights for t in vars(w).values())]
        if not are_plain(read, on_cuda=False):
            return None
    if torch.is_grad_enabled():
        parameters = (t for w in weights for t in vars(w).values())
        if any_requires_grad(x, *before, before.s, *before.memory, *parameters):
            return None

    # Where the memory after the step is written.
    held = before.memory.origin.shape[2]
    room = None
    if options.buffer < 0:
        room = None if made is None else made.room
        if room is None or not room.claim(held):
            room = Room(before.memory, held + max(16, held))
            room.claim(held)
        memory = Memory(room.values, room.keys, room.origin, room.relevance, before.memory.clock)
        after = memory._replace(clock=torch.empty_like(memory.clock))
    else:
        memory = Memory(*map(_contiguous, before.memory))
        reusable = inplace and carrier is not None and not any_requires_grad(*memory)
        after = memory if reusable else Memory(*map(torch.empty_like, memory))

    # The step.
    shape = before.s.shape
    c = x.new_empty(shape) if len(before) > 1 else None
    done = kernels.StepResults(x.new_empty(shape), x.new_empty(shape), c, *after)
    output = _run_stack(layer, options, weights, x, before, memory, done, held)

    # The state after it, and the end of the one before if it was overwritten.
    if room is not None:
        after = room.memory(held + 1, after.clock)
    elif after is memory and carrier is not None:
        _mark_overwritten(carrier, memory)
    visible = (done.h,) if done.c is None else (done.h, done.c)
    computed = AttentiveState(visible, done.s, after, layer.memory_layout)
    presented = present_state(computed)
    (presented[0] if isinstance(presented, tuple) else presented).made = Made(layer, options, computed, room)
    return output, presented


def _run_stack(
    layer: AdditiveAttention,
    options: kernels.AttentionOptions,
    weights: list[Weights],
    x: Tensor,
    before: AttentiveState,
    memory: Memory,
    done: kernels.StepResults,
    held: int,
) -> Tensor:
    """Write what the layers of a stack make of one step into `done`, and return the output of the last."""
    state = kernels.AttentionState(_contiguous(before.s), _contiguous(before[1]) if len(before) > 1 else None)
    carried = kernels.CarriedMemory(*memory)
    outputs = done.h if layer.output == "h" else done.s
    for index, w in enumerate(weights):
        inputs = [x, w.weight_ih, *layer._biases(w)]
        b = w.bias_modrelu if options.phi == "modrelu" else None
        attention = [w.weight_hh, w.weight_query, w.weight_key, w.weight_score, b]
        kernels.attentive_step(
            kernels.Projection(*map(_contiguous, inputs)),
            kernels.AttentionWeights(*map(_contiguous, attention)),
            state,
            carried,
            options,
            done,
            index,
            held,
        )
        x = layer._drop_between_layers(outputs[index], index)
    return x


def _contiguous(t: Any) -> Any:
    return t if t is None or t.is_contiguous() else t.contiguous()


def _mark_overwritten(carrier: CarryingTensor, memory: Memory) -> None:
    """Take the memory from a state that a step overwrote: to use it again is an error, and so is a backward pass."""
    for t in memory:
        if not t.is_inference():
            torch.autograd.graph.increment_version(t)
    carrier.memory = None  # type: ignore[assignment]
    carrier.made = None
