"""Singular values of a matrix cut at a radius, by matrix products alone: what a GPU is fast at.

A GPU's singular value decomposition of a matrix of 256 rows takes longer than a hundred updates of the network that it
belongs to. About seventy products of matrices do the same, for matrices that are not far outside. The host does not
wait for them: it goes on to the next update. They are made in float64, and of a matrix inside, too, which would have to
be waited for to know.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

_RESOLUTION = 1e-8  # singular values this near to the radius, relative to it, may be left as they are
_LARGEST = 64.0  # of the bound on norm^2/radius^2, up to which the iterations below are long enough


@torch.no_grad()
def cut_by_products(matrix: Tensor, radius: float, onto: float) -> Tensor | None:
    """Return U g(S) V^T for a matrix U S V^T: g(s) = `onto` where s > `radius`, else s. None if it is far outside.

    With the polar factor Q = U V^T and the projector P onto the right singular vectors of the values above the radius,
    that is W - (W - onto Q) P. P is (1 + sign(W^T W - radius^2))/2. Both Q and the sign are limits of cubic
    polynomials. Where they have not converged, at s << radius and at s = radius, they are multiplied by 0 or by
    s - radius, so that it does not matter.

    Args:
        matrix: (n, m), in float32 or less: all is computed in float64.
        radius: singular values above it are replaced,
        onto: by this, a little less than `radius`.

    Returns:
        A new matrix in the same dtype: bit for bit the given one if no singular value is above the radius, up to a
        relative 1e-8. None if the largest singular value is, or may be, more than a few times the radius, or not
        finite.
    """
    W = matrix.double()
    gram = W.mT @ W
    bound = torch.linalg.matrix_norm(gram @ gram).sqrt() * (1 + 1e-9)  # >= norm^2, and at most n^(1/4) times that
    largest = _read_later(bound / radius**2)
    scale = bound.clamp(min=radius**2)  # nothing below exceeds 1, wherever the matrix is

    # The projector; its trace is the number of singular values above the radius.
    identity = torch.eye(W.shape[-1], dtype=W.dtype, device=W.device)
    projector = (identity + _sign((gram - radius**2 * identity) / scale, 2 * _RESOLUTION / _LARGEST)) / 2
    is_outside = projector.trace() >= 0.5

    polar = _sign(W / scale.sqrt(), 1 / math.sqrt(_LARGEST))
    cut = (W - (W - onto * polar) @ projector).to(matrix.dtype)
    nearest = torch.where(is_outside, cut, matrix)

    # Only now, when the GPU has its work for this and goes on: what was computed far outside is of no use.
    return nearest if largest() <= _LARGEST else None  # NaN is not


def _read_later(number: Tensor) -> Callable[[], float]:
    """Return a function that returns a number: it waits for a GPU to get there, but not for what it was asked since."""
    if number.device.type != "cuda":
        return lambda: float(number)
    copy = number.to("cpu", non_blocking=True)
    arrived = torch.cuda.current_stream(number.device).record_event()

    def read() -> float:
        arrived.synchronize()
        return float(copy)

    return read


def _sign(matrix: Tensor, lowest: float) -> Tensor:
    """Return U sign(S) V^T, for singular values between `lowest` and 1; smaller ones become any between 0 and 1.

    By X <- a X (3 - a^2 X^T X)/2, in which a >= 1 lets small values grow as fast as [lowest, 1] allows (Chen & Chow
    2014, "A stable scaling of Newton-Schulz for improving the sign function computation of a Hermitian matrix").
    """
    while lowest < 1 - 1e-12:
        a = min(1.7, math.sqrt(3 / (1 + lowest + lowest**2)))  # at most sqrt 3, which would send 1 to 0
        matrix = torch.addmm(matrix, matrix, matrix.mT @ matrix, beta=1.5 * a, alpha=-0.5 * a**3)
        lowest = min(_cubic(a * lowest), _cubic(a))
    return matrix


def _cubic(x: float) -> float:
    return x * (3 - x**2) / 2
