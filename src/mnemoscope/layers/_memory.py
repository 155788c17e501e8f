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


def memory_after_kernel(before: Memory | None, done: Attended, lengths: Tensor | None, dtype: torch.dtype) -> Memory:
    """Return the memory after a sequence that a kernel ran; its states have at least the precision of `dtype`."""
    T, batch, _ = done.h.shape
    passed = T if lengths is None else lengths
    if before is not None:
        clock = before.clock + passed
    elif lengths is None:
        clock = torch.full((batch,), T, device=done.h.device)
    else:
        clock = lengths.clone()
    values, keys = done.values, done.keys
    if values.dtype is not dtype or keys.dtype is not dtype:  # autocast: the new ones are smaller
        values = values.to(torch.promote_types(dtype, values.dtype))
        keys = keys.to(torch.promote_types(dtype, keys.dtype))
    if done.origin is not None:
        return Memory(values, keys, done.origin, done.relevance, clock)

    # Full attention: all slots carried in, and the new states after them.
    steps = torch.arange(T, device=done.h.device)
    made = steps.expand(batch, T) if before is None else before.clock[:, None] + steps
    if lengths is not None:
        made = torch.where(steps < lengths[:, None], made, -1)
    if before is None:
        return Memory(values, keys, made.contiguous(), values.new_zeros(batch, T), clock)
    relevance = F.pad(before.relevance, (0, T))
    return Memory(values, keys, torch.cat([before.origin, made], 1), relevance, clock)
