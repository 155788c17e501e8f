"""The exponential of a matrix, made for training: its gradient costs as little as itself."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mnemoscope.kernels import followed

REACH = 0.65  # of a norm up to this, the first term that degree 8 leaves out, x^9 / 9!, is lost in float32


def exponential(matrix: Tensor) -> Tensor:
    """exp(A) of A (n, n), by a Taylor polynomial of A / 2^s, squared s times.

    As exact as `torch.linalg.matrix_exp` in float32. That one differentiates by the exponential of a matrix twice as
    large and asks the device for several decisions; here there is one, and autograd does the rest. It still serves
    float64, and tracers and transforms, which no decision can be asked of.
    """
    if matrix.dtype != torch.float32 or followed():
        return torch.linalg.matrix_exp(matrix)
    norm = float(matrix.detach().abs().sum(0).max()) if matrix.numel() else 0.0
    if not math.isfinite(norm):
        return torch.linalg.matrix_exp(matrix)
    halvings = max(0, math.ceil(math.log2(norm / REACH))) if norm else 0
    result = _taylor(matrix * 0.5**halvings)
    for _ in range(halvings):
        result = result @ result
    return result


def _taylor(x: Tensor) -> Tensor:
    """sum of x^k / k! up to k = 8 in four products: the powers from 4 on share the factor x^4."""
    one = torch.eye(len(x), dtype=x.dtype, device=x.device)
    x2 = x @ x
    x3, x4 = x @ x2, x2 @ x2
    rest = one / 24 + x / 120 + x2 / 720 + x3 / 5040 + x4 / 40320
    return one + x + x2 / 2 + x3 / 6 + x4 @ rest
