"""Conjecture 1: where it is true, where it is false, and the table that is kept of it."""

import re
from pathlib import Path

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
    exact_rank,
    generic_rank,
    grid_matrix,
    multiset_coefficient,
    power_circuit,
    power_matrix_rank,
    random_circuit,
    random_templates,
    separation_ceiling,
    start_end_matrix,
    table,
    theorem_1_circuit,
)

pytest.importorskip("flint")

PRIME = PRIMES[0]
PAGE = Path(__file__).parents[2] / "docs" / "separation.md"


def test_conjecture_1_as_printed_fails_on_m_values_with_fewer_channels():
    depth, channels, inputs, length = 6, 2, 3, 4
    assert conjectured_rank(depth, channels, inputs, length) == 7
    assert separation_ceiling(depth, channels, inputs, length, values=inputs) == 6  # for every circuit
    assert set(generic_rank(depth, channels, inputs, length, primes=PRIMES, draws=5, free_start=True).ranks) == {6}


def test_the_counterexample_rests_on_the_last_input_being_linear():
    """y is linear in W_I f(x_T): with R = 2 the three columns that differ in x_T alone are dependent."""
    rng = np.random.default_rng(0)
    circuit = random_circuit(6, 2, 3, rng, PRIME)
    matrix = grid_matrix(circuit, 4).reshape(9, 3, 3)  # Start, x_3, x_4
    for column in range(3):
        assert exact_rank(matrix[:, column]) == 2


def test_more_values_mend_it():
    assert generic_rank(6, 2, 3, 4, values=4).rank >= 7


@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 3), st.integers(1, 3), st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_the_proofs_circuit_reaches_the_bound_at_every_depth(depth, channels, inputs, half, seed):
    prime = PRIMES[seed % len(PRIMES)]
    bound = multiset_coefficient(min(channels, inputs), basic_units(depth, 2 * half))
    if bound <= 150:
        assert power_matrix_rank(depth, channels, inputs, 2 * half, prime, seed) == bound
        assert bound >= conjectured_rank(depth, channels, inputs, 2 * half)


@given(st.integers(2, 5), st.integers(1, 3), st.integers(1, 3), st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_the_proofs_circuit_is_a_power_of_an_inner_product(depth, channels, half, seed):
    """y = (sum_r u_r(x))^c <u(x), u(x')>^P, in Python's integers."""
    templates = random_templates(4, channels, np.random.default_rng(seed), PRIME)
    circuit = power_circuit(depth, channels, templates, PRIME)
    length = 2 * half
    u = [[int(f) * pow(int(g), -1, PRIME) % PRIME for f, g in zip(row, templates[0], strict=True)] for row in templates]
    power = basic_units(depth, length)
    rest = multiset_coefficient(length, depth - 1) - power
    for i, j in [(1, 2), (3, 1), (0, 2)]:
        star = [0] * (half - 1)
        y = circuit_outputs(circuit, templates[[i, *star, j, *star]][None])[0]
        inner = sum(a * b for a, b in zip(u[i], u[j], strict=True))
        assert int(y) == pow(sum(u[i]), rest, PRIME) * pow(inner, power, PRIME) % PRIME


def test_the_proof_needs_as_many_values_as_monomials():
    """On N - 1 templates the kernel's rank is N - 1: it is the number of values that counts."""
    templates = random_templates(6, 2, np.random.default_rng(0), PRIME)
    halves = np.zeros((6, 3), dtype=np.int64)
    halves[:, 0] = np.arange(6)
    matrix = start_end_matrix(power_circuit(3, 2, templates, PRIME), halves, halves, templates)
    assert multiset_coefficient(2, basic_units(3, 6)) == 7
    assert exact_rank(matrix) == 6


def test_x_star_must_not_vanish():
    with pytest.raises(MnemoscopeError, match="non-zero in its first 2"):
        power_circuit(3, 2, np.array([[1, 0], [1, 1]], dtype=np.uint64), PRIME)


@given(st.integers(3, 6), st.integers(2, 4), st.integers(2, 3), st.integers(1, 3), st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_conjecture_1_holds_wherever_r_is_at_least_m(depth, channels, inputs, half, seed):
    if channels >= inputs:
        found = generic_rank(depth, channels, inputs, 2 * half, primes=PRIMES[:1], seed=seed)
        assert found.rank >= conjectured_rank(depth, channels, inputs, 2 * half)


def test_the_power_circuit_of_depth_2_agrees_with_the_papers_assignment():
    """Both are B.3.2's construction but for their input weights, so they differ in nothing else."""
    ours = power_circuit(2, 3, random_templates(3, 3, np.random.default_rng(0), PRIME), PRIME)
    paper = theorem_1_circuit(3, 3, 4)
    assert (ours.input_weights[1] == paper.input_weights[1]).all()
    assert ours.output_weights.tolist() == [1, 0, 0]


def test_cells_say_how_they_fare():
    assert str(table.cell(6, 2, 3, 4)) == "**6† < 7**"
    assert str(table.cell(3, 2, 2, 8)) == "16† ≥ 11"
    assert str(table.cell(3, 2, 4, 8)) == "106 ≥ 11"
    assert table.few_values([(3, 2, 2)], lengths=(4, 30)).splitlines()[-1] == "| 3 | 2 | 2 | 4† ≥ 4 |  |"


def test_the_page_holds_what_the_code_finds():
    """Every small entry of the first table of docs/separation.md, recomputed."""
    rows = re.findall(r"^\| (\d) \| (\d) \| (\d) \| (.*) \|$", PAGE.read_text(), flags=re.M)
    first = [row for row in rows if row[3].count("|") == len(table.LENGTHS) - 1]
    assert [tuple(map(int, row[:3])) for row in first] == table.FEW
    for *size, cells in first:
        for length, written in zip(table.LENGTHS, cells.split("|"), strict=True):
            if int(size[2]) ** (length // 2) <= 32:
                assert written.strip() == str(table.cell(*map(int, size), length))
