"""Appendix B.3.2 and B.3.3: the explicit circuit of theorem 1's proof, and the lemmas under it."""

from itertools import combinations_with_replacement, permutations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mnemoscope.errors import MnemoscopeError
from mnemoscope.theory.separation import (
    PRIMES,
    best_reward,
    bucket_states,
    circuit_outputs,
    deep_rank_bound,
    end_factors,
    end_product,
    exact_rank,
    grid_matrix,
    grid_tensor,
    multiset_coefficient,
    permuted_products,
    random_templates,
    start_end,
    start_factors,
    theorem_1_circuit,
)
from mnemoscope.theory.separation._modular import apply

pytest.importorskip("flint")

PRIME = PRIMES[0]


@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 4), st.integers(2, 10**6))
@settings(max_examples=60, deadline=None)
def test_the_explicit_circuit_reaches_theorem_1s_bound_exactly(channels, inputs, half, z):
    circuit = theorem_1_circuit(channels, inputs, 2 * half, z)
    assert exact_rank(grid_matrix(circuit, 2 * half)) == deep_rank_bound(channels, inputs, 2 * half)


def test_the_explicit_circuit_works_on_any_independent_templates():
    templates = random_templates(3, 3, np.random.default_rng(0), PRIME)
    circuit = theorem_1_circuit(4, 3, 6, templates=templates)
    plain = theorem_1_circuit(4, 3, 6)
    assert (grid_matrix(circuit, 6, templates) == grid_matrix(plain, 6)).all()  # W_I F^T = Z
    assert not (circuit.input_weights[0] == plain.input_weights[0]).all()


def test_the_power_matrix_is_z_to_the_powers_of_omega():
    omega = 2**2 + 1  # T = 4
    expected = [[7**omega % PRIME, 1, 1], [1, pow(7, omega**2, PRIME), 1]]
    assert theorem_1_circuit(2, 3, 4, z=7).input_weights[0].tolist() == expected
    assert theorem_1_circuit(3, 1, 4, z=7).input_weights[0].tolist() == [[7**omega % PRIME], [0], [0]]


def test_z_must_be_neither_one_nor_zero():
    assert exact_rank(grid_matrix(theorem_1_circuit(2, 2, 4, z=1), 4)) == 1  # one of the finitely many bad z
    with pytest.raises(MnemoscopeError, match="must not be a multiple"):
        theorem_1_circuit(2, 2, 4, z=PRIME)


@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_the_end_product_is_its_definition(channels, inputs, half, seed):
    z = np.random.default_rng(seed).integers(0, PRIME, size=(channels, inputs), dtype=np.uint64)

    def by_hand(d):
        value = 1
        for t in range(half + 1, 2 * half + 1):
            total = 0
            for r in range(channels):
                factor = 1
                for symbol in d[:t]:
                    factor = factor * int(z[r, symbol]) % PRIME
                total += factor
            value = value * total % PRIME
        return value

    tensor = np.array([by_hand(d) for d in product(range(inputs), repeat=2 * half)])
    assert (end_product(z, half, PRIME) == start_end(tensor.reshape((inputs,) * 2 * half))).all()


def test_the_circuit_is_its_start_factor_times_the_end_product():
    circuit = theorem_1_circuit(3, 2, 4)
    z = circuit.input_weights[0]
    matrix = grid_tensor(lambda x: circuit_outputs(circuit, x), np.eye(2, dtype=np.uint64), 4)
    start = [
        int(sum(int(z[r, a]) for r in range(3)) * sum(int(z[r, a] * z[r, b] % PRIME) for r in range(3)) % PRIME)
        for a, b in product(range(2), repeat=2)
    ]
    expected = np.array(start, dtype=object)[:, None] * end_product(z, 2, PRIME).astype(object) % PRIME
    assert (start_end(matrix) == expected).all()


@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 4), st.sampled_from(PRIMES), st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_claim_6_factors_the_end_product(channels, inputs, half, prime, seed):
    z = np.random.default_rng(seed).integers(0, prime, size=(channels, inputs), dtype=np.uint64)
    start, end = start_factors(z, half, prime), end_factors(z, half, prime)
    assert start.shape[1] == len(end) == multiset_coefficient(channels, half)
    assert (apply(end.T, start, prime) == end_product(z, half, prime)).all()


def trajectories(state):
    """Every way to empty a bucket, claim 6's trajectory(p) with p itself first."""
    if sum(state) == 0:
        return [[]]
    fewer = [tuple(n - (r == k) for k, n in enumerate(state)) for r in range(len(state)) if state[r]]
    return [[state, *rest] for bucket in fewer for rest in trajectories(bucket)]


def test_end_factors_sum_over_all_trajectories():
    z = np.array([[2, 3], [5, 7]], dtype=np.uint64)
    factors = end_factors(z, 3, PRIME)
    for i, state in enumerate(bucket_states(2, 3)):
        for j, d in enumerate(product(range(2), repeat=3)):
            total = 0
            for path in trajectories(state):
                steps = zip(path, d, strict=True)
                total += int(np.prod([int(z[r, symbol]) ** bucket[r] for bucket, symbol in steps for r in range(2)]))
            assert factors[i, j] == total % PRIME


@given(st.integers(2, 5), st.integers(1, 4), st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_lemma_2_holds_for_different_vectors(count, size, seed):
    vectors = np.random.default_rng(seed).standard_normal((count, size))  # of any sign: the lemma needs none
    own = permuted_products(vectors, range(count))
    assert own == pytest.approx((vectors**2).sum())
    for permutation in list(permutations(range(count)))[1:]:
        moved = permuted_products(vectors, permutation)
        assert moved < own
        # the gap is half the squared distances that the permutation bridges
        assert own - moved == pytest.approx(((vectors - vectors[list(permutation)]) ** 2).sum() / 2)


def test_lemma_2_fails_for_equal_vectors():
    assert permuted_products(np.ones((2, 3)), [1, 0]) == permuted_products(np.ones((2, 3)), [0, 1])


@pytest.mark.parametrize(("colors", "half"), [(2, 5), (3, 4), (4, 3)])
def test_lemma_3_each_sequence_is_won_by_its_own_bucket(colors, half):
    omega = half**2 + 1
    for d in combinations_with_replacement(range(1, colors + 1), half):
        own = tuple(d.count(r) for r in range(1, colors + 1))
        rewards = {bucket: best_reward(d, bucket, omega) for bucket in bucket_states(colors, half)}
        assert max(rewards, key=rewards.__getitem__) == own
        assert list(rewards.values()).count(rewards[own]) == 1
        assert rewards[own] == sum(omega**r * n * (n + 1) // 2 for r, n in enumerate(own, 1))  # the proof's rho*


def test_lemma_3_needs_a_large_omega():
    # With Omega = 1 colors weigh the same, and (1, 1) ties with (1, 2) on d = (1, 2).
    assert best_reward((1, 2), (2, 0), 1) == best_reward((1, 2), (1, 1), 1)
    assert best_reward((1, 2), (2, 0), 5) < best_reward((1, 2), (1, 1), 5)


def test_best_reward_is_the_best_trajectory():
    for d in combinations_with_replacement((1, 2, 3), 3):
        for state in bucket_states(3, 3):
            paths = [zip(d, path, strict=True) for path in trajectories(state)]
            rewards = [sum(4**color * bucket[color - 1] for color, bucket in path) for path in paths]
            assert best_reward(d, state, 4) == max(rewards)


def test_a_bucket_needs_a_color_for_each_ball():
    with pytest.raises(MnemoscopeError, match="bucket of 3 balls"):
        best_reward((1, 2), (2, 1), 5)
