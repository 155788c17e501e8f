"""Theorem 1, the counts and the ceiling: against enumeration, and against the ranks of random circuits."""

import math
from itertools import combinations_with_replacement, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mnemoscope.errors import MnemoscopeError
from mnemoscope.theory.separation import (
    PRIMES,
    basic_units,
    circuit_outputs,
    conjectured_rank,
    deep_rank_bound,
    exponential_floor,
    generic_rank,
    input_degree,
    multiset_coefficient,
    random_circuit,
    separation_ceiling,
    shallow_rank,
)

pytest.importorskip("flint")

few = st.integers(1, 4)
halves = st.integers(1, 3)


@given(st.integers(0, 5), st.integers(0, 6))
def test_multiset_coefficients_count_multisets(kinds, size):
    assert multiset_coefficient(kinds, size) == len(list(combinations_with_replacement(range(kinds), size)))


@given(st.integers(1, 5), st.integers(1, 4))
def test_basic_units_count_the_chains_past_the_middle(depth, half):
    length = 2 * half
    for layer in range(1, depth + 1):
        times = product(range(1, length + 1), repeat=depth - layer)
        chains = [c for c in times if list(c) == sorted(c) and all(t > half for t in c)]
        assert basic_units(depth, length, layer) == len(chains)


def test_claim_4_as_printed_counts_wrongly():
    # The proof's innermost sum runs over t_2 in place of 1; for L = 2 it is the only one.
    printed = sum(range(6 // 2 + 1, 6 + 1))
    assert printed == 15
    assert basic_units(2, 6) == 3
    assert basic_units(3, 6) == 6  # the paper's own example below fig. 2


@given(st.integers(1, 3), st.integers(1, 4), st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_the_output_is_a_form_of_the_input_degree_in_each_input(depth, length, seed):
    prime, rng = PRIMES[0], np.random.default_rng(seed)
    circuit = random_circuit(depth, 3, 2, rng, prime, free_start=True)
    x = rng.integers(0, prime, size=(length, 2), dtype=np.uint64)
    value = int(circuit_outputs(circuit, x[None])[0])
    for time in range(1, length + 1):
        doubled = x.copy()
        doubled[time - 1] = doubled[time - 1] * np.uint64(2) % np.uint64(prime)
        factor = pow(2, input_degree(depth, length, time), prime)
        assert int(circuit_outputs(circuit, doubled[None])[0]) == value * factor % prime


@given(st.integers(1, 9), few, halves, st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_theorem_1_shallow_is_the_rank_of_random_circuits(channels, inputs, half, seed):
    found = generic_rank(1, channels, inputs, 2 * half, seed=seed, free_start=bool(seed % 2))
    assert found.rank == shallow_rank(channels, inputs, 2 * half)


@given(few, few, halves, st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_theorem_1_deep_bounds_the_rank_and_the_ceiling_is_that_rank(channels, inputs, half, seed):
    found = generic_rank(2, channels, inputs, 2 * half, seed=seed).rank
    assert found >= deep_rank_bound(channels, inputs, 2 * half)
    assert found == separation_ceiling(2, channels, inputs, 2 * half, values=inputs)


def test_theorem_1_deep_is_loose_by_the_factor_r():
    for half in (3, 4, 5, 6):
        assert generic_rank(2, 2, 2, 2 * half).rank == 2 * deep_rank_bound(2, 2, 2 * half)


@given(few, few, few, halves, st.integers(0, 3), st.integers(0, 99))
@settings(max_examples=100, deadline=None)
def test_no_circuit_exceeds_the_ceiling(depth, channels, inputs, half, more, seed):
    values = inputs + more
    found = generic_rank(depth, channels, inputs, 2 * half, values=values, primes=PRIMES[:1], seed=seed, limit=128)
    ceiling = separation_ceiling(depth, channels, inputs, 2 * half, values)
    assert found.rank <= ceiling <= separation_ceiling(depth, channels, inputs, 2 * half)


@pytest.mark.parametrize(
    ("size", "rank"),
    [  # depth, R, M, T, values: saturated by the middle, by End's inputs, and by the ideal of the first End step
        ((1, 3, 2, 8, 2), 3),
        ((3, 2, 4, 4, 4), 8),
        ((4, 3, 4, 6, 4), 48),
        ((2, 4, 3, 10, 3), 4 * (56 - 1)),
        ((2, 4, 3, 6, 7), 4 * (20 - 1)),
        ((5, 2, 2, 4, 12), 12),
    ],
)
def test_the_ceiling_is_reached(size, rank):
    assert separation_ceiling(*size) == rank
    assert generic_rank(*size[:4], values=size[4]).rank == rank


def test_formulas_by_hand():
    assert shallow_rank(9, 2, 6) == 8
    assert deep_rank_bound(4, 3, 6) == math.comb(3 + 3 - 1, 3)
    assert conjectured_rank(3, 2, 2, 6) == 7  # ((2, ((3, 2)))) = ((2, 6))
    assert conjectured_rank(5, 4, 2, 12) == 2**6
    for channels, inputs, length in product((1, 2, 3), (1, 2, 3), (2, 4, 8)):
        assert conjectured_rank(2, channels, inputs, length) == deep_rank_bound(channels, inputs, length)


def test_at_depth_1_the_conjecture_is_below_theorem_1_when_r_exceeds_m():
    assert conjectured_rank(1, 5, 2, 6) == 2
    assert shallow_rank(5, 2, 6) == 5
    assert conjectured_rank(1, 2, 5, 6) == shallow_rank(2, 5, 6)


@given(st.integers(1, 60), st.integers(0, 5))
def test_footnote_3_holds_with_its_constant(kinds, more):
    assert multiset_coefficient(kinds, kinds + more) >= exponential_floor(kinds) * (1 - 1e-12)


def test_footnote_3_has_the_right_growth():
    # central binomial coefficients: C(2k - 1, k) ~ 4^k / (2 sqrt(pi k)), 2 / sqrt(pi) above the floor
    ratio = multiset_coefficient(400, 400) / exponential_floor(400)
    assert ratio == pytest.approx(2 / math.sqrt(math.pi), rel=1e-3)


@pytest.mark.parametrize(
    "call",
    [
        lambda: shallow_rank(2, 2, 5),
        lambda: deep_rank_bound(0, 2, 4),
        lambda: conjectured_rank(0, 2, 2, 4),
        lambda: basic_units(2, 4, layer=3),
        lambda: input_degree(2, 4, time=5),
        lambda: multiset_coefficient(-1, 2),
    ],
)
def test_hypotheses_are_checked(call):
    with pytest.raises(MnemoscopeError):
        call()
