"""The largest singular value of a large Jacobian, without the Jacobian."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

STEPS = 100  # at most: the eigenvalues of J J^T at the upper end are found first
ACCURACY = 1e-5  # of the largest eigenvalue, relative


def largest_singular_value(function: Callable[..., Tensor], at: tuple[Any, ...]) -> float:
    """Return ||J|| of a vector-valued function of several arguments, tensors or nests of them, jointly in all of them.

    By Lanczos' method on J J^T, whose products with vectors are two backward passes: one gives J^T u, and one of that,
    which is linear in u, gives J v. Infinity if a number is NaN or infinite.
    """
    linearized: Any = torch.func.vjp(function, *at)
    value, pull_back = linearized
    generator = torch.Generator().manual_seed(0)
    u = torch.randn(value.shape, generator=generator, dtype=torch.float64).to(value.device)
    push: Any = torch.func.vjp(pull_back, torch.zeros_like(value))[1]

    basis: list[Tensor] = []
    diagonal: list[float] = []
    beside: list[float] = []
    largest = 0.0
    size = u.norm()
    for _ in range(min(STEPS, value.numel())):
        basis.append(u / size)
        product = push(pull_back(basis[-1].to(value)))[0].double()
        diagonal.append(float(product @ basis[-1]))
        vectors = torch.stack(basis)
        for _ in range(2):  # twice: once leaves rounding, which would bring found eigenvalues back
            product = product - vectors.mT @ (vectors @ product)
        u, size = product, product.norm()
        if not math.isfinite(diagonal[-1]) or not math.isfinite(float(size)):
            return math.inf

        # The residual of the largest Ritz pair bounds how far its value is from an eigenvalue.
        ritz = torch.diag(torch.tensor(diagonal, dtype=torch.float64))
        for k, coupling in enumerate(beside):
            ritz[k, k + 1] = ritz[k + 1, k] = coupling
        values, ritz_vectors = torch.linalg.eigh(ritz)
        largest = max(float(values[-1]), 0.0)
        if float(size) * abs(float(ritz_vectors[-1, -1])) <= ACCURACY * largest:
            break
        beside.append(float(size))
    return math.sqrt(largest)
