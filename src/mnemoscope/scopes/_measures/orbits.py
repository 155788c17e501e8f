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
        # One parameter vector and one constant input per value, all starts for each.
        count = part.stop - part.start
        parameters = stack_parameters(points[part])
        inputs = x[part][:, None].expand(-1, starts, *x.shape[1:])
        states = [t.expand(count, *t.shape) for t in leaves(start)]

        # Values whose orbits still approach go on, for as many steps as were made so far.
        recordings: list[Tensor] = [torch.empty(0)] * count
        read: list[Tensor] = [torch.empty(0)] * count
        going_on = list(range(count))
        done = 0
        for extension in range(EXTENSIONS + 1):
            orbit, seen = [], []
            end = max(steps * 2**extension, done) + recorded
            for t in range(done, end):
                recording = t >= end - recorded
                states = step_all(step, parameters, inputs, states, start, outputs if recording else None)
                if recording and outputs is not None:
                    seen.append(states.pop(0))
                if recording:
                    orbit.append(torch.stack([flatten(rebuild(start, list(s))) for s in zip(*states, strict=True)]))
                subject.report((part.start + count * extension / (EXTENSIONS + 1)) / len(points), f"step {t + 1}")
            done = end
            longest = max(longest, end - recorded)
            for i, v in enumerate(going_on):
                recordings[v] = torch.stack([states_at[i] for states_at in orbit]).cpu()
                if seen:
                    read[v] = torch.stack([outputs_at[i] for outputs_at in seen]).cpu()
            keep = [i for i, v in enumerate(going_on) if any_approaching(recordings[v])]
            if not keep:
                break
            going_on = [going_on[i] for i in keep]
            states = [s[keep] for s in states]
            parameters = {name: p[keep] for name, p in parameters.items()}
            inputs = inputs[keep]
        state_parts += recordings
        output_parts += read
    return Orbits(torch.stack(state_parts), None if outputs is None else torch.stack(output_parts), longest)
