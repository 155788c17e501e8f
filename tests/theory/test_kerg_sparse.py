"""Sparse attention: chi for any pattern against listed paths, the dependency depth, Theorem 2 and eq. 296."""

import math
from itertools import combinations, pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mnemoscope.errors import MnemoscopeError
from mnemoscope.theory.attention import (
    attention_pattern,
    chain_gain,
    chi,
    dependency_depth,
    depth_bound,
    effective_sparsity,
    gain,
    sparsity,
    uniform_chi,
    uniform_weights,
)


@st.composite
def patterns(draw, most=9):
    """Causal patterns in which every step attends something."""
    T = draw(st.integers(1, most))
    rows = [draw(st.sets(st.integers(0, t), min_size=1)) for t in range(T)]
    pattern = torch.zeros(T, T, dtype=torch.bool)
    for t, row in enumerate(rows):
        pattern[t, sorted(row)] = True
    return pattern, draw(st.integers(0, T - 1))


def factor_E(A, t, i):
    """Eq. 276."""
    return float(A[t + i, t]) / A[t + i].sum().item() + (i == 0)


def factor_F(A, t, i, j):
    """Eq. 277, F_{i,j}."""
    return float(A[t + i, t + j + 1]) / A[t + i].sum().item() + (i - j == 1)


def chi_listed(A, t, k, s):
    """Eqs 279-280."""
    total = 0.0
    for path in combinations(range(k), s):
        steps = (*path, k)
        hops = (factor_F(A, t, after, before) for before, after in pairwise(steps))
        total += factor_E(A, t, steps[0]) * math.prod(hops)
    return total


@given(patterns())
@settings(max_examples=100, deadline=None)
def test_chi_is_the_listed_sum(case):
    pattern, t = case
    found = chi(uniform_weights(pattern), t)
    for k in range(len(pattern) - t):
        expected = [chi_listed(pattern, t, k, s) for s in range(len(found))]
        assert found[k].tolist() == pytest.approx(expected, rel=1e-12, abs=1e-14)


def test_full_attention_is_the_uniform_case():
    full = torch.ones(15, 15).tril().bool()
    for t in (0, 4):
        torch.testing.assert_close(chi(uniform_weights(full), t), uniform_chi(t + 1, 14 - t))


@given(patterns(), st.floats(-1, 1), st.floats(-1, 1))
@settings(max_examples=60, deadline=None)
def test_gain_is_the_polynomial_of_chi(case, real, imaginary):
    pattern, t = case
    eigenvalue = complex(real, imaginary)
    weight = uniform_weights(pattern)
    powers = torch.tensor([eigenvalue**s for s in range(len(pattern) - t)], dtype=torch.complex128)
    expected = chi(weight, t).to(torch.complex128) @ powers
    torch.testing.assert_close(gain(weight, t, eigenvalue), expected, rtol=1e-10, atol=1e-12)


def fewest_hops(A, t):
    """Breadth-first search backwards from each s_{t+k}: s_k reads h_t, s_{k-1}, and s_j for each attended h_{j+1}."""
    found = []
    for k in range(len(A) - t):
        level, hops = {k}, 0
        while not any(i == 0 or A[t + i, t] for i in level):
            level = {j for i in level for j in range(i) if j == i - 1 or A[t + i, t + j + 1]}
            hops += 1
        found.append(hops)
    return found


@given(patterns(most=12))
@settings(max_examples=200, deadline=None)
def test_depth_is_the_shortest_path_and_the_lowest_degree(case):
    pattern, t = case
    depth = dependency_depth(pattern, t)
    assert depth.tolist() == fewest_hops(pattern, t)
    coefficients = chi(uniform_weights(pattern), t)
    for k, d in enumerate(depth.tolist()):  # eq. 298: p = lambda^d q
        assert not coefficients[k, :d].any()
        assert coefficients[k, d] > 0


@given(patterns(most=12), st.floats(0.01, 1.5))
@settings(max_examples=300, deadline=None)
def test_theorem_2_with_its_constant(case, eigenvalue):
    pattern, t = case
    kappa = sparsity(pattern)
    p, coefficients = gain(uniform_weights(pattern), t, eigenvalue), chi(uniform_weights(pattern), t)
    assert not p.imag.any()
    for k, d in enumerate(dependency_depth(pattern, t).tolist()):
        assert p[k].real.item() >= depth_bound(eigenvalue, kappa, d) * (1 - 1e-12)
        assert coefficients[k, d].item() >= kappa ** -(d + 1.0) * (1 - 1e-12)  # eq. 291


