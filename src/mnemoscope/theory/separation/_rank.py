"""Start-End ranks: of almost every circuit, exactly; and of a matrix of floating-point numbers, with its tolerance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mnemoscope.errors import MnemoscopeError
from mnemoscope.theory.separation._bounds import half_length
from mnemoscope.theory.separation._circuit import random_circuit, random_templates, start_end_matrix
from mnemoscope.theory.separation._grid import distinct_sequences
from mnemoscope.theory.separation._modular import PRIMES, exact_rank

Array = np.ndarray


@dataclass(frozen=True)
class GenericRank:
    """The ranks of random circuits modulo several primes."""

    rank: int  # the largest found: almost every circuit, real or complex, has at least this rank (claim 5)
    ranks: tuple[int, ...]  # one for each draw and prime
    shape: tuple[int, int]  # of the matrix: whole grid or sample
    whole: bool  # whether every Start and End sequence was used


def generic_rank(
    depth: int,
    channels: int,
    inputs: int,
    length: int,
    *,
    values: int | None = None,
    primes: Sequence[int] = PRIMES[:2],
    draws: int = 1,
    limit: int = 1024,
    free_start: bool = False,
    seed: int = 0,
) -> GenericRank:
    """The Start-End rank of almost every circuit on `values` template vectors (default: M of them), from below.

    A minor that is non-zero modulo a prime is a non-zero polynomial in the weights, so it vanishes for almost no
    weights (claim 5); by Schwartz and Zippel a draw misses the generic rank with probability at most degree / prime.
    Above `limit` half sequences, a sample of `limit` different ones makes the rows, and another the columns.

    Examples:
        >>> from mnemoscope.theory import deep_rank_bound, generic_rank
        >>> found = generic_rank(depth=2, channels=2, inputs=2, length=6)
        >>> found.rank >= deep_rank_bound(channels=2, inputs=2, length=6)
        True
    """
    half = half_length(length, depth, channels, inputs)
    rng = np.random.default_rng(seed)
    count = values or inputs
    ranks = []
    shape = (0, 0)
    for prime in [prime for prime in primes for _ in range(draws)]:
        circuit = random_circuit(depth, channels, inputs, rng, prime, free_start)
        templates = None if count == inputs else random_templates(count, inputs, rng, prime)
        starts, ends = (distinct_sequences(count, half, limit, rng) for _ in range(2))
        matrix = start_end_matrix(circuit, starts, ends, templates)
        ranks.append(exact_rank(matrix, prime))
        shape = matrix.shape
    return GenericRank(max(ranks), tuple(ranks), shape, whole=count**half <= limit)


@dataclass(frozen=True)
class FloatRank:
    """The numerical rank: singular values above `tolerance`, and how clear the cut is."""

    rank: int
    tolerance: float
    gap: float  # smallest kept over largest dropped singular value; inf where nothing was dropped
    singular_values: Array


def float_rank(matrix: Array, tolerance: float | None = None, equilibrated: bool = True) -> FloatRank:
    """The rank in floating point: singular values above max(shape) * eps * the largest, unless a tolerance is given.

    Equilibrating (see `equilibrate`) leaves the rank alone and helps the cut. The singular values of deep circuits fall
    off smoothly below any tolerance all the same: for random weights and M = 2 the figure is right at depth 1, mostly
    right to T = 8 at depths 2 and 3, and too low beyond, where only `exact_rank` tells.
    """
    if matrix.ndim != 2:
        raise MnemoscopeError(f"a rank needs a matrix, got an array of shape {matrix.shape}")
    if not np.isfinite(matrix).all():
        raise MnemoscopeError("a rank needs finite entries, got inf or nan; scale the weights down or use exact_rank")
    array = equilibrate(matrix) if equilibrated else np.asarray(matrix)
    spectrum = np.linalg.svd(array, compute_uv=False)
    cut = tolerance if tolerance is not None else _usual_tolerance(array) * spectrum[0]
    rank = int((spectrum > cut).sum())
    inside = 0 < rank < len(spectrum) and spectrum[rank] > 0
    return FloatRank(rank, float(cut), float(spectrum[rank - 1] / spectrum[rank]) if inside else np.inf, spectrum)


def float_ranks(matrices: Array, at_once: int = 64) -> Array:
    """The ranks (C,) of finite matrices (C, rows, columns) in floating point, as `float_rank` gives each."""
    ranks = []
    for start in range(0, len(matrices), at_once):
        arrays = equilibrate(matrices[start : start + at_once])
        spectra = np.linalg.svd(arrays, compute_uv=False)
        ranks.append((spectra > _usual_tolerance(arrays) * spectra[:, :1]).sum(axis=1))
    return np.concatenate(ranks)


def _usual_tolerance(array: Array) -> float:
    """max(shape) * eps, relative to the largest singular value."""
    return max(array.shape[-2:]) * float(np.finfo(array.dtype).eps)


def equilibrate(matrix: Array, rounds: int = 8) -> Array:
    """Scale rows and columns towards unit maximum by powers of two: exact in floating point, and it keeps the rank.

    Of one matrix, or of each of several (..., rows, columns).
    """
    scaled = np.array(matrix, dtype=np.result_type(matrix, np.float32))
    for _ in range(rounds):
        before = scaled
        scaled = _unit_maximum(_unit_maximum(before, axis=-1), axis=-2)
        if np.array_equal(scaled, before):
            break
    return scaled


def _unit_maximum(matrix: Array, axis: int) -> Array:
    largest = np.abs(matrix).max(axis=axis, keepdims=True)
    _, exponents = np.frexp(np.where(largest > 0, largest, 1.0))
    return np.ldexp(matrix, -exponents)
