"""Jacobians of a model's last output by all inputs and states before it: every lag in one backward pass."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mnemoscope import kernels
from mnemoscope.errors import MnemoscopeError
from mnemoscope.layers import Layer
from mnemoscope.recurrence import Recurrence, leaves
from mnemoscope.scopes._frame.subject import Subject


@dataclass(frozen=True)
class JacobianNorms:
    """Norms of a Jacobian by lag, (T, B), lag 0 first. `spectral` only if all output directions were used."""

    frobenius: np.ndarray
    spectral: np.ndarray | None = None


def by_inputs(subject: Subject, directions: int = 1) -> JacobianNorms:
    """Return ||d output_T / d input_{T-k}||: total, through whatever the model does in between."""
    directions = _limit_directions(directions, subject.run, subject.features)
    x = _repeat_batch(subject.features, directions).requires_grad_()
    y = subject.run(x)[-1]  # (directions * B, m)
    (gradient,) = _pull_back(subject, y, [x], directions)
    return _norms(gradient.flatten(2), subject.batch, y.shape[-1])


def by_inputs_and_states(subject: Subject, directions: int = 1) -> tuple[JacobianNorms, JacobianNorms]:
    """Return the same of the recurrence, and ||d output_T / d h_{T-k}||, from one graph."""
    inputs = subject.recurrence_inputs
    directions = _limit_directions(directions, lambda x: subject.recurrence(x)[0], inputs)
    x = _repeat_batch(inputs, directions).requires_grad_()
    outputs, states = run_with_states(subject, x)
    y = outputs[-1]
    by_input, *by_sources = _pull_back(subject, y, [x, *states.sources], directions)
    by_state = fill_last_step(states.total_gradient(by_sources))
    batch, m = inputs.shape[1], y.shape[-1]
    return _norms(by_input.flatten(2), batch, m), _norms(by_state, batch, m)


def of_loss(subject: Subject) -> tuple[Tensor, Tensor | None]:
    """Return ||d loss / d input_t|| (T,), and ||d loss / d h_t|| (T,) for a model with a step."""
    if subject.missing("step") or not subject.adapted.recurrence_is_model:
        x = subject.features.clone().requires_grad_()
        (by_input,) = torch.autograd.grad(subject.loss_of(subject.run(x)), x)
        return by_input.flatten(1).norm(dim=1), None
    x = subject.recurrence_inputs.clone().requires_grad_()
    outputs, states = run_with_states(subject, x)
    loss = subject.loss_of(outputs)
    by_input, *by_sources = torch.autograd.grad(loss, [x, *states.sources], allow_unused=True, materialize_grads=True)
    by_state = states.total_gradient(by_sources)
    return by_input.flatten(1).norm(dim=1), by_state.flatten(1).norm(dim=1)


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
        sources += [tensor for tensor in leaves(state) if tensor.is_floating_point()]

    def by_step(tensors: Sequence[Tensor]) -> Tensor:
        rows = [tensor.movedim(1, 0).flatten(1) for tensor in tensors]  # (layers, batch, ...) -> (batch, D)
        per_step = len(rows) // len(x)
        return torch.stack([torch.cat(rows[t * per_step : (t + 1) * per_step], 1) for t in range(len(x))])

    layers, batch = sources[0].shape[:2]
    first_shape = (layers, sources[0][0].numel() // batch)
    return torch.stack(outputs), RunStates(lambda: by_step(sources), sources, by_step, first_shape)


def fill_last_step(gradient: Tensor) -> Tensor:
    """Return the gradient (T, ...); if its last step is zero, as the output is not made from the state, repeat the one
    before."""
    if len(gradient) < 2 or bool(gradient[-1].any()):
        return gradient
    return torch.cat([gradient[:-1], gradient[-2:-1]])


def _limit_directions(directions: int, run: Callable[[Tensor], Tensor], x: Tensor) -> int:
    """Return the number of directions, but no more than there are outputs."""
    if directions == 1:
        return 1
    with torch.no_grad():
        return min(directions, run(x[:, :1]).shape[-1])


def _repeat_batch(x: Tensor, times: int) -> Tensor:
    return x.repeat(1, times, *[1] * (x.dim() - 2))


def _pull_back(subject: Subject, y: Tensor, sources: list[Tensor], directions: int) -> tuple[Tensor, ...]:
    """Make one backward pass from y (directions * B, m), each copy of a sequence in a direction of its own."""
    if not y.requires_grad:
        raise MnemoscopeError(f"no gradient leads from the outputs of {subject.name} to its inputs")
    outputs = y.shape[-1]
    gauss = torch.randn(len(y) // directions, outputs, directions, generator=subject.generator(), dtype=torch.float64)
    basis = torch.linalg.qr(gauss).Q  # (B, m, directions), orthonormal: m of them give the whole Jacobian
    vectors = basis.permute(2, 0, 1).reshape(-1, outputs).to(y)
    return torch.autograd.grad(y, sources, vectors, allow_unused=True, materialize_grads=True)


def _norms(gradient: Tensor, batch: int, outputs: int) -> JacobianNorms:
    """Return norms by lag from gradient (T, directions * B, d), rows of the Jacobians."""
    gradient = gradient.detach()
    directions = gradient.shape[1] // batch
    rows = _row_norms(gradient).unflatten(1, (directions, batch))
    frobenius = rows.norm(dim=1) * math.sqrt(outputs / directions)  # (T, B)
    if directions < outputs:
        return JacobianNorms(_by_lag(frobenius))
    jacobians = torch.nan_to_num(gradient.double()).unflatten(1, (directions, batch)).transpose(1, 2)  # (T, B, m, d)
    return JacobianNorms(_by_lag(frobenius), _by_lag(torch.linalg.matrix_norm(jacobians, ord=2)))


def _row_norms(gradient: Tensor) -> Tensor:
    """(T, R, d) -> (T, R). Steps whose squares may leave the range of float32 are computed again in float64."""
    rows = torch.linalg.vector_norm(gradient, dim=2).double()
    out_of_range = (~(rows > 1e-15) | rows.isinf()).any(1) & ~_all_zero(gradient)
    steps = out_of_range.nonzero().squeeze(1)
    if len(steps):
        rows[steps] = torch.linalg.vector_norm(gradient[steps], dim=2, dtype=torch.float64)
    return rows


def _all_zero(gradient: Tensor) -> Tensor:
    """(T, R, d) -> (T,): True where the gradient at a step is exactly zero."""
    flat = gradient.flatten(1)
    return (flat.amax(1) == 0) & (flat.amin(1) == 0)


def _by_lag(norms: Tensor) -> np.ndarray:
    """Reverse the steps into lags; NaN becomes infinity."""
    return torch.nan_to_num(norms, nan=torch.inf, posinf=torch.inf).flip(0).cpu().numpy()
