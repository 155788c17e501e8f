"""Fixed points of a step under a constant input, by damped Newton iterations on many starts at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from mnemoscope.recurrence import Recurrence, leaves
from mnemoscope.scopes._measures.eigenvalues import eigenvalues, surely_contracts
from mnemoscope.scopes._measures.state_vectors import advance, carries_memory, flatten, jacobians, unflatten

NEAR = 1e-3  # fixed points nearer than this, relative to their size, are one


@dataclass(frozen=True)
class FixedPoints:
    """P fixed points, and the step's Jacobian there.

    Attributes:
        points: (P, N).
        jacobians: (P, N, N).
    """

    points: Tensor
    jacobians: Tensor

    @cached_property
    def eigenvalues(self) -> Tensor:
        """(P, N), complex: of the Jacobians, largest modulus first."""
        if not len(self.points):
            return torch.zeros(self.points.shape, dtype=torch.complex128)
        return torch.stack([eigenvalues(matrix) for matrix in self.jacobians])

    @cached_property
    def stable(self) -> Tensor:
        """(P,): True where every eigenvalue lies inside the unit circle, by more than the rounding of an isometry's."""
        if all(surely_contracts(matrix) for matrix in self.jacobians):  # eigenvalues of a large state take long
            return torch.ones(len(self.points), dtype=torch.bool)
        return self.eigenvalues.abs().amax(-1) < 1 - 16 * torch.finfo(self.points.dtype).eps


@torch.no_grad()
def is_same_at_all_times(recurrence: Recurrence, x: Tensor, steps: int) -> bool:
    """True unless a step counts steps in its state and does something else at one of the first ones.

    Such a step has no fixed points: what the first one leaves where it is, the next one may move.
    """
    state = recurrence.initial_state(2)
    if carries_memory(state) or all(leaf.is_floating_point() for leaf in leaves(state)):
        return True
    vector = flatten(state)
    generator = torch.Generator().manual_seed(0)
    vector = torch.randn(vector.shape, generator=generator, dtype=torch.float64).to(vector)
    inputs, first = x.expand(2, -1), None
    for _ in range(steps):
        state = recurrence.step(inputs, unflatten(vector, state))[1]
        first = flatten(state) if first is None else first
        if not torch.allclose(flatten(state), first, rtol=NEAR, atol=NEAR, equal_nan=True):
            return False
    return True


def fixed_points(recurrence: Recurrence, x: Tensor, starts: Tensor, rounds: int = 40) -> FixedPoints:
    """Solve F(z) = z under the constant input x (d,), from the starts (S, N).

    Newton's step on F(z) - z is halved until the residual shrinks; starts that do not converge are dropped.
    """
    starts = starts[starts.isfinite().all(1)]
    like = recurrence.initial_state(len(starts))
    inputs = x.expand(len(starts), -1)
    tolerance = starts.new_tensor(torch.finfo(starts.dtype).eps).sqrt()

    def residual(z: Tensor) -> Tensor:
        with torch.no_grad():
            return advance(recurrence, inputs, z, like) - z

    # Newton: z + (I - J)^+ (F(z) - z). A state whose successor is NaN stays where it is.
    z = starts.clone()
    eye = torch.eye(starts.shape[1], dtype=starts.dtype, device=starts.device)
    for _ in range(rounds):
        off = residual(z)
        if (off.norm(dim=1) < 1e-3 * tolerance).all():
            break
        J = jacobians(recurrence, inputs, unflatten(z, like))  # (S, N, N)
        off = off.nan_to_num(0.0, 0.0, 0.0)
        J = J.nan_to_num(0.0, 0.0, 0.0)
        move = torch.linalg.lstsq(eye - J, off.unsqueeze(2)).solution.squeeze(2)
        z = _damped_step(z, move, off, residual)

    # Those that converged, each once.
    converged = residual(z).norm(dim=1) < tolerance * (1 + z.norm(dim=1))
    points = distinct(z[converged & z.isfinite().all(1)])
    if not len(points):
        return FixedPoints(points, points.new_zeros(0, z.shape[1], z.shape[1]))
    states = unflatten(points, recurrence.initial_state(len(points)))
    return FixedPoints(points, jacobians(recurrence, x.expand(len(points), -1), states))


def _damped_step(z: Tensor, move: Tensor, off: Tensor, residual: Callable[[Tensor], Tensor]) -> Tensor:
    """Take, row by row, the longest of the steps 1, 1/2, ... 1/64 that shrinks the residual; none if none does."""
    best = z.clone()
    size = off.norm(dim=1)
    waiting = torch.ones_like(size, dtype=torch.bool)
    for k in range(7):
        trial = z + move / 2**k
        better = waiting & (residual(trial).norm(dim=1) < size)
        best[better] = trial[better]
        waiting &= ~better
    return best


def distinct(points: Tensor) -> Tensor:
    """Return the rows of (S, N) that are not near an earlier one."""
    distinct: list[Tensor] = []
    for point in points:
        if all((point - other).norm() > NEAR * (1 + point.norm()) for other in distinct):
            distinct.append(point)
    return torch.stack(distinct) if distinct else points[:0]


@torch.no_grad()
def near_linear(
    recurrence: Recurrence, x: Tensor, orbits: Tensor, points: Tensor, allowed: float
) -> tuple[np.ndarray, np.ndarray]:
    """Say which orbits (S, steps, N) are on their way to one of the stable fixed points (P, N).

    Returns the number of the nearest one (S,), and (S,) True if the last step is J (z - point) up to the fraction
    `allowed` of |z - point|, and the orbit has come nearer to it from the first half of its steps to the second.
    """
    last = orbits[:, -1]
    nearest = torch.cdist(last, points).argmin(1)  # (S,)
    target = points[nearest]
    matrices = jacobians(
        recurrence, x.expand(len(points), -1), unflatten(points, recurrence.initial_state(len(points)))
    )
    offset = last - target
    following = advance(recurrence, x.expand(len(last), -1), last, recurrence.initial_state(len(last))) - target
    linear = (matrices[nearest] @ offset.unsqueeze(2)).squeeze(2)
    is_linear = (following - linear).norm(dim=1) <= allowed * offset.norm(dim=1)
    distance = (orbits - target[:, None]).norm(dim=2)  # (S, steps)
    half = distance.shape[1] // 2
    nearer = distance[:, half:].amax(1) < distance[:, :half].amax(1)
    return nearest.cpu().numpy(), (is_linear & nearer).cpu().numpy()
