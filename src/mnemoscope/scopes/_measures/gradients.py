"""Jacobians of a model's last output by everything before it: every lag in one backward pass."""

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
class Norms:
    """Norms of a Jacobian by lag, (T, B), the lag 0 first. `spectral` only where every direction was taken."""

    frobenius: np.ndarray
    spectral: np.ndarray | None = None


def by_inputs(subject: Subject, directions: int = 1) -> Norms:
    """||d output_T / d input_{T-k}||: total, through whatever the model does in between."""
    directions = _at_most(directions, subject.run, subject.features)
    x = _copies(subject.features, directions).requires_grad_()
    y = subject.run(x)[-1]  # (copies * B, m)
    (gradient,) = _pull_back(subject, y, [x], directions)
    return _norms(gradient.flatten(2), subject.batch, y.shape[-1])


def by_inputs_and_states(subject: Subject, directions: int = 1) -> tuple[Norms, Norms]:
    """The same of the recurrence, and ||d output_T / d h_{T-k}||, from the one graph of one run."""
    directions = _at_most(directions, lambda x: subject.recurrence(x)[0], subject.recurrence_inputs)
    x = _copies(subject.recurrence_inputs, directions).requires_grad_()
    outputs, seen = run_seen(subject, x)
    y = outputs[-1]
    by_input, *found = _pull_back(subject, y, [x, *seen.by], directions)
    batch, m = subject.recurrence_inputs.shape[1], y.shape[-1]
    return _norms(by_input.flatten(2), batch, m), _norms(last_filled(seen.total(found)), batch, m)


def of_loss(subject: Subject) -> tuple[Tensor, Tensor | None]:
    """||d loss / d input_t|| (T,), and, of a model with a step, ||d loss / d h_t|| (T,)."""
    if subject.missing("step") or not subject.adapted.recurrence_is_model:
        x = subject.features.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(subject.loss_of(subject.run(x)), x)
        return gradient.flatten(1).norm(dim=1), None
    x = subject.recurrence_inputs.clone().requires_grad_()
    outputs, seen = run_seen(subject, x)
    loss = subject.loss_of(outputs)
    by_input, *found = torch.autograd.grad(loss, [x, *seen.by], allow_unused=True, materialize_grads=True)
    return by_input.flatten(1).norm(dim=1), seen.total(found).flatten(1).norm(dim=1)


@dataclass(frozen=True)
class Seen:
    """The states of a run: their values, what autograd must be asked for, and how to read their gradients from that.

    Of a layer of ours they are h of each layer; of any other recurrence, its whole state.
    """

    values: Callable[[], Tensor]  # (T, batch, D), the layers side by side
    by: list[Tensor]
    total: Callable[[Sequence[Tensor]], Tensor]  # the gradients of `by` -> those of the states (T, batch, D)
    first: tuple[int, int]  # layers and units of the first tensor of the state: so many of the D come first


def run_seen(subject: Subject, x: Tensor) -> tuple[Tensor, Seen]:
    """Run over x (T, B, d), by a fused kernel where there is one: the outputs (T, B, m), and the states."""
    if isinstance(subject.layer, Layer):
        with kernels.noted() as walks:
            outputs, _ = subject.recurrence(x)
        if sum(len(walk.states) for walk in walks) == subject.layer.num_layers * len(x):
            return outputs, _of_walks(walks, len(x))
    return _step_by_step(subject.recurrence, x)


