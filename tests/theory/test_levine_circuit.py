"""Circuits modulo a prime and over the reals, against Python's integers and against the torch layer."""

import itertools
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import mnemoscope
from mnemoscope.errors import MnemoscopeError
from mnemoscope.theory.separation import (
    PRIMES,
    Circuit,
    all_sequences,
    circuit_outputs,
    distinct_sequences,
    exact_rank,
    grid_matrix,
    grid_tensor,
    matricize,
    random_circuit,
    random_templates,
    start_end,
    start_end_matrix,
)
from mnemoscope.theory.separation._modular import apply, inverse, residues, times

sizes = st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(1, 4))  # L, R, M


def by_hand(circuit, x):
    """Equations 3 and 4 in Python's integers."""
    p = circuit.prime
    carry = [[int(v) for v in row] for row in circuit.initial]
    for f in x:
        below = [int(v) for v in f]
        for l in range(circuit.depth):
            drive = [sum(int(w) * v for w, v in zip(row, below, strict=True)) for row in circuit.input_weights[l]]
            below = [a * b % p for a, b in zip(carry[l], drive, strict=True)]
            carry[l] = [sum(int(w) * v for w, v in zip(row, below, strict=True)) for row in circuit.hidden_weights[l]]
    return sum(int(w) * v for w, v in zip(circuit.output_weights, below, strict=True)) % p


