"""Fixed points of a step under a constant input, by damped Newton iterations on many starts at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from mnemoscope.recurrence import Recurrence
from mnemoscope.scopes._measures.state_vectors import advance, jacobians, unflatten

NEAR = 1e-3  # fixed points nearer than this, relative to their size, are one


class FixedPoints(NamedTuple):
    """P fixed points, and the eigenvalues of the step's Jacobian there, largest modulus first."""

    points: Tensor  # (P, N)
    eigenvalues: Tensor  # (P, N), complex


def fixed_points(recurrence: Recurrence, x: Tensor, starts: Tensor, rounds: int = 40) -> FixedPoints:
    """Solutions of F(z) = z under the constant input x (d,), from the starts (S, N).

    Newton's step on F(z) - z is halved until the residual shrinks; starts that do not get there are dropped.
    """
    starts = starts[starts.isfinite().all(1)]
    like, drive = recurrence.initial_state(len(starts)), x.expand(len(starts), -1)
    tolerance = starts.new_tensor(torch.finfo(starts.dtype).eps).sqrt()

    def residual(z: Tensor) -> Tensor:
        with torch.no_grad():
            return advance(recurrence, drive, z, like) - z

    z, eye = starts.clone(), torch.eye(starts.shape[1], dtype=starts.dtype, device=starts.device)
    for _ in range(rounds):
        off = residual(z)
        if (off.norm(dim=1) < 1e-3 * tolerance).all():
            break
        J = jacobians(recurrence, drive, unflatten(z, like))  # (S, N, N)
        off, J = (t.nan_to_num(0.0, 0.0, 0.0) for t in (off, J))  # where the next state is no number is no way on
        move = torch.linalg.lstsq(eye - J, off.unsqueeze(2)).solution.squeeze(2)
        z = _damped(z, move, off, residual)
    good = residual(z).norm(dim=1) < tolerance * (1 + z.norm(dim=1))
    points = _distinct(z[good & z.isfinite().all(1)])
    if not len(points):
        return FixedPoints(points, torch.zeros(points.shape, dtype=torch.complex128))
    here = unflatten(points, recurrence.initial_state(len(points)))
    values = torch.linalg.eigvals(jacobians(recurrence, x.expand(len(points), -1), here).double().cpu())
    order = values.abs().argsort(dim=1, descending=True)
    return FixedPoints(points, values.gather(1, order))


def _damped(z: Tensor, move: Tensor, off: Tensor, residual: Callable[[Tensor], Tensor]) -> Tensor:
    """The longest of the steps 1, 1/2, ... 1/64 that shrinks the residual, row by row; none where none does."""
    best, size = z.clone(), off.norm(dim=1)
    waiting = torch.ones_like(size, dtype=torch.bool)
    for k in range(7):
        tried = z + move / 2**k
        better = waiting & (residual(tried).norm(dim=1) < size)
        best[better] = tried[better]
        waiting &= ~better
    return best


def _distinct(points: Tensor) -> Tensor:
    kept: list[Tensor] = []
    for point in points:
        if all((point - other).norm() > NEAR * (1 + point.norm()) for other in kept):
            kept.append(point)
    return torch.stack(kept) if kept else points[:0]
