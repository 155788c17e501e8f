"""States that a model passes through on its sequences."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from mnemoscope.recurrence import State, leaves, rebuild, select
from mnemoscope.scopes._frame.subject import Subject


@dataclass(frozen=True)
class Visit:
    """The states of some sequences before step t, and the inputs (rows, d) that they read then."""

    step: int
    state: State
    x: Tensor


def visits(subject: Subject, points: int, rows: int = 8) -> Iterator[Visit]:
    """About `points` states, spread over time and over at most `rows` sequences."""
    drive, recurrence = subject.recurrence_inputs, subject.recurrence
    steps, batch = drive.shape[:2]
    rows = min(rows, batch, points)
    times = set(torch.linspace(0, steps - 1, max(1, min(steps, points // rows))).long().tolist())
    order = torch.randperm(batch, generator=subject.generator()).to(drive.device)
    state = recurrence.initial_state(batch)
    for t, x in enumerate(drive.unbind(0)):
        if t in times:
            here = order.roll(-t)[:rows]  # other sequences at other times
            yield Visit(t, select(state, here), x[here])
        with torch.no_grad():
            state = recurrence.step(x, state)[1]


def together(seen: list[Visit]) -> tuple[State, Tensor]:
    """All visited states as one batch, and their inputs; the states must be of one shape."""
    tensors = [torch.cat(parts, 1) for parts in zip(*(leaves(visit.state) for visit in seen), strict=True)]
    return rebuild(seen[0].state, tensors), torch.cat([visit.x for visit in seen])
