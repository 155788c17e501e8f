"""A recurrence as a map of a flat state, and its derivative along given directions."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import jvp, vmap

from mnemoscope.recurrence import Recurrence, State, leaves, rebuild


def moving(state: State) -> list[bool]:
    """Which tensors of a state move smoothly: not clocks and origins, and not relevance, which is only counted."""
    counted = id(state.memory.relevance) if hasattr(state, "memory") else None
    return [tensor.is_floating_point() and id(tensor) != counted for tensor in leaves(state)]


def flatten(state: State) -> Tensor:
    """The smooth part of a state, one row a sequence: (B, N)."""
    kept = [t for t, smooth in zip(leaves(state), moving(state), strict=True) if smooth]
    return torch.cat([t.transpose(0, 1).flatten(1) for t in kept], 1)


def unflatten(flat: Tensor, state: State) -> State:
    """The state whose smooth part is `flat` (B, N) and whose other tensors are those of `state`."""
    tensors, at = [], 0
    for tensor, smooth in zip(leaves(state), moving(state), strict=True):
        if not smooth:
            tensors.append(tensor)
            continue
        shape = tensor.transpose(0, 1).shape
        size = shape[1:].numel()
        tensors.append(flat[:, at : at + size].reshape(shape).transpose(0, 1))
        at += size
    return rebuild(state, tensors)


def step_of(recurrence: Recurrence, x: Tensor, state: State) -> Callable[[Tensor], Tensor]:
    """The map of flat states (B, N) -> (B, N) that one step with input x (B, d) is, around a state."""
    return lambda flat: flatten(recurrence.step(x, unflatten(flat, state))[1])


def push(
    recurrence: Recurrence, x: Tensor, state: State, directions: Tensor, chunk: int | None = None
) -> tuple[State, Tensor]:
    """The state after a step, and each direction (k, B, N) carried through the step's Jacobian."""
    after = recurrence.step(x, state)[1]
    advance, flat = step_of(recurrence, x, state), flatten(state)
    return after, vmap(lambda v: jvp(advance, (flat,), (v,))[1], chunk_size=chunk)(directions)
