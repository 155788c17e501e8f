"""States that a model passes through on its sequences."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from mnemoscope.recurrence import State, select
from mnemoscope.scopes._frame.subject import Subject
from mnemoscope.scopes._measures.state_vectors import flatten, state_not_finite

JACOBIAN_NUMBERS = 2**24  # in all Jacobians together


@dataclass(frozen=True)
class StateSample:
    """The states of some sequences before one step, and the inputs (rows, d) that they read then."""

    step: int
    state: State
    x: Tensor


def affordable_points(subject: Subject) -> int:
    """Return how many Jacobians are worth their memory and time: those of a state of 2,048 numbers take 32 MB each."""
    size = flatten(subject.recurrence.initial_state(1)).shape[1]
    return max(2, JACOBIAN_NUMBERS // size**2)


def sample_states(subject: Subject, points: int, rows: int = 8) -> Iterator[StateSample]:
    """Yield about `points` states, spread over time and over at most `rows` sequences.

    Each is at a random step of its own part of the run: equal distances would meet one phase alone of a cycle, or of
    a clock, whose period divides them.
    """
    inputs = subject.recurrence_inputs
    steps, batch = inputs.shape[:2]
    rows = min(rows, batch, points)
    generator = subject.generator()
    order = torch.randperm(batch, generator=generator).to(inputs.device)
    edges = torch.linspace(0, steps, max(1, min(steps, points // rows)) + 1, dtype=torch.float64).round()
    into = torch.rand(len(edges) - 1, generator=generator, dtype=torch.float64) * edges.diff()
    times = (edges[:-1] + into.floor()).long()
    state = subject.recurrence.initial_state(batch)
    done = 0
    for t in times.tolist():
        if t > done:
            with torch.no_grad():
                state = subject.recurrence(inputs[done:t], state)[1]
            done = t
        chosen = order.roll(-t)[:rows]  # different sequences at different times
        check_finite_states(state, t)
        yield StateSample(t, select(state, chosen), inputs[t, chosen])


def check_finite_states(state: State, step: int) -> None:
    """Raise if a state is NaN or infinite: neither LAPACK nor a sentence should get it."""
    if not bool(flatten(state).isfinite().all()):
        raise state_not_finite(step)
