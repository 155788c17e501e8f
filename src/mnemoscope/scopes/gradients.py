"""Jacobians of a model's last output by everything before it: every lag in one backward pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mnemoscope.adapters import Between
from mnemoscope.errors import MnemoscopeError
from mnemoscope.layers import Layer
from mnemoscope.recurrence import Recurrence, State, leaves
from mnemoscope.scopes.subject import Subject

Observed = Callable[[Tensor, State], tuple[Tensor, list[Tensor], State]]
"""One step that also gives the tensors through which everything known of it flows on."""


@dataclass(frozen=True)
class Norms:
    """Norms of a Jacobian by lag, (T, B): the lag 0 first. `spectral` only where every direction was taken."""

    frobenius: np.ndarray
    spectral: np.ndarray | None = None


def by_inputs(subject: Subject, directions: int = 1) -> Norms:
    """||d output_T / d input_{T-k}||: total, through whatever the model does in between."""
    x = _copies(subject.features, directions).requires_grad_()
    y = subject.run(x)[-1]  # (copies * B, m)
    (gradient,) = _pull_back(subject, y, [x], directions)
    return _norms(gradient.flatten(2), subject.batch, y.shape[-1])


def by_inputs_and_states(subject: Subject, directions: int = 1) -> tuple[Norms, Norms | None]:
    """The same of the recurrence, and ||d output_T / d h_{T-k}||, from the one graph of a run step by step."""
    x = _copies(subject.drive, directions).requires_grad_()
    observed = observe_states(subject.recurrence, x[0].detach())
    if observed is None:
        return by_inputs(subject, directions), None
    state, nodes = subject.recurrence.initial_state(x.shape[1]), []
    for x_t in x.unbind(0):
        y, known, state = observed(x_t, state)
        nodes.append(known)
    flat = [tensor for known in nodes for tensor in known]
    found = _pull_back(subject, y, [x, *flat], directions)
    outputs, steps = y.shape[-1], len(nodes)
    per_step = len(flat) // steps
    states = [torch.cat([_rows(g, x.shape[1]) for g in found[1 + i * per_step :][:per_step]], 1) for i in range(steps)]
    return _norms(found[0].flatten(2), subject.batch, outputs), _norms(torch.stack(states), subject.batch, outputs)


def observe_states(recurrence: Recurrence, x: Tensor) -> Observed | None:
    """How to see a recurrence's states in the graph, tried on one step's input; None where its output hides them.

    A layer of ours gives h itself as its output: the one tensor that the state, the memory and the read-out are made
    from. Of any other recurrence the whole state is taken.
    """
    layer = recurrence.layer if isinstance(recurrence, Between) else recurrence

    def by_output(x: Tensor, state: State) -> tuple[Tensor, list[Tensor], State]:
        h, state = layer.step(x, state)
        return recurrence.read(h, x) if isinstance(recurrence, Between) else h, [h], state

    def by_state(x: Tensor, state: State) -> tuple[Tensor, list[Tensor], State]:
        y, state = recurrence.step(x, state)
        return y, [t for t in leaves(state) if t.is_floating_point()], state

    if not isinstance(layer, Layer):
        return by_state
    with torch.no_grad():
        h, state = layer.step(x, layer.initial_state(len(x)))
        return by_output if torch.equal(h, leaves(state)[0][-1]) else None


def _copies(x: Tensor, directions: int) -> Tensor:
    return x.repeat(1, directions, *[1] * (x.dim() - 2))


def _pull_back(subject: Subject, y: Tensor, by: list[Tensor], directions: int) -> tuple[Tensor, ...]:
    """One backward pass from y (copies * B, m), each copy of a sequence in a direction of its own."""
    if not y.requires_grad:
        raise MnemoscopeError(f"no gradient leads from the outputs of {subject.name} to its inputs")
    outputs, batch = y.shape[-1], subject.batch
    gauss = torch.randn(batch, outputs, directions, generator=subject.generator(), dtype=torch.float64)
    basis = torch.linalg.qr(gauss).Q  # (B, m, copies): orthonormal, so that with m copies nothing is left out
    vectors = basis.permute(2, 0, 1).reshape(-1, outputs).to(y)
    return torch.autograd.grad(y, by, vectors, allow_unused=True, materialize_grads=True)


def _rows(gradient: Tensor, batch: int) -> Tensor:
    """A state's gradient (layers, batch, ...) or (batch, n) as (batch, n)."""
    return gradient if gradient.dim() == 2 else gradient.movedim(1, 0).reshape(batch, -1)


def _norms(gradient: Tensor, batch: int, outputs: int) -> Norms:
    """gradient (T, copies * B, d), rows of the Jacobians -> their norms by lag."""
    steps, rows, size = gradient.shape
    jacobians = gradient.detach().double().flip(0).reshape(steps, rows // batch, batch, size).transpose(1, 2)
    taken = rows // batch
    frobenius = jacobians.square().sum((-2, -1)).mul(outputs / taken).sqrt()
    if taken < outputs:
        return Norms(_readable(frobenius))
    return Norms(_readable(frobenius), _readable(torch.linalg.matrix_norm(torch.nan_to_num(jacobians), ord=2)))


def _readable(norms: Tensor) -> np.ndarray:
    return torch.nan_to_num(norms, nan=torch.inf, posinf=torch.inf).cpu().numpy()
