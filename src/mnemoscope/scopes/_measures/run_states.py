"""A run whose states gradients can be asked for: by a fused kernel that records them, or step by step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mnemoscope import kernels
from mnemoscope.layers import Layer
from mnemoscope.recurrence import Recurrence, leaves, map_state
from mnemoscope.scopes._frame.subject import Subject


@dataclass(frozen=True)
class RunStates:
    """The states of a run, and how to get their total gradients from autograd.

    For one of our layers the states are h of each layer; for any other recurrence, the whole state.

    Attributes:
        values: () -> (T, batch, D), the layers side by side.
        sources: the tensors to ask autograd for gradients of.
        total_gradient: gradients of `sources` -> those of the states (T, batch, D).
        first_shape: (layers, units) of the first tensor of the state, which is the first part of the D numbers.
    """

    values: Callable[[], Tensor]
    sources: list[Tensor]
    total_gradient: Callable[[Sequence[Tensor]], Tensor]
    first_shape: tuple[int, int]


def run_with_states(subject: Subject, x: Tensor) -> tuple[Tensor, RunStates]:
    """Run over x (T, B, d), by a fused kernel if there is one; return outputs (T, B, m) and the states."""
    if isinstance(subject.layer, Layer):
        with kernels.recording() as runs:
            outputs, _ = subject.recurrence(x)
        if sum(len(run.states) for run in runs) == subject.layer.num_layers * len(x):
            return outputs, _states_of_kernels(runs, len(x))
    return _run_step_by_step(subject.recurrence, x)


def _states_of_kernels(runs: list[kernels.RecordedRun], steps: int) -> RunStates:
    """The runs are one layer after the other; with ``checkpoint=True`` a layer is several runs, pieces of its time."""

    def side_by_side(pieces: list[Tensor]) -> Tensor:
        stacked = pieces[0] if len(pieces) == 1 else torch.cat(pieces)
        return stacked.unflatten(0, (-1, steps)).movedim(0, 2).flatten(2)  # (T, B, layers * n)

    def total_gradient(gradients: Sequence[Tensor]) -> Tensor:
        remaining = iter(gradients)
        return side_by_side([run.total_gradient(*(next(remaining) for _ in run.inputs)) for run in runs])

    sources = [tensor for run in runs for tensor in run.inputs]
    values = [run.states for run in runs]
    layers = sum(map(len, values)) // steps
    return RunStates(lambda: side_by_side(values), sources, total_gradient, (layers, values[0].shape[-1]))


def _run_step_by_step(recurrence: Recurrence, x: Tensor) -> tuple[Tensor, RunStates]:
    state = recurrence.initial_state(x.shape[1])
    outputs = []
    sources: list[Tensor] = []
    for x_t in x.unbind(0):
        y, state = recurrence.step(x_t, state)
        outputs.append(y)
        if any(tensor.is_floating_point() and not tensor.requires_grad for tensor in leaves(state)):
            state = map_state(_with_gradient, state)  # of what does not depend on the inputs, as a clock
        sources += [tensor for tensor in leaves(state) if tensor.is_floating_point()]

    def by_step(tensors: Sequence[Tensor]) -> Tensor:
        rows = [tensor.movedim(1, 0).flatten(1) for tensor in tensors]  # (layers, batch, ...) -> (batch, D)
        per_step = len(rows) // len(x)
        return torch.stack([torch.cat(rows[t * per_step : (t + 1) * per_step], 1) for t in range(len(x))])

    layers, batch = sources[0].shape[:2]
    first_shape = (layers, sources[0][0].numel() // batch)
    return torch.stack(outputs), RunStates(lambda: by_step(sources), sources, by_step, first_shape)


def _with_gradient(tensor: Tensor) -> Tensor:
    """Return a tensor of a state that gradients can be asked for."""
    if tensor.requires_grad or not tensor.is_floating_point():
        return tensor
    return tensor.detach().requires_grad_()
