"""The memory of past states, and what a step does to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from mnemoscope import kernels
from mnemoscope.kernels import Attended
from mnemoscope.layers._state import in_cuda_graph
from mnemoscope.recurrence import fill_rows

EVERY_STATE = "every state"
STORED_STATES = "stored states"
GROWING = (EVERY_STATE, STORED_STATES)
"""What the slots of a memory that grows are for; a memory of any other layout has as many slots at every step."""


class Memory(NamedTuple):
    """The states that can be attended. Shapes are those of one layer; a stack has (layers * directions) in front."""

    values: Tensor  # (batch, slots, hidden): h_i
    keys: Tensor  # (batch, slots, hidden): U_a h_i, made once, when h_i is made
    origin: Tensor  # (batch, slots): the step i at which the state was made, -1 for an empty slot
    relevance: Tensor  # (batch, slots): the attention it has received, as far as it is counted
    clock: Tensor  # (batch,): steps made so far


def empty_memory(like: Tensor, batch: int, slots: int) -> Memory:
    """Return a memory with no state in it, of the type and the features of `like` (..., hidden)."""
    n = like.shape[-1]
    return Memory(
        values=like.new_zeros(batch, slots, n),
        keys=like.new_zeros(batch, slots, n),
        origin=torch.full((batch, slots), -1, device=like.device),
        relevance=like.new_zeros(batch, slots),
        clock=torch.zeros(batch, dtype=torch.int64, device=like.device),
    )


def map_slots(fn: Callable[[Tensor], Tensor], memory: Memory) -> Memory:
    """Apply `fn` to each tensor that has slots, (..., slots) or (..., slots, hidden); the clock stays."""
    values, keys, origin, relevance, clock = memory
    return Memory(fn(values), fn(keys), fn(origin), fn(relevance), clock)


def add_empty_slots(memory: Memory, count: int) -> Memory:
    """Return the memory with `count` more slots, which are empty."""
    return Memory(
        values=F.pad(memory.values, (0, 0, 0, count)),
        keys=F.pad(memory.keys, (0, 0, 0, count)),
        origin=F.pad(memory.origin, (0, count), value=-1),
        relevance=F.pad(memory.relevance, (0, count)),
        clock=memory.clock,
    )


def drop_empty_slots(memory: Memory) -> Memory:
    """Return a memory (..., batch, slots) without the slots that hold no state in any row."""
    if not values_can_be_read(memory.origin):
        return memory
    held = (memory.origin >= 0).flatten(0, -2).any(0)  # (slots,)
    if held.all():
        return memory
    slots = held.nonzero().squeeze(1)
    axis = memory.origin.dim() - 1
    return map_slots(lambda t: t.index_select(axis, slots), memory)


def reset_memory(memory: Memory, mask: Tensor, layout: str, initial: Memory | None = None) -> Memory:
    """Return a memory (layers, batch, slots) with `initial`, by default nothing, in the rows that mask (batch,) marks.

    Empty slots of a growing memory are dropped.
    """
    if initial is None:
        begun = Memory(
            values=fill_rows(memory.values, mask, 0),
            keys=fill_rows(memory.keys, mask, 0),
            origin=fill_rows(memory.origin, mask, -1),
            relevance=fill_rows(memory.relevance, mask, 0),
            clock=fill_rows(memory.clock, mask, 0),
        )
    else:
        slots = max(memory.origin.shape[-1], initial.origin.shape[-1])
        pairs = zip(with_slots(memory, slots), with_slots(initial, slots), strict=True)
        begun = Memory(*(fill_rows(now, mask, first) for now, first in pairs))
    return drop_empty_slots(begun) if layout in GROWING else begun


def keep_newest(memory: Memory, count: int, layout: str) -> Memory:
    """Return a memory (layers, batch, slots) with the `count` newest states of each row alone.

    Empty slots of a growing memory are dropped.
    """
    if count >= memory.origin.shape[-1]:
        return memory
    oldest = memory.origin.topk(count, -1).values[..., -1:] if count else memory.clock[..., None]
    kept = (memory.origin >= oldest) & (memory.origin >= 0)
    bounded = Memory(
        values=torch.where(kept[..., None], memory.values, 0),
        keys=torch.where(kept[..., None], memory.keys, 0),
        origin=torch.where(kept, memory.origin, -1),
        relevance=torch.where(kept, memory.relevance, 0),
        clock=memory.clock,
    )
    return drop_empty_slots(bounded) if layout in GROWING else bounded


def with_slots(memory: Memory, slots: int) -> Memory:
    """Return the memory with empty slots at its end, `slots` in all."""
    missing = slots - memory.origin.shape[-1]
    return add_empty_slots(memory, missing) if missing else memory


def values_can_be_read(tensor: Tensor) -> bool:
    """True if the numbers of a tensor may decide what Python does next."""
    if kernels.is_traced_or_transformed() or tensor.is_meta:
        return False
    return not in_cuda_graph(tensor)


class NonzeroCheck:
    """Whether a tensor on a GPU has a number that is not zero, without waiting for the device."""

    def __init__(self, tensor: Tensor) -> None:
        self._found = torch.empty((), dtype=torch.bool, pin_memory=True)
        self._found.copy_(tensor.detach().any(), non_blocking=True)
        self._done = torch.cuda.Event()
        self._done.record(torch.cuda.current_stream(tensor.device))

    def is_done(self) -> bool:
        """True once the device has come so far."""
        return self._done.query()

    def found(self) -> bool:
        """Return the answer; only once `is_done`."""
        return bool(self._found)


def append_state(memory: Memory, h: Tensor, key: Tensor) -> Memory:
    """Return the memory with one more slot, which holds h (batch, hidden) and its key (batch, hidden)."""
    return Memory(
        values=torch.cat([memory.values, h[:, None]], 1),
        keys=torch.cat([memory.keys, key[:, None]], 1),
        origin=torch.cat([memory.origin, memory.clock[:, None]], 1),
        relevance=F.pad(memory.relevance, (0, 1)),
        clock=memory.clock + 1,
    )


def rearrange_slots(memory: Memory, source: Tensor) -> Memory:
    """Return the memory whose slot k holds what slot source[:, k] held: source (batch, slots)."""
    batch, slots = memory.origin.shape
    rows = source + slots * torch.arange(batch, device=source.device)[:, None]

    def gathered(t: Tensor) -> Tensor:  # moves whole states; torch.gather would look up every number by itself
        return t.flatten(0, 1).index_select(0, rows.flatten()).view(*rows.shape, *t.shape[2:])

    return map_slots(gathered, memory)


def memory_after_kernel(before: Memory | None, done: Attended, lengths: Tensor | None, dtype: torch.dtype) -> Memory:
    """Return the memory after a sequence that a kernel ran; its states have at least the precision of `dtype`."""
    T, batch, _ = done.s.shape
    passed = T if lengths is None else lengths
    if before is not None:
        clock = before.clock + passed
    elif lengths is None:
        clock = torch.full((batch,), T, device=done.s.device)
    else:
        clock = lengths.clone()
    values, keys = done.values, done.keys
    if values.dtype is not dtype or keys.dtype is not dtype:  # autocast: the new ones are smaller
        values = values.to(torch.promote_types(dtype, values.dtype))
        keys = keys.to(torch.promote_types(dtype, keys.dtype))
    if done.origin is not None:
        return Memory(values, keys, done.origin, done.relevance, clock)

    # Full attention: all slots carried in, and the new states after them.
    steps = torch.arange(T, device=done.s.device)
    made = steps.expand(batch, T) if before is None else before.clock[:, None] + steps
    if lengths is not None:
        made = torch.where(steps < lengths[:, None], made, -1)
    if before is None:
        return Memory(values, keys, made.contiguous(), values.new_zeros(batch, T), clock)
    relevance = F.pad(before.relevance, (0, T))
    return Memory(values, keys, torch.cat([before.origin, made], 1), relevance, clock)
