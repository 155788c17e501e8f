"""Ranks, exact and floating, against matrices whose rank is known."""

import math

import numpy as np
import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

from mnemoscope.errors import MnemoscopeError
from mnemoscope.theory.separation import PRIMES, equilibrate, exact_rank, float_rank, generic_rank
from mnemoscope.theory.separation._rank import float_ranks

pytest.importorskip("flint")


def test_the_primes_are_the_largest_below_two_to_the_31():
    found = [n for n in range(2**31 - 1, 2**31 - 70, -2) if all(n % d for d in range(3, math.isqrt(n) + 1, 2))]
    assert tuple(found[:4]) == PRIMES


@given(st.integers(1, 12), st.integers(1, 12), st.integers(0, 12), st.sampled_from(PRIMES), st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_exact_rank_of_a_product_of_thin_matrices(rows, columns, inner, prime, seed):
    rng = np.random.default_rng(seed)
    left = rng.integers(1, 10**6, size=(rows, inner)).astype(object)
    right = rng.integers(1, 10**6, size=(inner, columns)).astype(object)
    product = np.array(left @ right, dtype=object).reshape(rows, columns)
    if inner == 0:
        product = np.zeros((rows, columns), dtype=np.int64)
    assert exact_rank(product, prime) == min(rows, columns, inner)


@given(st.integers(1, 5), st.integers(1, 5), st.integers(0, 999))
@settings(max_examples=40, deadline=None)
def test_exact_rank_is_sympys_rational_rank_on_small_integers(rows, columns, seed):
    matrix = np.random.default_rng(seed).integers(-1, 2, size=(rows, columns))
    assert exact_rank(matrix) == sympy.Matrix(matrix.tolist()).rank()


def test_a_rank_modulo_a_prime_is_only_a_lower_bound():
    assert exact_rank(np.array([[7, 0], [0, 1]]), prime=7) == 1
    assert exact_rank(np.array([[7, 0], [0, 1]]), prime=11) == 2


def test_generic_rank_keeps_every_draw():
    found = generic_rank(2, 2, 2, 8, draws=3)
    assert found.rank == 10
    assert found.ranks == (10,) * 6
    assert found.shape == (16, 16)
    assert found.whole


def test_generic_rank_samples_where_the_grid_is_too_large():
    found = generic_rank(2, 2, 3, 12, limit=100)
    assert found.shape == (100, 100)
    assert not found.whole
    assert found.rank == 14  # R ((R, T/2)), what the whole grid gives


@given(st.integers(1, 8), st.integers(1, 8), st.integers(1, 8), st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_float_rank_sees_through_bad_scaling(rows, columns, inner, seed):
    rng = np.random.default_rng(seed)
    matrix = rng.standard_normal((rows, inner)) @ rng.standard_normal((inner, columns))
    scaled = matrix * 2.0 ** rng.integers(-300, 300, size=(rows, 1)) * 2.0 ** rng.integers(-300, 300, size=(1, columns))
    assert float_rank(scaled).rank == min(rows, columns, inner)


def test_ranks_of_many_matrices_are_those_of_each():
    rng = np.random.default_rng(0)
    matrices = np.stack([rng.standard_normal((6, k)) @ rng.standard_normal((k, 5)) for k in range(6)] * 20)
    matrices *= 2.0 ** rng.integers(-300, 300, size=(6, 1))
    assert float_ranks(matrices).tolist() == [float_rank(matrix).rank for matrix in matrices] == [*range(6)] * 20


def test_without_equilibration_small_rows_drown():
    scaled = np.diag([1.0, 1e-30])
    assert float_rank(scaled, equilibrated=False).rank == 1
    assert float_rank(scaled).rank == 2


def test_equilibration_multiplies_by_powers_of_two_alone():
    matrix = np.random.default_rng(0).standard_normal((5, 4)) * 10.0 ** np.arange(-8, 12).reshape(5, 4)
    mantissa, _ = np.frexp(matrix)
    assert (np.frexp(equilibrate(matrix))[0] == mantissa).all()
    assert 0.5 <= np.abs(equilibrate(matrix)).max() <= 1
    assert (equilibrate(np.zeros((2, 3))) == 0).all()


def test_float_rank_states_tolerance_and_gap():
    found = float_rank(np.diag([1.0, 0.5, 2.0**-60]), equilibrated=False)
    assert found.rank == 2
    assert found.tolerance == 3 * np.finfo(float).eps
    assert found.gap == 2.0**59
    assert float_rank(np.eye(3)).gap == np.inf
    assert float_rank(np.diag([1.0, 0.5, 0.1]), tolerance=0.3, equilibrated=False).rank == 2


def test_what_has_no_rank_is_refused():
    with pytest.raises(MnemoscopeError, match="needs a matrix"):
        float_rank(np.zeros(3))
    with pytest.raises(MnemoscopeError, match="needs a matrix"):
        exact_rank(np.zeros(3, dtype=np.int64))
    with pytest.raises(MnemoscopeError, match="finite"):
        float_rank(np.array([[np.inf]]))
