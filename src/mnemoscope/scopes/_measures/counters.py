"""Whole numbers in a state that count steps: they say when it is, and are no memory of the inputs."""

from __future__ import annotations

import torch

from mnemoscope.recurrence import State, leaves, rebuild
from mnemoscope.scopes._frame.subject import Subject
from mnemoscope.scopes._measures.state_vectors import carries_memory


@torch.no_grad()
def late_start(subject: Subject, steps: int) -> State | None:
    """Return the first state with its counters as they are after so many steps; None if there are none, or no step.

    A counter is a whole number that is the same after other inputs. A window of the last inputs begins with it: a step
    that is another one at every 16th count would else do there what it does at other times.
    """
    if steps == 0 or subject.missing("step"):
        return None
    x = subject.recurrence_inputs[:steps]
    first = subject.recurrence.initial_state(x.shape[1])
    if carries_memory(first) or all(leaf.is_floating_point() for leaf in leaves(first)):
        return None
    after, after_others = (leaves(subject.recurrence(inputs, first)[1]) for inputs in (x, 1 - x.flip(0)))
    counted = [
        not end.is_floating_point() and torch.equal(end, other) for end, other in zip(after, after_others, strict=True)
    ]
    if not any(counted):
        return None
    return rebuild(
        first, [end if known else begin for begin, end, known in zip(leaves(first), after, counted, strict=True)]
    )
