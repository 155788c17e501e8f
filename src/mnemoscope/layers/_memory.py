"""The memory of past states, and what a step does to it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from mnemoscope.kernels import Attended


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


def add_empty_slots(memory: Memory, count: int) -> Memory:
    """Return the memory with `count` more slots, which are empty."""
    return Memory(
        values=F.pad(memory.values, (0, 0, 0, count)),
        keys=F.pad(memory.keys, (0, 0, 0, count)),
        origin=F.pad(memory.origin, (0, count), value=-1),
        relevance=F.pad(memory.relevance, (0, count)),
        clock=memory.clock,
    )


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

    values, keys, origin, relevance, clock = memory
    return Memory(gathered(values), gathered(keys), gathered(origin), gathered(relevance), clock)


def memory_after_kernel(before: Memory, done: Attended, lengths: Tensor | None) -> Memory:
    """Return the memory after a sequence that a kernel ran.

    The kernel names the states in the slots by index: the slots carried in come first, then the states made since.
    """
    passed = len(done.h) if lengths is None else lengths
    clock = before.clock + passed
    first = before.clock[:, None]  # (batch, 1): the clock at the first step
    values, keys = done.values, done.keys
    if values.dtype != before.values.dtype or keys.dtype != before.keys.dtype:  # autocast: the new ones are smaller
        values = values.to(torch.promote_types(before.values.dtype, values.dtype))
        keys = keys.to(torch.promote_types(before.keys.dtype, keys.dtype))

    if done.slots is None:  # full attention: all slots carried in, and the new states after them
        steps = torch.arange(len(done.h), device=done.h.device)
        made = first + steps
        if lengths is not None:
            made = torch.where(steps < lengths[:, None], made, -1)
        relevance = F.pad(before.relevance, (0, len(steps)))
        return Memory(values, keys, torch.cat([before.origin, made], 1), relevance, clock)

    count = done.slots.shape[1]
    carried = before.origin.gather(1, done.slots.clamp(0, count - 1)) if count else before.origin
    made = done.slots + (first - count)
    origin = torch.where(done.slots < count, carried, made).masked_fill_(done.slots < 0, -1)
    return Memory(values, keys, origin, done.relevance, clock)
