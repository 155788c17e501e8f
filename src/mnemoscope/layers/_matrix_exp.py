"""The exponential of a matrix, fast to train through, and the orthogonal matrices it gives."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from mnemoscope.kernels import is_traced_or_transformed
from mnemoscope.layers._last_result import LastResult
from mnemoscope.layers._state import in_cuda_graph
from mnemoscope.torch_internals import in_onnx_export

_TAYLOR_NORM = 0.65  # up to this norm the first term that degree 8 omits, x^9 / 9!, is below float32's precision
_FIXED_HALVINGS = 14  # where the norm cannot be read
_LARGEST_UNREAD_NORM = 3000  # up to which that many squarings give float32's precision


def matrix_exp(matrix: Tensor) -> Tensor:
    """Return exp(A) of A (n, n), by a Taylor polynomial of A / 2^s, squared s times.

    As exact as `torch.linalg.matrix_exp` in float32, and faster to train through. torch's gradient is the exponential
    of a matrix twice as large, and it waits for the device several times; here that happens once, and autograd does the
    rest. torch's still serves float64, and tracers, transforms and the meta device, where no value may decide.
    """
    if in_onnx_export():  # which knows products alone
        return _fixed_squarings(matrix.double()).to(matrix.dtype)
    if matrix.dtype != torch.float32 or matrix.is_meta or is_traced_or_transformed():
        return torch.linalg.matrix_exp(matrix)
    if in_cuda_graph(matrix):
        return matrix_exp_of_unread_norm(matrix)
    norm = float(matrix.detach().abs().sum(0).max()) if matrix.numel() else 0.0
    if not math.isfinite(norm):
        return torch.linalg.matrix_exp(matrix)
    halvings = max(0, math.ceil(math.log2(norm / _TAYLOR_NORM))) if norm else 0
    result = _taylor(matrix * 0.5**halvings)
    for _ in range(halvings):
        result = result @ result
    return result


def matrix_exp_of_unread_norm(matrix: Tensor) -> Tensor:
    """Return exp(A) without reading a number of A, for a CUDA graph; NaN if its norm is above 3,000.

    The halvings are as many as the largest norm needs. Each squaring doubles the rounding error, hence float64.
    """
    wide = matrix.double()
    result = _fixed_squarings(wide)
    fits = wide.detach().abs().sum(0).amax() <= _LARGEST_UNREAD_NORM
    return torch.where(fits, result, torch.nan).to(matrix.dtype)


def _fixed_squarings(wide: Tensor) -> Tensor:
    """Return exp(A) of A (n, n) in float64, by the same number of products for any A."""
    result = _taylor(wide * 0.5**_FIXED_HALVINGS)
    for _ in range(_FIXED_HALVINGS):
        result = result @ result
    return result


def _taylor(x: Tensor) -> Tensor:
    """Return the sum of x^k / k! up to k = 8 in four products: the powers from 4 on share the factor x^4."""
    one = torch.eye(len(x), dtype=x.dtype, device=x.device)
    x2 = x @ x
    x3 = x @ x2
    x4 = x2 @ x2
    rest = one / 24 + x / 120 + x2 / 720 + x3 / 5040 + x4 / 40320
    return one + x + x2 / 2 + x3 / 6 + x4 @ rest


class SkewExponential(nn.Module):
    """A parametrization by orthogonal matrices: V = B expm(A), A skew (Lezcano-Casado 2019).

    The trained parameter is (n, n); only its entries below the diagonal count, A = L - L^T. The names under which torch
    stores parameter and base, ``original`` and ``0.base``, are those of torch's own `parametrizations.orthogonal`.

    Args:
        dynamic: have a base B, to which an assignment ``layer.weight_hh_l0 = V`` moves, A = 0. Without it B = I, and
            nothing can be assigned.
    """

    base: Tensor | None

    def __init__(self, dynamic: bool) -> None:
        super().__init__()
        self.dynamic = dynamic
        self._last = LastResult()
        if dynamic:
            self.register_buffer("base", None)  # set by right_inverse, which torch calls when it parametrizes
        else:
            self.base = None

    def forward(self, parameter: Tensor) -> Tensor:
        reads = [parameter] if self.base is None else [parameter, self.base]
        return self._last(lambda: self._matrix(parameter), *reads)

    def _matrix(self, parameter: Tensor) -> Tensor:
        wide = parameter if parameter.dtype == torch.float64 else parameter.float()  # half is too coarse for expm
        lower = wide.tril(-1)
        matrix = matrix_exp(lower - lower.t())
        if self.base is not None:
            matrix = self.base.to(matrix.dtype) @ matrix
        return matrix.to(parameter.dtype)

    @torch.no_grad()
    def right_inverse(self, matrix: Tensor) -> Tensor:
        if not self.dynamic:
            raise NotImplementedError("the static map V = expm(A) cannot be assigned to; use trivialization='dynamic'")
        self.base = matrix.clone() if _is_orthogonal(matrix) else _orthogonalized(matrix)
        return torch.zeros_like(matrix)


def _is_orthogonal(matrix: Tensor) -> bool:
    one = torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)
    tolerance = 10 * len(matrix) * torch.finfo(matrix.dtype).eps
    return torch.allclose(matrix.mT @ matrix, one, atol=tolerance)


def _orthogonalized(matrix: Tensor) -> Tensor:
    """Return Q of the factorization Q R whose R has a positive diagonal."""
    wide = matrix if matrix.dtype == torch.float64 else matrix.float()
    q, r = torch.linalg.qr(wide)
    return (q * r.diagonal().sgn()).to(matrix.dtype)
