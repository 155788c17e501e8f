"""Orbits of a step under constant inputs, of many parameter vectors and inputs at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mnemoscope.recurrence import State, leaves, rebuild
from mnemoscope.scopes._frame.subject import Subject
from mnemoscope.scopes._measures.parameter_batches import OneStep, Parameters, chunks, stack_parameters, step_all
from mnemoscope.scopes._measures.periods import any_approaching
from mnemoscope.scopes._measures.state_vectors import flatten

EXTENSIONS = 3  # times that the transient is doubled while orbits still come nearer to where they end


@dataclass(frozen=True)
class Orbits:
    """What was recorded after the transient.

    Attributes:
        states: (V, recorded, starts, N), whole state vectors, V over pairs of parameters and an input.
        outputs: (V, recorded, starts, K), chosen numbers of the outputs; None if none were asked for.
        transient: the most steps that were made before recording.
    """

    states: Tensor
    outputs: Tensor | None
    transient: int


@torch.no_grad()
def record_orbits(
    subject: Subject,
    step: OneStep,
    points: list[Parameters],
    x: Tensor,
    start: State,
    steps: int,
    recorded: int,
    outputs: Sequence[int] | None = None,
) -> Orbits:
    """Run every start under each parameter vector with its constant input x (V, d), or ids (V,), and record the end.

    The transient is doubled, three times at most, while orbits still approach where they end.
    """
    starts, size = flatten(start).shape
    numbers = starts * size * 16 + sum(p.numel() for p in points[0].values())
    state_parts: list[Tensor] = []
    output_parts: list[Tensor] = []
    longest = steps
    for part in chunks(len(points), numbers):
        runs = _Runs(step, points[part], x[part], start)
        count = part.stop - part.start
        states: list[Tensor] = [torch.empty(0)] * count  # by value, of its last recording
        read: list[Tensor] = [torch.empty(0)] * count
        done = 0
        for extension in range(EXTENSIONS + 1):
            # As many steps again as were made so far, the last ones recorded.
            orbit, seen = [], []
            end = max(steps * 2**extension, done) + recorded
            for t in range(done, end):
                is_recorded = t >= end - recorded
                output = runs.advance(outputs if is_recorded else None)
                if is_recorded:
                    orbit.append(runs.states())
                if output is not None:
                    seen.append(output)
                subject.report((part.start + count * extension / (EXTENSIONS + 1)) / len(points), f"step {t + 1}")
            done = end
            longest = max(longest, end - recorded)
            for i, v in enumerate(runs.numbers):
                states[v] = torch.stack([states_at[i] for states_at in orbit]).cpu()
                if seen:
                    read[v] = torch.stack([outputs_at[i] for outputs_at in seen]).cpu()

            # Values whose orbits still approach where they end go on.
            approaching = [i for i, v in enumerate(runs.numbers) if any_approaching(states[v])]
            if not approaching:
                break
            runs.keep(approaching)
        state_parts += states
        output_parts += read
    return Orbits(torch.stack(state_parts), None if outputs is None else torch.stack(output_parts), longest)


class _Runs:
    """The states of several values at once, each under its own parameters and its own constant input.

    Attributes:
        numbers: of the values that are still running.
    """

    def __init__(self, step: OneStep, points: list[Parameters], x: Tensor, start: State) -> None:
        starts = leaves(start)[0].shape[1]
        self._step = step
        self._start = start
        self._parameters = stack_parameters(points)
        self._inputs = x[:, None].expand(-1, starts, *x.shape[1:])
        self._states = [tensor.expand(len(x), *tensor.shape) for tensor in leaves(start)]
        self.numbers = list(range(len(x)))

    def advance(self, outputs: Sequence[int] | None) -> Tensor | None:
        """Make one step; return these numbers of the outputs, (V, starts, K), if any are asked for."""
        results = step_all(self._step, self._parameters, self._inputs, self._states, self._start, outputs)
        output = None if outputs is None else results.pop(0)
        self._states = results
        return output

    def states(self) -> Tensor:
        """Return the state vectors (V, starts, N)."""
        by_value = zip(*self._states, strict=True)
        return torch.stack([flatten(rebuild(self._start, list(tensors))) for tensors in by_value])

    def keep(self, places: list[int]) -> None:
        """Go on with the values at these places alone."""
        self.numbers = [self.numbers[i] for i in places]
        self._parameters = {name: p[places] for name, p in self._parameters.items()}
        self._inputs = self._inputs[places]
        self._states = [states[places] for states in self._states]
