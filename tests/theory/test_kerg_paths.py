"""Lemmas 1-4 and Proposition 1 against every path listed one by one."""

from itertools import combinations, pairwise
from math import comb

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mnemoscope.theory.attention import by_hops, total_derivatives, transfers


def factors(k, n, m, seed):
    generator = torch.Generator().manual_seed(seed)
    E = torch.randn(k + 1, n, m, generator=generator, dtype=torch.float64)
    F = torch.randn(k + 1, k + 1, n, n, generator=generator, dtype=torch.float64)
    return E, F


def listed(E, F, k, s):
    """Eq. 42, literally: the sum over 0 <= i_1 < ... < i_s < k."""
    total = torch.zeros_like(E[0])
    for path in combinations(range(k), s):
        steps = (*path, k)
        term = E[steps[0]]
        for before, after in pairwise(steps):
            term = F[after, before] @ term
        total = total + term
    return total


sizes = st.tuples(st.integers(0, 7), st.integers(1, 4), st.integers(1, 3), st.integers(0, 10_000))


@given(sizes)
@settings(max_examples=60, deadline=None)
def test_by_hops_lists_every_path(size):
    k, n, m, seed = size
    E, F = factors(k, n, m, seed)
    terms = by_hops(E, F)
    for i in range(k + 1):
        for s in range(k + 1):
            torch.testing.assert_close(terms[i, s], listed(E, F, i, s), rtol=1e-10, atol=1e-10)


@given(sizes)
@settings(max_examples=60, deadline=None)
def test_total_derivatives_are_the_sum_over_all_paths(size):
    k, n, m, seed = size
    E, F = factors(k, n, m, seed)
    C = total_derivatives(E, F)
    torch.testing.assert_close(C[k], sum(listed(E, F, k, s) for s in range(k + 1)), rtol=1e-9, atol=1e-9)


@given(sizes, st.integers(0, 7))
@settings(max_examples=60, deadline=None)
def test_transfers_solve_the_recursion_from_any_start(size, start):
    k, n, m, seed = size
    _, F = factors(k, n, m, seed)
    r = min(start, k)
    unit = torch.zeros(k + 1, n, n, dtype=torch.float64)
    unit[r] = torch.eye(n)
    paths = sum(listed(unit, F, k, s) for s in range(k + 1))  # every other E is zero: paths from r alone
    torch.testing.assert_close(transfers(F, r)[-1], paths, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(transfers(F, k)[0], torch.eye(n, dtype=torch.float64))


def test_fifty_steps_have_binomially_many_paths():
    """With E = F = 1 there are C(k, s) paths of s hops: 2^50 of them, far beyond listing."""
    one = torch.ones(51, 1, 1, dtype=torch.float64)
    terms = by_hops(one, one.expand(51, 51, 1, 1))
    assert terms[50, :, 0, 0].tolist() == [comb(50, s) for s in range(51)]
    assert total_derivatives(one, one.expand(51, 51, 1, 1))[50].item() == 2**50


def test_factors_above_the_diagonal_are_not_read():
    E, F = factors(5, 2, 2, seed=0)
    soiled = F.clone()
    soiled[torch.triu(torch.ones(6, 6)).bool()] = torch.nan
    for solve in (total_derivatives, by_hops):
        assert torch.equal(solve(E, soiled), solve(E, F))


def test_eq_23_as_printed_is_not_the_solution():
    """F_{i_4,i_3} F_{i_2,i_1}, the printed product for s = 3, skips F_{i_3,i_2}."""
    E, F = factors(3, 3, 3, seed=1)
    E[1:] = 0  # only the path 0 -> 1 -> 2 -> 3 has three hops
    printed = F[3, 2] @ F[1, 0] @ E[0]
    correct = F[3, 2] @ F[2, 1] @ F[1, 0] @ E[0]
    torch.testing.assert_close(by_hops(E, F)[3, 3], correct)
    assert (printed - correct).norm() > 0.1 * correct.norm()


@pytest.mark.parametrize("k", [0, 1])
def test_the_shortest_cases(k):
    E, F = factors(k, 2, 2, seed=2)
    expected = E[0] if k == 0 else E[1] + F[1, 0] @ E[0]
    torch.testing.assert_close(total_derivatives(E, F)[k], expected)
