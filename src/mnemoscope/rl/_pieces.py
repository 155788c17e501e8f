"""Pieces of episodes as rows of a packed sequence: how a rollout is replayed without a loop and without a mask."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from mnemoscope.recurrence import Recurrence, State, reset, select


class Pieces(NamedTuple):
    """A rollout cut where episodes begin, the longest piece first.

    Attributes:
        frames: (frames,) for each step of the packed sequence, the index of its frame in the flattened (time, rows).
        batch_sizes: as `PackedSequence` has it.
        row: (pieces,) the row of the rollout that each piece is from.
        fresh: (pieces,) bool: the piece begins with an episode; others go on from the state before the rollout.
    """

    frames: Tensor
    batch_sizes: Tensor
    row: Tensor
    fresh: Tensor


def cut(starts: Tensor) -> Pieces:
    """Cut a rollout into pieces. `starts` (time, rows) is True where a frame is the first of its episode."""
    steps, rows = starts.shape

    # Where pieces begin, row after row: at every start, and at the rollout's own first frame.
    begins = starts.t().clone()
    begins[:, 0] = True
    first = begins.reshape(-1).nonzero().squeeze(1)  # row * steps + step
    length = torch.diff(first, append=first.new_tensor([steps * rows]))
    length, order = length.sort(descending=True, stable=True)
    first = first[order]
    row, step = first // steps, first % steps

    # Frame t of every piece that is longer than t, for t = 0, 1, ...
    t = torch.arange(int(length[0]))[:, None]
    inside = t < length
    frames = ((step + t) * rows + row)[inside]
    return Pieces(frames, inside.sum(1), row, starts[step, row])


def begin_anew(model: Recurrence, state: State, rows: Tensor) -> State:
    """Return the state with its initial value in the rows (batch,) that a mask marks."""
    if not bool(rows.any()):
        return state
    return model.initial_state(len(rows)) if bool(rows.all()) else reset(state, rows, model.initial_state(1))


def first_states(model: Recurrence, state: State, pieces: Pieces) -> State:
    """Return the state that each piece begins with, from those (rows) before the rollout."""
    return begin_anew(model, select(state, pieces.row), pieces.fresh)
