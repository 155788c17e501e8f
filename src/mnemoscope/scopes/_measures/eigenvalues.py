"""Eigenvalues of the Jacobians of large states, at less than their full cost where that is possible."""

from __future__ import annotations

import torch
from torch import Tensor

SQUARINGS = 6  # J^64 of a Jacobian with eigenvalues up to 0.98 is small


def eigenvalues(matrix: Tensor) -> Tensor:
    """Return the eigenvalues (N,) of a matrix (N, N), largest modulus first; complex128, on the CPU.

    Block by block if it is block triangular in some order of its rows, as that of a stack of layers: the cost grows
    with the cube of the size.
    """
    matrix = matrix.double().cpu()
    values = torch.cat([torch.linalg.eigvals(matrix[rows][:, rows]) for rows in diagonal_blocks(matrix)])
    return values[values.abs().argsort(descending=True)]


def diagonal_blocks(matrix: Tensor) -> list[Tensor]:
    """Return the rows of each irreducible diagonal block: numbers that depend on each other, directly or not."""
    reaches = (matrix != 0).float().fill_diagonal_(1)
    while True:
        further = (reaches @ reaches > 0).float()
        if torch.equal(further, reaches):
            break
        reaches = further
    first = (reaches * reaches.T).argmax(1)  # the first of those in the same block
    return [torch.nonzero(first == row).flatten() for row in first.unique()]


def surely_contracts(matrix: Tensor) -> bool:
    """Return True if a low power of a matrix (N, N) shows all its eigenvalues to be below 0.99 in modulus.

    A norm of J^k is at least the k-th power of the spectral radius.
    """
    power = matrix.double()
    for _ in range(SQUARINGS):
        if float(power.norm()) <= 0.5:
            return True
        power = power @ power
    return float(power.norm()) <= 0.5
