"""Two ways to write a recurrence, and when its gradients must vanish (Nabli 2019, question 5)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.autograd.functional import jacobian

from mnemoscope.theory._statement import PAPERS, Row, statement

Phi = Callable[[Tensor], Tensor]


def preactivation_states(W: Tensor, drive: Tensor, h: Tensor, phi: Phi = torch.sigmoid) -> Tensor:
    """h_1 .. h_T of h_t = W phi(h_{t-1}) + drive_t, drive_t = U x_t + b: drive (T, n), h = h_0 (n,) -> (T, n)."""
    states = []
    for u in drive.unbind(0):
        h = W @ phi(h) + u
        states.append(h)
    return torch.stack(states)


def activation_states(W: Tensor, drive: Tensor, g: Tensor, phi: Phi = torch.sigmoid) -> Tensor:
    """g_1 .. g_T of g_t = phi(W g_{t-1} + drive_t) (eq. 20); with g_0 = phi(h_0), g_t = phi(h_t) for all t."""
    states = []
    for u in drive.unbind(0):
        g = phi(W @ g + u)
        states.append(g)
    return torch.stack(states)


def gradient_bound(W: Tensor, slope: float, steps: int) -> float:
    """||dh_T/dh_0|| <= (slope ||W||)^T for |phi'| <= slope (eq. 25): delta^T where ||W|| <= delta/slope."""
    return (slope * float(torch.linalg.matrix_norm(W, ord=2))) ** steps


def may_explode(W: Tensor, slope: float) -> bool:
    """True if the largest singular value is above 1/slope: necessary for exploding gradients, not sufficient.

    The text has delta/slope for a delta < 1, which is necessary too; between the two gradients still vanish.
    """
    return gradient_bound(W, slope, 1) > 1


def common_spectrum(W: Tensor) -> Tensor:
    """Lemma 5.1, corrected: the *non-zero* eigenvalues that W W^T and W^T W share, (rank,), largest first."""
    values = torch.linalg.svdvals(W).square()
    return values[values > len(W) * torch.finfo(W.dtype).eps * values.max()]


def long_jacobian(W: Tensor, drive: Tensor, h: Tensor, phi: Phi = torch.sigmoid) -> Tensor:
    """dh_T/dh_0 (n, n) by backpropagation."""
    return jacobian(lambda h: preactivation_states(W, drive, h, phi)[-1], h)


@statement(
    "nabli-question-5",
    paper=PAPERS["foundations"],
    where="question 5, eqs 20-25, Lemma 5.1",
    status="corrected",
    claim="h_t = W phi(h_{t-1}) + U x_t + b and g_t = phi(W g_{t-1} + U x_t + b) are one recurrence, g = phi(h); "
    "gradients fall like delta^T where ||W|| <= delta/gamma",
    correction="Lemma 5.1 holds for non-zero eigenvalues: a wide W adds zeros to W^T W.",
    remark="That explosion needs a largest singular value above delta/gamma is true, but weak: it needs one above "
    "1/gamma, and even that is not enough: nilpotent weights have any.",
)
def question_5() -> Iterator[Row]:
    generator = torch.Generator().manual_seed(0)
    W = torch.randn(5, 5, generator=generator, dtype=torch.float64)
    h = torch.randn(5, generator=generator, dtype=torch.float64)
    drive = torch.randn(40, 5, generator=generator, dtype=torch.float64)
    gap = torch.sigmoid(preactivation_states(W, drive, h)) - activation_states(W, drive, torch.sigmoid(h))
    yield Row("difference of phi(h_t) and g_t", 1e-12, float(gap.abs().max()))
    for norm, T in ((2.0, 5), (3.8, 40)):
        V = W * norm / torch.linalg.matrix_norm(W, ord=2)
        found = float(torch.linalg.matrix_norm(long_jacobian(V, drive[:T], h), ord=2))
        yield Row(f"sigmoid, gamma ||W||={norm / 4}, T={T}: ||dh_T/dh_0||", gradient_bound(V, 0.25, T), found)
    yield from _explosion()
    wide = torch.tensor([[1.0, 2.0]], dtype=torch.float64)
    small, large = (float(v) for v in torch.linalg.eigvalsh(wide.T @ wide))
    yield Row("W = (1, 2): eigenvalue 5 of W W^T, found in W^T W", float(common_spectrum(wide)[0]), large, "==")
    yield Row("W = (1, 2): eigenvalue 0 of W^T W, not one of W W^T", 1e-12, abs(small))


def _explosion() -> Iterator[Row]:
    """Linear units, gamma = 1. delta/gamma with delta = 0.9 is passed by ||W|| = 0.95, and gradients vanish."""
    zero = torch.zeros(100, 2, dtype=torch.float64)
    rotation = 0.95 * torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64)
    nilpotent = torch.tensor([[0.0, 50.0], [0.0, 0.0]], dtype=torch.float64)
    expanding = 1.1 * rotation / 0.95
    sizes = [float(long_jacobian(W, zero, zero[0], lambda z: z).norm()) for W in (rotation, nilpotent, expanding)]
    yield Row("||W||=0.95 > delta/gamma=0.9: ||dh_100/dh_0|| vanishes", 0.01, sizes[0])
    yield Row("||W||=50, nilpotent: ||dh_100/dh_0||", 0.0, sizes[1], "==")
    yield Row("||W||=1.1, a rotation: ||dh_100/dh_0|| explodes", 1e4, sizes[2], ">=")
    spectral = sizes[2] / math.sqrt(2)  # of a multiple of a rotation, whose two singular values are equal
    yield Row("||W||=1.1, a rotation: the bound is reached", gradient_bound(expanding, 1.0, 100), spectral, "==")