@given(sizes, st.integers(1, 5), st.sampled_from(PRIMES), st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_outputs_are_the_recurrence_in_exact_integers(size, length, prime, seed):
    rng = np.random.default_rng(seed)
    circuit = random_circuit(*size, rng, prime, free_start=True)
    x = rng.integers(0, prime, size=(3, length, size[2]), dtype=np.uint64)
    assert circuit_outputs(circuit, x).tolist() == [by_hand(circuit, sequence) for sequence in x]


@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_products_of_the_largest_residues_do_not_overflow(rows, columns, seed):
    prime = PRIMES[0]
    rng = np.random.default_rng(seed)
    weights, x = (rng.integers(prime - 9, prime, size=(rows, columns), dtype=np.uint64) for _ in range(2))
    exact = x.astype(object) @ weights.astype(object).T % prime
    assert apply(weights, x, prime).tolist() == exact.tolist()
    assert times(weights, x, prime).tolist() == (weights.astype(object) * x.astype(object) % prime).tolist()


def test_residues_take_negative_and_huge_integers():
    assert residues(np.array([-1, 5]), 7).tolist() == [6, 5]
    assert residues(np.array([10**30], dtype=object), PRIMES[0]).tolist() == [10**30 % PRIMES[0]]
    with pytest.raises(MnemoscopeError, match="needs integers"):
        residues(np.array([0.5]), 7)
    with pytest.raises(MnemoscopeError, match="2\\^31"):
        residues(np.array([1]), 2**31)


def test_inverse_modulo_a_prime():
    pytest.importorskip("flint")
    matrix = random_templates(4, 4, np.random.default_rng(0), PRIMES[1])
    assert (apply(matrix, inverse(matrix, PRIMES[1]).T, PRIMES[1]) == np.eye(4)).all()
    with pytest.raises(MnemoscopeError, match="singular"):
        inverse(np.ones((2, 2), dtype=np.uint64), PRIMES[1])


@given(sizes, st.sampled_from([2, 4]), st.integers(1, 4), st.sampled_from([None, PRIMES[0]]), st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_the_grid_matrix_is_the_matricised_grid_tensor(size, length, values, prime, seed):
    rng = np.random.default_rng(seed)
    circuit = random_circuit(*size, rng, prime, free_start=True)
    templates = random_templates(values, size[2], rng, prime)
    tensor = grid_tensor(lambda x: circuit_outputs(circuit, x), templates, length)
    np.testing.assert_allclose(grid_matrix(circuit, length, templates), start_end(tensor), rtol=1e-9, atol=1e-12)


def test_pairs_of_sampled_sequences_beyond_one_block():
    rng = np.random.default_rng(3)
    circuit = random_circuit(2, 3, 2, rng, PRIMES[0])
    templates = random_templates(5, 2, rng, PRIMES[0])
    starts, ends = (distinct_sequences(5, 4, 300, rng) for _ in range(2))  # 90,000 pairs, in no order
    matrix = start_end_matrix(circuit, starts, ends, templates)
    for i, j in [(0, 0), (17, 250), (299, 299), (218, 3), (219, 3)]:
        x = templates[np.concatenate([starts[i], ends[j]])]
        assert matrix[i, j] == circuit_outputs(circuit, x[None])[0]


def test_sampled_sequences_are_distinct_and_all_there_where_few():
    rng = np.random.default_rng(0)
    sample = distinct_sequences(7, 20, 500, rng)
    assert len(np.unique(sample, axis=0)) == 500
    assert sample.min() == 0
    assert sample.max() == 6
    assert distinct_sequences(3, 2, 9, rng).tolist() == [list(pair) for pair in itertools.product(range(3), repeat=2)]
    long = distinct_sequences(10, 200, 50, rng)  # 10^200 sequences have no numbers of 63 bits
    assert long.shape == (50, 200)
    assert len(np.unique(long, axis=0)) == 50


@given(st.integers(1, 4), st.integers(1, 3))
@settings(max_examples=12, deadline=None)
def test_matricisation_places_entries_as_appendix_c_says(order, values):
    tensor = np.arange(values**order).reshape((values,) * order)
    for size in range(order + 1):
        for rows in itertools.combinations(range(order), size):
            columns = [mode for mode in range(order) if mode not in rows]
            matrix = matricize(tensor, rows)
            for d in itertools.product(range(values), repeat=order):
                row = sum(d[i] * values ** (len(rows) - t - 1) for t, i in enumerate(rows))
                column = sum(d[j] * values ** (len(columns) - t - 1) for t, j in enumerate(columns))
                assert matrix[row, column] == tensor[d]


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_the_torch_layer_computes_the_same_outputs(depth):
    torch.manual_seed(depth)
    layer = mnemoscope.RAC(3, 4, num_layers=depth, dtype=torch.float64)
    rng = np.random.default_rng(depth)
    names = [f"_l{l}" for l in range(depth)]
    circuit = Circuit(
        input_weights=tuple(getattr(layer, "weight_ih" + name).detach().numpy() for name in names),
        hidden_weights=tuple(getattr(layer, "weight_hh" + name).detach().numpy() for name in names),
        output_weights=rng.standard_normal(4),
        initial=np.ones((depth, 4)),  # the layer begins with h_0 = W_H^+ 1
    )
    x = rng.standard_normal((6, 5, 3))
    states, _ = layer(torch.from_numpy(x).transpose(0, 1))
    expected = states[-1].detach().numpy() @ circuit.output_weights
    np.testing.assert_allclose(circuit_outputs(circuit, x), expected, rtol=1e-9)


def test_all_sequences_run_the_last_index_fastest():
    assert all_sequences(2, 2).tolist() == [[0, 0], [0, 1], [1, 0], [1, 1]]


@pytest.mark.parametrize("call", [lambda c: grid_matrix(c, 3), lambda c: grid_matrix(c, 0)])
def test_odd_lengths_are_refused(call):
    with pytest.raises(MnemoscopeError, match="even number"):
        call(random_circuit(1, 2, 2, np.random.default_rng(0)))


def test_shapes_are_checked():
    good = random_circuit(2, 3, 2, np.random.default_rng(0))
    with pytest.raises(MnemoscopeError, match="2 layers of 3 channels"):
        Circuit(good.input_weights, good.hidden_weights[:1], good.output_weights, good.initial)
    with pytest.raises(MnemoscopeError, match="W_O must be"):
        Circuit(good.input_weights, good.hidden_weights, good.output_weights[:2], good.initial)


def test_without_flint_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "flint", None)
    with pytest.raises(MnemoscopeError, match=r"pip install mnemoscope\[theory\]"):
        exact_rank(np.eye(2, dtype=np.int64))