def test_theorem_2_is_attained():
    """A single path of skip connections and a small lambda: p is lambda^d/kappa^(d+1), no power of kappa less."""
    T, kappa = 30, 2
    pattern = torch.zeros(T, T, dtype=torch.bool)
    pattern[:, 0] = True
    pattern[1:, 1] = True  # two old states that h_2 does not influence
    pattern[0, :2] = torch.tensor([True, False])
    for step, attended in ((10, 2), (20, 11), (29, 21)):  # s_10 reads h_2, s_20 reads h_11, s_29 reads h_21
        pattern[step, 1] = False
        pattern[step, attended] = True
    assert dependency_depth(pattern, 2)[-1] == 2
    eigenvalue = 1e-4
    p = gain(uniform_weights(pattern), 2, eigenvalue)[-1].real.item()
    assert p == pytest.approx(depth_bound(eigenvalue, kappa, 2), rel=1e-3)


def test_norm_of_a_linear_sparse_net_keeps_above_the_bound():
    """Theorem 2 as it is stated, for normal V with one positive real eigenvalue."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        angle = torch.rand(1, generator=generator, dtype=torch.float64).item() * math.pi
        Q = torch.linalg.qr(torch.randn(3, 3, generator=generator, dtype=torch.float64)).Q
        block = torch.zeros(3, 3, dtype=torch.float64)
        block[:2, :2] = 0.9 * torch.tensor([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
        block[2, 2] = 0.6
        V = Q @ block @ Q.T
        pattern = torch.rand(12, 12, generator=generator).tril() > 0.6
        pattern[:, 0] = True
        coefficients = chi(uniform_weights(pattern), 1)
        depth, kappa = dependency_depth(pattern, 1), sparsity(pattern)
        for k in range(11):
            derivative = sum(c * torch.linalg.matrix_power(V, s) for s, c in enumerate(coefficients[k]))
            assert derivative.norm().item() >= depth_bound(0.6, kappa, int(depth[k]))


def chain(d, c):
    """kappa = 1: h_1 is handed on d times, c + 1 steps apart, then attended by all of the last steps."""
    attended = {}
    end = 1
    for _ in range(d):
        relay = end + c + 1
        attended[relay] = end
        end = relay + 1
    T = end + c + 1
    pattern = torch.zeros(T, T, dtype=torch.bool)
    for step in range(T):
        pattern[step, end if step > end else attended.get(step, 0)] = True
    return pattern


@pytest.mark.parametrize("depth", [0, 1, 2, 3])
@pytest.mark.parametrize("eigenvalue", [0.5, -0.5, 0.3 + 0.4j])
def test_eq_296(eigenvalue, depth):
    c = 50
    pattern = chain(depth, c)
    assert sparsity(pattern) == 1
    assert set(dependency_depth(pattern, 1)[-c:].tolist()) == {depth}
    p = gain(uniform_weights(pattern), 1, eigenvalue)[-1].item()
    assert p == pytest.approx(chain_gain(eigenvalue, depth, c), rel=1e-9)


def test_eq_296_is_a_finite_geometric_sum():
    assert chain_gain(0.5, 1, 3) == pytest.approx(0.5 + 0.25 + 0.125)
    assert chain_gain(-0.5, 0, 1) == pytest.approx(0.5)


def test_effective_sparsity_counts_equal_shares():
    pattern = torch.tensor([[1, 0, 0], [1, 1, 0], [1, 1, 1]]).bool()
    assert effective_sparsity(uniform_weights(pattern)).tolist() == pytest.approx([1, 2, 3])
    assert effective_sparsity(torch.tensor([[1.0, 0], [0.9, 0.1]]))[1].item() == pytest.approx(1 / 0.82)


def test_pattern_of_an_attention_map():
    weight = torch.tensor([[1.0, 0], [0.95, 0.05]])
    assert attention_pattern(weight).tolist() == [[True, False], [True, True]]
    assert attention_pattern(weight, threshold=0.1).tolist() == [[True, False], [True, False]]


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda: depth_bound(-0.5, 2, 1), "positive real eigenvalue; got -0.5"),
        (lambda: depth_bound(0.5j, 2, 1), "positive real eigenvalue"),
        (lambda: depth_bound(0.5, 0, 1), "kappa=0"),
        (lambda: chain_gain(1.0, 0, 4), "|lambda| < 1"),
        (lambda: chain_gain(0.5, 5, 4), "d=5, c=4"),
        (lambda: chi(torch.ones(3, 3), 0), "causal"),
        (lambda: dependency_depth(torch.ones(2, 3).bool(), 0), r"\(T, T\).*got \[2, 3\]"),
    ],
)
def test_hypotheses_are_checked(ask, said):
    with pytest.raises(MnemoscopeError, match=said):
        ask()