def _of_walks(walks: list[kernels.Walk], steps: int) -> Seen:
    """Layers one after the other, each walked whole or, with ``checkpoint=True``, in pieces of its time."""

    def side_by_side(pieces: list[Tensor]) -> Tensor:
        stacked = pieces[0] if len(pieces) == 1 else torch.cat(pieces)
        return stacked.unflatten(0, (-1, steps)).movedim(0, 2).flatten(2)  # (T, B, layers * n)

    def total(found: Sequence[Tensor]) -> Tensor:
        remaining = iter(found)
        return side_by_side([walk.total(*(next(remaining) for _ in walk.by)) for walk in walks])

    by = [tensor for walk in walks for tensor in walk.by]
    values = [walk.states for walk in walks]
    return Seen(lambda: side_by_side(values), by, total, (sum(map(len, values)) // steps, values[0].shape[-1]))


def _step_by_step(recurrence: Recurrence, x: Tensor) -> tuple[Tensor, Seen]:
    state, outputs, by = recurrence.initial_state(x.shape[1]), [], []
    for x_t in x.unbind(0):
        y, state = recurrence.step(x_t, state)
        outputs.append(y)
        by += [tensor for tensor in leaves(state) if tensor.is_floating_point()]

    def by_step(tensors: Sequence[Tensor]) -> Tensor:
        rows = [tensor.movedim(1, 0).flatten(1) for tensor in tensors]  # (layers, batch, ...) -> (batch, D)
        each = len(rows) // len(x)
        return torch.stack([torch.cat(rows[t * each : (t + 1) * each], 1) for t in range(len(x))])

    layers, batch = by[0].shape[:2]
    return torch.stack(outputs), Seen(lambda: by_step(by), by, by_step, (layers, by[0][0].numel() // batch))


def last_filled(gradient: Tensor) -> Tensor:
    """The gradient (T, ...), its last step repeated from the one before where the output is not made from the state."""
    if len(gradient) < 2 or bool(gradient[-1].any()):
        return gradient
    return torch.cat([gradient[:-1], gradient[-2:-1]])


def _at_most(directions: int, run: Callable[[Tensor], Tensor], x: Tensor) -> int:
    """As many directions as were asked for, but no more than there are outputs."""
    if directions == 1:
        return 1
    with torch.no_grad():
        return min(directions, run(x[:, :1]).shape[-1])


def _copies(x: Tensor, directions: int) -> Tensor:
    return x.repeat(1, directions, *[1] * (x.dim() - 2))


def _pull_back(subject: Subject, y: Tensor, by: list[Tensor], directions: int) -> tuple[Tensor, ...]:
    """One backward pass from y (copies * B, m), each copy of a sequence in a direction of its own."""
    if not y.requires_grad:
        raise MnemoscopeError(f"no gradient leads from the outputs of {subject.name} to its inputs")
    outputs = y.shape[-1]
    gauss = torch.randn(len(y) // directions, outputs, directions, generator=subject.generator(), dtype=torch.float64)
    basis = torch.linalg.qr(gauss).Q  # (B, m, copies): orthonormal, so that with m of them nothing is left out
    vectors = basis.permute(2, 0, 1).reshape(-1, outputs).to(y)
    return torch.autograd.grad(y, by, vectors, allow_unused=True, materialize_grads=True)


def _norms(gradient: Tensor, batch: int, outputs: int) -> Norms:
    """gradient (T, copies * B, d), rows of the Jacobians -> their norms by lag."""
    gradient = gradient.detach()
    taken = gradient.shape[1] // batch
    frobenius = _row_norms(gradient).unflatten(1, (taken, batch)).norm(dim=1) * math.sqrt(outputs / taken)  # (T, B)
    if taken < outputs:
        return Norms(_readable(frobenius))
    jacobians = torch.nan_to_num(gradient.double()).unflatten(1, (taken, batch)).transpose(1, 2)  # (T, B, m, d)
    return Norms(_readable(frobenius), _readable(torch.linalg.matrix_norm(jacobians, ord=2)))


def _row_norms(gradient: Tensor) -> Tensor:
    """(T, R, d) -> (T, R). Squares may leave the range of float32: such steps are taken again in float64."""
    rows = torch.linalg.vector_norm(gradient, dim=2).double()
    doubtful = (~(rows > 1e-15) | rows.isinf()).any(1) & ~_all_zero(gradient)
    steps = doubtful.nonzero().squeeze(1)
    if len(steps):
        rows[steps] = torch.linalg.vector_norm(gradient[steps], dim=2, dtype=torch.float64)
    return rows


def _all_zero(gradient: Tensor) -> Tensor:
    """Whether nothing at all arrives at a step: (T, R, d) -> (T,)."""
    flat = gradient.flatten(1)
    return (flat.amax(1) == 0) & (flat.amin(1) == 0)


def _readable(norms: Tensor) -> np.ndarray:
    """By step -> by lag."""
    return torch.nan_to_num(norms, nan=torch.inf, posinf=torch.inf).flip(0).cpu().numpy()
