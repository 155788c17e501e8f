"""Equation 7 and claim 1: the weights tensor of a shallow circuit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mnemoscope.errors import MnemoscopeError
from mnemoscope.theory.separation import (
    PRIMES,
    change_templates,
    circuit_outputs,
    exact_rank,
    grid_matrix,
    grid_tensor,
    random_circuit,
    random_templates,
    start_end,
    tensor_train,
    weights_tensor,
)

pytest.importorskip("flint")

sizes = st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(1, 5))  # R, M, T


@given(sizes, st.booleans(), st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_the_output_is_the_weights_tensor_contracted_with_the_inputs(size, free_start, seed):
    channels, inputs, length = size
    rng = np.random.default_rng(seed)
    circuit = random_circuit(1, channels, inputs, rng, free_start=free_start)
    x = rng.standard_normal((length, inputs))
    value = weights_tensor(circuit, length)
    for f in x:
        value = np.tensordot(f, value, axes=(0, 0))  # eq. 6
    np.testing.assert_allclose(value, circuit_outputs(circuit, x[None])[0], rtol=1e-9, atol=1e-12)


def printed_equation_7(circuit, length):
    """phi^2 = sum_a a^{H,b}_a a^{I,a} x a^{I,a}, phi^t = sum_a a^{H,b}_a phi^{t-1,a} x a^{I,a}, then W_O for W_H."""
    w_i, w_h, w_o = circuit.input_weights[0], circuit.hidden_weights[0], circuit.output_weights
    phi = w_i  # what eq. 7 takes for phi^1
    for _ in range(2, length):
        phi = np.einsum("ba,a...,ad->b...d", w_h, phi, w_i)
    return np.einsum("a,a...,ad->...d", w_o, phi, w_i)


def test_equation_7_as_printed_is_another_tensor():
    for length in (2, 3, 4):
        circuit = random_circuit(1, 3, 2, np.random.default_rng(length))
        network = grid_tensor(lambda x, c=circuit: circuit_outputs(c, x), np.eye(2), length)
        np.testing.assert_allclose(weights_tensor(circuit, length), network, rtol=1e-9, atol=1e-12)
        assert np.abs(printed_equation_7(circuit, length) - network).max() > 0.01 * np.abs(network).max()


def test_equation_7_is_right_once_phi_1_holds_w_h():
    circuit = random_circuit(1, 3, 2, np.random.default_rng(0))
    w_i, w_h, w_o = circuit.input_weights[0], circuit.hidden_weights[0], circuit.output_weights
    phi_1 = w_h @ w_i
    phi_2 = np.einsum("ba,ac,ad->bcd", w_h, phi_1, w_i)
    np.testing.assert_allclose(np.einsum("a,acd,ae->cde", w_o, phi_2, w_i), weights_tensor(circuit, 3))


@given(sizes, st.integers(1, 4), st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_templates_change_the_tensor_as_b_1_says(size, values, seed):
    channels, inputs, length = size
    rng = np.random.default_rng(seed)
    circuit = random_circuit(1, channels, inputs, rng, PRIMES[0])
    templates = random_templates(values, inputs, rng, PRIMES[0])
    changed = change_templates(weights_tensor(circuit, length), templates, PRIMES[0])
    assert (changed == grid_tensor(lambda x: circuit_outputs(circuit, x), templates, length)).all()


@given(st.integers(1, 6), st.integers(1, 3), st.sampled_from([2, 4]), st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_claim_1_grid_and_weights_tensors_have_one_rank(channels, inputs, length, seed):
    rng = np.random.default_rng(seed)
    circuit = random_circuit(1, channels, inputs, rng, PRIMES[0], free_start=True)
    weights = exact_rank(start_end(weights_tensor(circuit, length)))
    assert exact_rank(grid_matrix(circuit, length, random_templates(inputs, inputs, rng, PRIMES[0]))) == weights


def test_claim_1_needs_independent_templates():
    circuit = random_circuit(1, 3, 3, np.random.default_rng(0), PRIMES[0])
    templates = np.array([[1, 2, 3], [2, 4, 6], [0, 0, 1]])  # F of rank 2
    assert exact_rank(start_end(weights_tensor(circuit, 2))) == 3
    assert exact_rank(grid_matrix(circuit, 2, templates)) == 2


def test_cores_have_the_trains_shapes():
    cores = tensor_train(random_circuit(1, 3, 2, np.random.default_rng(0)), 4)
    assert [core.shape for core in cores] == [(1, 2, 3), (3, 2, 3), (3, 2, 3), (3, 2, 1)]


def test_a_deep_circuit_has_no_weights_tensor():
    with pytest.raises(MnemoscopeError, match="got depth 2"):
        weights_tensor(random_circuit(2, 3, 2, np.random.default_rng(0)), 4)
