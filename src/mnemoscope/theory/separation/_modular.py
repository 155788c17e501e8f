"""Exact arithmetic modulo a 31-bit prime with numpy's arrays.

Two residues below 2^31 multiply to less than 2^62, so four such products add up in uint64 without overflow. The rank
of a matrix of integers modulo any prime is at most its rank over the rationals: what is found here is a certified lower
bound.
"""

from __future__ import annotations

import numpy as np

from mnemoscope.errors import MnemoscopeError
from mnemoscope.theory.separation._optional import require_optional

Array = np.ndarray

PRIMES = (2147483647, 2147483629, 2147483587, 2147483579)  # the four largest below 2^31

_TERMS = 4  # how many products of residues fit into uint64 before they must be reduced


def residues(values: Array, prime: int) -> Array:
    """Integers (any sign) as residues in uint64."""
    if not 2 <= prime < 2**31:
        raise MnemoscopeError(f"prime must lie in [2, 2^31) for products to be exact, got {prime}")
    array = np.asarray(values)
    if array.dtype.kind not in "iuO":
        raise MnemoscopeError(f"arithmetic modulo {prime} needs integers, got {array.dtype}")
    return array if _is_reduced(array, prime) else np.asarray(array % prime).astype(np.uint64)


def _is_reduced(array: Array, prime: int) -> bool:
    return array.dtype == np.uint64 and (array.size == 0 or int(array.max()) < prime)


def reduce(values: Array, prime: int) -> Array:
    """values mod prime; division by a scalar is vectorised in numpy, the remainder is not."""
    p = np.uint64(prime)
    return values - values // p * p


def times(a: Array, b: Array, prime: int | None) -> Array:
    """a * b entry by entry: over the reals (prime None) or modulo prime."""
    return a * b if prime is None else reduce(a * b, prime)


def apply(weights: Array, x: Array, prime: int | None) -> Array:
    """weights (k, m) on the last axis of x (..., m): (..., k), over the reals (prime None) or modulo prime."""
    if prime is None:
        return x @ weights.T
    total = reduce(x[..., :_TERMS] @ weights[:, :_TERMS].T, prime)
    for first in range(_TERMS, weights.shape[1], _TERMS):
        block = slice(first, first + _TERMS)
        total = reduce(total + reduce(x[..., block] @ weights[:, block].T, prime), prime)
    return total


def inverse(matrix: Array, prime: int) -> Array:
    """The inverse of a square matrix modulo prime."""
    try:
        flint_inverse = _flint_matrix(residues(matrix, prime), prime).inv()
    except ZeroDivisionError:
        raise MnemoscopeError(f"the matrix is singular modulo {prime}") from None
    return np.array([[int(entry) for entry in row] for row in flint_inverse.tolist()], dtype=np.uint64)


def exact_rank(matrix: Array, prime: int = PRIMES[0]) -> int:
    """The rank modulo `prime` of a matrix of integers: at most its rank over the rationals, and rarely less.

    Examples:
        >>> import numpy
        >>> from mnemoscope.theory import exact_rank
        >>> exact_rank(numpy.array([[1, 2], [2, 4]], dtype=numpy.uint64))
        1
    """
    array = residues(matrix, prime)
    if array.ndim != 2:
        raise MnemoscopeError(f"a rank needs a matrix, got an array of shape {array.shape}")
    return int(_flint_matrix(array, prime).rank())


def _flint_matrix(array: Array, prime: int):  # type: ignore[no-untyped-def]  # flint has no stubs
    rows, columns = array.shape
    return require_optional("flint").nmod_mat(rows, columns, array.ravel().tolist(), prime)
