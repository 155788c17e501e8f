"""Whole numbers in a state that count steps: they say when it is, and are no memory of the inputs."""

from __future__ import annotations

import torch
from torch import Tensor

from mnemoscope.recurrence import State, leaves, rebuild
from mnemoscope.scopes._frame.subject import Subject
from mnemoscope.scopes._measures.state_vectors import carries_memory


class LateStarts:
    """The first state with its counters as they are after so many steps; None if there are none, or no step.

    A counter is a whole number that is the same after other inputs, at every step: a switch that some input turns on is
    in the end on after all of them. A window of the last inputs begins with it: a step that is another one at every
    16th count would else do there what it does at other times.
    """

    @torch.no_grad()
    def __init__(self, subject: Subject) -> None:
        self._first: State | None = None
        self._counts: dict[int, list[Tensor]] = {}  # by leaf, after each step
        if subject.missing("step"):
            return
        x, step = subject.recurrence_inputs, subject.recurrence.step
        first = subject.recurrence.initial_state(x.shape[1])
        whole = [n for n, leaf in enumerate(leaves(first)) if not leaf.is_floating_point()]
        if carries_memory(first) or not whole:
            return
        counts: dict[int, list[Tensor]] = {n: [] for n in whole}
        state = state_of_others = first
        for one, other in zip(x, 1 - x.flip(0), strict=True):
            state, state_of_others = step(one, state)[1], step(other, state_of_others)[1]
            found, expected = leaves(state), leaves(state_of_others)
            counts = {n: known for n, known in counts.items() if torch.equal(found[n], expected[n])}
            if not counts:
                return
            for n, known in counts.items():
                known.append(found[n])
        self._first, self._counts = first, counts

    def __call__(self, steps: int) -> State | None:
        if steps == 0 or self._first is None:
            return None
        begins = leaves(self._first)
        for n, known in self._counts.items():
            begins[n] = known[steps - 1]
        return rebuild(self._first, begins)
