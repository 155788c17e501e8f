"""Operations on states and sequences that every layer shares."""

from __future__ import annotations

import torch
from torch import Tensor

from mnemoscope.recurrence import State, leaves, map_state, rebuild


def in_cuda_graph(tensor: Tensor) -> bool:
    """True while a CUDA graph is captured that this tensor belongs to: nothing may wait for its numbers."""
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()


def stack_layers(states: list[State]) -> State:
    """Return the states of all layers as one: tensors (batch, ...) become (layers * directions, batch, ...)."""
    if len(states) == 1:  # a view: the usual case copies nothing
        return map_state(lambda t: t.unsqueeze(0), states[0])
    return rebuild(states[0], [torch.stack(tensors) for tensors in zip(*map(leaves, states), strict=True)])


def unstack_layers(state: State, count: int) -> list[State]:
    """Return the state of each of `count` layers and directions: the inverse of `stack_layers`."""
    return [map_state(lambda t, k=k: t[k], state) for k in range(count)]  # type: ignore[misc]


def where_active(active: Tensor, new: Tensor, old: Tensor) -> Tensor:
    """Return `new` in the rows that `active` (batch,) marks and `old` in the others; both are (batch, ...)."""
    return torch.where(active.view(-1, *[1] * (new.dim() - 1)), new, old)


def reverse_sequences(x: Tensor, lengths: Tensor | None) -> Tensor:
    """Return x (time, batch, features) with each sequence reversed within its own length; padding stays in place."""
    if lengths is None:
        return x.flip(0)
    steps, batch, features = x.shape
    t = torch.arange(steps, device=x.device)[:, None]  # (time, 1)
    source = torch.where(t < lengths, lengths - 1 - t, t) * batch + torch.arange(batch, device=x.device)
    rows = x.reshape(steps * batch, features)  # whole rows are copied: a gather would look at every number of them
    return rows.index_select(0, source.flatten()).view(x.shape)
