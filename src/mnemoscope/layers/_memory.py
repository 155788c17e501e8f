"""What a self-attentive recurrence carries from step to step, and how it attends to it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from mnemoscope import equations
from mnemoscope.kernels import Attended
from mnemoscope.layers._base import Weights
from mnemoscope.recurrence import map_state


class Memory(NamedTuple):
    """The states that can be attended. Shapes are those of one layer; a stack has (layers * directions) in front."""

    values: Tensor  # (batch, slots, hidden): h_i
    keys: Tensor  # (batch, slots, hidden): U_a h_i, made once, when h_i is made
    origin: Tensor  # (batch, slots): the step i at which the state was made, -1 for an empty slot
    relevance: Tensor  # (batch, slots): the attention it has received, as far as it is counted
    clock: Tensor  # (batch,): steps made so far


class AttentiveState(tuple):
    """A state that unpacks as nn.RNN's or nn.LSTM's, ``(h,)`` or ``(h, c)``, and carries the rest along.

    Attributes:
        s: the macro-state s_t = h_t + c_t, which the next step reads.
        memory: the `Memory`.
        kind: what the slots of the memory are for, in the words of the layer that made it; empty where nobody said.
    """

    s: Tensor
    memory: Memory
    kind: str = ""

    def __new__(cls, visible: Iterable[Tensor], s: Tensor, memory: Memory, kind: str = "") -> AttentiveState:
        state = super().__new__(cls, visible)
        state.s, state.memory, state.kind = s, memory, kind
        return state

    @property
    def h(self) -> Tensor:
        return self[0]

    def map_state(self, fn: Callable[[Tensor], Tensor]) -> AttentiveState:
        return AttentiveState([fn(t) for t in self], fn(self.s), map_state(fn, self.memory), self.kind)

    def __getnewargs__(self) -> tuple[Any, ...]:  # for copy and pickle
        return tuple(self), self.s, self.memory, self.kind


def _from_leaves(parts: list[Tensor], shown: int, kind: str) -> AttentiveState:
    return AttentiveState(parts[:shown], parts[shown], Memory(*parts[shown + 1 :]), kind)


# torch.func differentiates through states by their leaves.
pytree.register_pytree_node(
    AttentiveState,
    lambda state: ([*state, state.s, *state.memory], (len(state), state.kind)),
    lambda parts, context: _from_leaves(list(parts), *context),
)
torch.serialization.add_safe_globals([AttentiveState, Memory])  # a saved state is loaded as nn.LSTM's is


def empty(like: Tensor, batch: int, slots: int) -> Memory:
    """A memory with no state in it."""
    n = like.shape[-1]
    return Memory(
        values=like.new_zeros(batch, slots, n),
        keys=like.new_zeros(batch, slots, n),
        origin=torch.full((batch, slots), -1, device=like.device),
        relevance=like.new_zeros(batch, slots),
        clock=torch.zeros(batch, dtype=torch.int64, device=like.device),
    )


def append(memory: Memory, h: Tensor, key: Tensor) -> Memory:
    """The memory with one more slot, in which h stands."""
    return Memory(
        torch.cat([memory.values, h[:, None]], 1),
        torch.cat([memory.keys, key[:, None]], 1),
        torch.cat([memory.origin, memory.clock[:, None]], 1),
        F.pad(memory.relevance, (0, 1)),
        memory.clock + 1,
    )


def rearrange(memory: Memory, source: Tensor) -> Memory:
    """The memory whose slot k holds what stood in slot source[:, k]: source (batch, slots)."""
    batch, slots = memory.origin.shape
    rows = source + slots * torch.arange(batch, device=source.device)[:, None]
    values, keys, origin, relevance = (  # whole states are moved; gather would look up every number by itself
        t.flatten(0, 1).index_select(0, rows.flatten()).view(*rows.shape, *t.shape[2:]) for t in memory[:4]
    )
    return Memory(values, keys, origin, relevance, memory.clock)


def after(before: Memory, done: Attended, lengths: Tensor | None) -> Memory:
    """The memory after a sequence that a kernel ran, which names the states in the slots by index.

    The slots carried in come first, then the states made since.
    """
    clock, begun = before.clock + (len(done.h) if lengths is None else lengths), before.clock[:, None]
    pairs = (before.values, done.values), (before.keys, done.keys)  # autocast makes the new ones of a smaller type
    values, keys = (new.to(torch.promote_types(old.dtype, new.dtype)) for old, new in pairs)
    if done.slots is None:  # full attention: all that stood there, and the new states after it
        steps = torch.arange(len(done.h), device=done.h.device)
        made = begun + steps if lengths is None else torch.where(steps < lengths[:, None], begun + steps, -1)
        relevance = F.pad(before.relevance, (0, len(steps)))
        return Memory(values, keys, torch.cat([before.origin, made], 1), relevance, clock)
    count = done.slots.shape[1]
    carried = before.origin.gather(1, done.slots.clamp(0, count - 1)) if count else before.origin
    origin = torch.where(done.slots < count, torch.where(done.slots < 0, -1, carried), begun + (done.slots - count))
    return Memory(values, keys, origin, done.relevance, clock)


def attend(w: Weights, s: Tensor, memory: Memory) -> tuple[Tensor, Tensor]:
    """Additive attention of s over the memory: c = sum_i alpha_i h_i (batch, hidden) and alpha (batch, slots).

    e_i = v^T tanh(W_a s + U_a h_i), alpha = softmax(e) over the slots that are filled (Kerg et al. 2020, eqs 9-10).
    """
    query = F.linear(s, w.weight_query)  # (batch, hidden)
    return equations.additive_attention(query, memory.keys, memory.values, w.weight_score, memory.origin >= 0)
