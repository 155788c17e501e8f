"""Jacobians of a model's last output by everything before it: every lag in one backward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mnemoscope.errors import MnemoscopeError
from mnemoscope.layers import Layer
from mnemoscope.layers.sequence import Weights
from mnemoscope.recurrence import State, leaves
from mnemoscope.scopes.subject import Subject


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
    """The same of the recurrence, and ||d output_T / d h_{T-k}||, from the one graph of a run step by step."""
    directions = _at_most(directions, lambda x: subject.recurrence(x)[0], subject.drive)
    x = _copies(subject.drive, directions).requires_grad_()
    outputs_by_step, seen = run_seen(subject, x)
    y = outputs_by_step[-1]
    by_input, *by_state = _pull_back(subject, y, [x, *(tensor for step in seen for tensor in step)], directions)
    gradient = last_filled(_by_step(by_state, seen))
    batch, outputs = subject.drive.shape[1], y.shape[-1]
    return _norms(by_input.flatten(2), batch, outputs), _norms(gradient, batch, outputs)


def of_loss(subject: Subject) -> tuple[Tensor, Tensor | None]:
    """||d loss / d input_t|| (T,), and, of a model with a step, ||d loss / d h_t|| (T,)."""
    if subject.lacks("step") or not subject.adapted.whole:
        x = subject.features.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(subject.loss_of(subject.run(x)), x)
        return gradient.flatten(1).norm(dim=1), None
    x = subject.drive.clone().requires_grad_()
    outputs, seen = run_seen(subject, x)
    wanted = [x, *(tensor for step in seen for tensor in step)]
    loss = subject.loss_of(torch.stack(outputs))
    by_input, *by_state = torch.autograd.grad(loss, wanted, allow_unused=True, materialize_grads=True)
    return by_input.flatten(1).norm(dim=1), _by_step(by_state, seen).flatten(1).norm(dim=1)


def run_seen(subject: Subject, x: Tensor) -> tuple[list[Tensor], list[list[Tensor]]]:
    """Run step by step: the outputs, each (B, m), and for every step the tensors by which it is known later.

    For a layer of ours these are h (B, n) of each layer, as its cell makes it: state, memory and read-out are all made
    from that tensor, so that its gradient is total. Of any other recurrence it is the whole state.
    """
    recurrence, layer = subject.recurrence, subject.layer
    state, outputs, steps = recurrence.initial_state(x.shape[1]), [], []
    nothing: list[Tensor] = []
    with _cells_seen(layer) if isinstance(layer, Layer) else nullcontext(nothing) as seen:
        for x_t in x.unbind(0):
            y, state = recurrence.step(x_t, state)
            outputs.append(y)
            steps.append([*seen] or [tensor for tensor in leaves(state) if tensor.is_floating_point()])
            seen.clear()
    return outputs, steps


@contextmanager
def _cells_seen(layer: Layer) -> Iterator[list[Tensor]]:
    """While open, notes the h (B, n) that each cell makes, before it is stacked into the state."""
    seen: list[Tensor] = []
    original = layer.observe_cell

    def noting(w: Weights, u: Tensor, state: State) -> tuple[Tensor, State, Tensor | None]:
        output, after, attention = original(w, u, state)
        seen.append(leaves(after)[0])
        return output, after, attention

    layer.observe_cell = noting  # type: ignore[method-assign]
    try:
        yield seen
    finally:
        del layer.observe_cell


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


def _by_step(gradients: list[Tensor], seen: list[list[Tensor]]) -> Tensor:
    """The gradients of the tensors seen, in their order, as (T, batch, D)."""
    remaining = iter(gradients)
    return torch.stack([torch.cat([_rows(next(remaining)) for _ in step], 1) for step in seen])


def _rows(gradient: Tensor) -> Tensor:
    """A gradient (batch, n), or of a state (layers, batch, ...), as (batch, D)."""
    return gradient if gradient.dim() == 2 else gradient.movedim(1, 0).flatten(1)


def _norms(gradient: Tensor, batch: int, outputs: int) -> Norms:
    """gradient (T, copies * B, d), rows of the Jacobians -> their norms by lag."""
    steps, rows, size = gradient.shape
    taken = rows // batch
    jacobians = gradient.detach().double().flip(0).reshape(steps, taken, batch, size).transpose(1, 2)
    frobenius = jacobians.square().sum((-2, -1)).mul(outputs / taken).sqrt()  # (T, B)
    if taken < outputs:
        return Norms(_readable(frobenius))
    return Norms(_readable(frobenius), _readable(torch.linalg.matrix_norm(torch.nan_to_num(jacobians), ord=2)))


def _readable(norms: Tensor) -> np.ndarray:
    return torch.nan_to_num(norms, nan=torch.inf, posinf=torch.inf).cpu().numpy()
