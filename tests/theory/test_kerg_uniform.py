"""Uniform attention: exact fractions for omega, theta and chi; Proposition 4 and Theorem 1 up to T = 10^5."""

import cmath
import math
from fractions import Fraction
from itertools import combinations, pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mnemoscope.errors import MnemoscopeError
from mnemoscope.theory.attention import (
    chi_bounds,
    chi_by_theta,
    deltas,
    elementary_sums,
    growth_constant,
    growth_exponent,
    keeps_inverse_rate,
    lemma_9,
    newton_sums,
    paper_exponent,
    power_sums,
    proposition_3,
    psis,
    reciprocals,
    theta_bounds,
    theta_recursion,
    uniform_chi,
    uniform_gain,
    uniform_norm,
    uniform_theta,
)

# Eqs 122-128 and 126, path by path, in exact fractions.


def omega_listed(t, l, k, s):
    return sum(
        math.prod((Fraction(1, t + i) for i in path), start=Fraction(1)) for path in combinations(range(l, k), s)
    )


def weight_listed(t, path):
    first = Fraction(1, t + path[0]) + (path[0] == 0)
    return first * math.prod(Fraction(1, t + b) + (b - a == 1) for a, b in pairwise(path))


def theta_listed(t, k, s):
    return sum(weight_listed(t, path) for path in combinations(range(k), s)) if s else 1


def chi_listed(t, k, s):
    return sum(weight_listed(t, (*path, k)) for path in combinations(range(k), s))


small = st.tuples(st.integers(1, 12), st.integers(1, 9))


@given(small)
@settings(max_examples=60, deadline=None)
def test_chi_and_theta_are_the_listed_sums(size):
    t, k = size
    chi, theta, again = uniform_chi(t, k), uniform_theta(t, k), theta_recursion(t, k, k)
    assert chi.shape == theta.shape == again.shape == (k + 1, k + 1)
    for j in range(k + 1):
        for s in range(k + 1):
            assert chi[j, s].item() == pytest.approx(float(chi_listed(t, j, s)), rel=1e-13, abs=1e-15)
            assert theta[j, s].item() == pytest.approx(float(theta_listed(t, j, s)), rel=1e-13, abs=1e-15)
            assert again[j, s].item() == pytest.approx(float(theta_listed(t, j, s)), rel=1e-13, abs=1e-15)
            if j >= max(s, 1):
                assert chi_by_theta(t, j, s) == pytest.approx(float(chi_listed(t, j, s)), rel=1e-13)


@given(small, st.integers(0, 3))
@settings(max_examples=30, deadline=None)
def test_most_cuts_the_table_and_changes_nothing(size, most):
    t, k = size
    most = min(most, k)
    torch.testing.assert_close(uniform_chi(t, k, most), uniform_chi(t, k)[:, : most + 1])
    torch.testing.assert_close(uniform_theta(t, k, most), uniform_theta(t, k)[:, : most + 1])


@given(small)
@settings(max_examples=40, deadline=None)
def test_eq_220_makes_chi_of_theta(size):
    t, k = size
    chi, theta = uniform_chi(t, k), uniform_theta(t, k)
    for s in range(k + 1):
        expected = (k == s) + sum(theta[k - i, s - i].item() / (t + k - i) for i in range(s + 1))
        assert chi[k, s].item() == pytest.approx(expected, rel=1e-12)


# Lemma 9, Proposition 3, Remark 11.


@given(small)
@settings(max_examples=60, deadline=None)
def test_omega_by_every_road(size):
    t, k = size
    terms = reciprocals(t, 0, k)
    truth = [float(omega_listed(t, 0, k, s)) for s in range(7)]
    S = power_sums(terms, 6)
    for road in (elementary_sums(terms, 6), newton_sums(S), lemma_9(S), proposition_3(S)):
        assert road.tolist() == pytest.approx(truth, rel=1e-9, abs=1e-12)


def test_omega_of_nothing():
    assert elementary_sums(reciprocals(3, 5, 5), 2).tolist() == [1, 0, 0]
    assert elementary_sums(reciprocals(3, 5, 2), 2).tolist() == [1, 0, 0]


def power_sums_listed(t, k):
    return [sum(Fraction(1, (t + i) ** l) for i in range(k)) for l in range(1, 6)]


@given(small)
@settings(max_examples=30, deadline=None)
def test_deltas_and_psis_in_closed_form(size):
    t, k = size
    _, S2, S3, S4, S5 = power_sums_listed(t, k)
    delta = deltas(power_sums(reciprocals(t, 0, k), 5))
    expected = [0, 0, -S2 / 2, S3 / 3, -(2 * S4 + S2**2) / 8, S5 / 5 + S2 * S3 / 6]
    assert delta.tolist() == pytest.approx([float(d) for d in expected], rel=1e-12, abs=1e-15)
    psi_5 = S5 / 5 - S2 * S3 / 6  # of exp(-S_2 z^2/2 + S_3 z^3/3 - S_4 z^4/4 + S_5 z^5/5)
    assert psis(delta)[5].item() == pytest.approx(float(psi_5), rel=1e-12, abs=1e-15)


def test_omega_4_needs_the_corrected_constant():
    """At t = 1, k = 4 omega(4) = 1/24 exactly; eqs 148 and 149 print two other constants."""
    S1, S2, S3, S4, _ = power_sums_listed(1, 4)
    omega_1, omega_2 = S1, (S1**2 - S2) / 2
    rest = S1**4 / 24 - S2 * omega_2 / 2 + S3 * omega_1 / 3
    assert rest - (2 * S4 + S2**2) / 8 == Fraction(1, 24)
    assert rest - 3 * (S4 + S2**2) / 24 != Fraction(1, 24)  # eq. 148
    assert rest - (S4 + 2 * S2**2) / 8 != Fraction(1, 24)  # eq. 149


def test_proposition_3_needs_ordered_tuples():
    """Eq. 165's j_1 >= ... >= j_k counts delta_3 delta_2 once in psi_5; omega(5) asks for twice."""
    t, k = 1, 6
    S1, S2, S3, S4, S5 = power_sums_listed(t, k)
    d2, d3, d4, d5 = -S2 / 2, S3 / 3, -(2 * S4 + S2**2) / 8, S5 / 5 + S2 * S3 / 6
    polynomial = S1**5 / 120 + d2 * S1**3 / 6 + d3 * S1**2 / 2 + (d4 + d2**2) * S1
    assert polynomial + d5 + 2 * d2 * d3 == omega_listed(t, 0, k, 5)
    assert polynomial + d5 + d2 * d3 != omega_listed(t, 0, k, 5)


# Lemmas 10-12.


def test_lemmas_10_and_11_on_every_small_instance():
    for t in range(1, 9):
        for k in range(1, 13):
            chi, theta = uniform_chi(t, k)[k].tolist(), uniform_theta(t, k)[k].tolist()
            for s in range(k + 1):
                lower, upper = chi_bounds(t, k, s)
                assert lower * (1 - 1e-12) <= chi[s] <= upper * (1 + 1e-12)
                if s:
                    lower, upper = theta_bounds(t, k, s)
                    assert lower * (1 - 1e-12) <= theta[s] <= upper * (1 + 1e-12)


@given(st.integers(1, 30), st.integers(1, 3000), st.integers(0, 6))
@settings(max_examples=200, deadline=None)
def test_lemmas_10_and_11_on_long_sequences(t, k, s):
    s = min(s, k)
    lower, upper = chi_bounds(t, k, s)
    assert lower * (1 - 1e-10) <= uniform_chi(t, k, s)[k, s].item() <= upper * (1 + 1e-10)
    if s:
        lower, upper = theta_bounds(t, k, s)
        assert lower * (1 - 1e-10) <= uniform_theta(t, k, s)[k, s].item() <= upper * (1 + 1e-10)


@given(st.integers(1, 8), st.integers(1, 9), st.integers(1, 9))
@settings(max_examples=60, deadline=None)
def test_bounds_are_those_of_the_lemmas(t, k, s):
    """Eqs 195 and 221, literally, in fractions."""
    s = min(s, k)
    low = sum(math.comb(s, r) * omega_listed(t, s - r, k, r) for r in range(s + 1))
    high = sum(math.comb(s, r) * omega_listed(t, 0, k - s + r, r) for r in range(s + 1))
    assert theta_bounds(t, k, s) == pytest.approx((float(low), float(high)), rel=1e-12)
    low = (k == s) + sum(math.comb(s + 1, r + 1) * omega_listed(t, s - r, k, r) for r in range(s + 1)) / (t + k)
    high = (k == s) + sum(math.comb(s + 1, r + 1) * omega_listed(t, 0, k - s + r, r) for r in range(s + 1)) / (
        t + k - s
    )
    assert chi_bounds(t, k, s) == pytest.approx((float(low), float(high)), rel=1e-12)


def test_remark_15_does_not_let_the_bounds_meet():
    """Eq. 216's difference at s = 2 is 2 (1/t - 1/(t+k-1)): it tends to 2/t, not to zero."""
    for t, k in ((1, 100_000), (4, 1000)):
        lower, upper = theta_bounds(t, k, 2)
        assert upper - lower == pytest.approx(2 * (1 / t - 1 / (t + k - 1)), rel=1e-8)


def test_lemma_12_leaves_more_than_one_over_T():
    """T (chi - sum) is bounded for s = 2 only; for s = 3 it gains 3/t for every e-fold of T."""

    def left(t, T, s):
        return T * (uniform_chi(t, T - t, s)[-1, s].item() - chi_bounds(t, T - t, s)[0])

    assert left(2, 10_000, 0) == 0
    assert left(2, 10_000, 1) == pytest.approx(1e-4, rel=1e-2)
    assert left(2, 100_000, 2) == pytest.approx(2 / 2, rel=1e-3)
    gained = (left(2, 100_000, 3) - left(2, 10_000, 3)) / math.log(10)
    assert gained == pytest.approx(3 / 2, rel=1e-2)


# Proposition 4, Theorem 1.

discs = st.builds(cmath.rect, st.floats(0, 0.8), st.floats(-math.pi, math.pi))


@given(discs, small)
@settings(max_examples=80, deadline=None)
def test_gain_is_the_polynomial_of_chi(eigenvalue, size):
    t, k = size
    powers = [eigenvalue**s for s in range(k + 1)]
    expected = [sum(c * z for c, z in zip(row, powers, strict=True)) for row in uniform_chi(t, k).tolist()]
    assert uniform_gain(eigenvalue, t, k).tolist() == pytest.approx(expected, rel=1e-11, abs=1e-13)


def test_gain_at_one_half_is_two():
    """For t = 1 the generating function at lambda = 1/2 is (1 - z)^-2: p is always 2."""
    torch.testing.assert_close(uniform_gain(0.5, 1, 100_000), torch.full((100_001,), 2, dtype=torch.complex128))


@given(discs)
@settings(max_examples=40, deadline=None)
def test_gain_has_its_generating_function(eigenvalue):
    """For t = 1, 1 + lambda sum p = [z^T] (1 - z)^-a (1 - lambda z)^(a-2), a = 1/(1 - lambda)."""
    a, k = 1 / (1 - eigenvalue), 30
    left, right = [1 + 0j], [1 + 0j]
    for n in range(k + 1):
        left.append(left[-1] * (a + n) / (n + 1))
        right.append(right[-1] * (n + 2 - a) / (n + 1) * eigenvalue)
    total = 0j
    for T, p in enumerate(uniform_gain(eigenvalue, 1, k).tolist(), start=1):
        total += p
        expected = sum(left[i] * right[T - i] for i in range(T + 1))
        assert 1 + eigenvalue * total == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("t", [1, 3, 20])
@pytest.mark.parametrize("eigenvalue", [-0.8, -0.5, 0.0, 0.3, 0.5, 0.7, 0.6 + 0.6j, 0.1 - 0.8j])
def test_proposition_4_to_a_hundred_thousand_steps(eigenvalue, t):
    """Modulus and phase of p against c T^exponent; the paper's exponent is off by far more."""
    T = 100_000
    p = uniform_gain(eigenvalue, t, T - t)
    predicted = growth_constant(eigenvalue, t) * T ** growth_exponent(eigenvalue)
    assert abs(p[-1].item() / predicted - 1) < 1e-3
    measured = cmath.log(p[T - t].item() / p[T // 2 - t].item()) / math.log(2)
    assert abs(measured - growth_exponent(eigenvalue)) < 1e-3
    if eigenvalue:
        assert abs(measured - paper_exponent(eigenvalue)) > 0.1


def test_the_measured_exponents():
    found = {z: growth_exponent(z).real for z in (-0.5, 0.0, 0.3, 0.5, 0.7, 0.6 + 0.6j)}
    expected = {-0.5: -4 / 3, 0.0: -1, 0.3: -4 / 7, 0.5: 0, 0.7: 4 / 3, 0.6 + 0.6j: -16 / 13}
    assert found == pytest.approx(expected, abs=1e-14)


@given(discs)
@settings(max_examples=100, deadline=None)
def test_the_condition_of_theorem_1_is_that_of_the_exponent(eigenvalue):
    margin = growth_exponent(eigenvalue).real + 1
    if abs(margin) > 1e-9:
        assert keeps_inverse_rate(eigenvalue) == (margin > 0)


def test_theorem_1_fails_without_its_condition():
    """V = -I/2 has eigenvalues of modulus below 1, yet T ||ds_T/dh_1|| falls without end, like T^(-1/3)."""
    norms = uniform_norm([-0.5, -0.5], 1, 99_999)
    scaled = [T * norms[T - 1].item() for T in (100, 1000, 10_000, 100_000)]
    for early, late in pairwise(scaled):
        assert late / early == pytest.approx(10 ** (-1 / 3), rel=1e-2)
    assert not keeps_inverse_rate(-0.5)


@pytest.mark.parametrize("eigenvalues", [[0.0, -0.9], [0.25, -0.5], [0.5 + 0.5j, 0.5 - 0.5j]])
def test_theorem_1_holds_with_its_condition(eigenvalues):
    assert any(keeps_inverse_rate(z) for z in eigenvalues)
    norms = uniform_norm(eigenvalues, 1, 99_999)
    steps = torch.arange(1, 100_001)
    assert (steps * norms)[100:].min() > 0.5


@given(st.integers(0, 10_000), st.integers(1, 5), st.integers(0, 15))
@settings(max_examples=200, deadline=None)
def test_norms_of_normal_and_other_matrices(seed, t, k):
    generator = torch.Generator().manual_seed(seed)
    V = torch.randn(4, 4, generator=generator, dtype=torch.float64) / 4
    Q = torch.linalg.qr(V).Q * 0.7
    coefficients = uniform_chi(t, k)[k]

    def measured(M):
        return sum(c * torch.linalg.matrix_power(M, s) for s, c in enumerate(coefficients)).norm().item()

    assert uniform_norm(torch.linalg.eigvals(Q).tolist(), t, k)[k].item() == pytest.approx(measured(Q), rel=1e-9)
    assert uniform_norm(torch.linalg.eigvals(V).tolist(), t, k)[k].item() <= measured(V) * (1 + 1e-9)  # Remark 17


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda: uniform_chi(0, 3), "got t=0, k=3"),
        (lambda: uniform_gain(0.5, 1, -1), "got t=1, k=-1"),
        (lambda: theta_bounds(1, 4, 0), "1 <= s <= k"),
        (lambda: chi_bounds(1, 4, 5), "got s=5, k=4"),
        (lambda: growth_exponent(1.0), "modulus smaller than 1; got 1.0"),
        (lambda: growth_constant(-1.2, 1), "modulus smaller than 1"),
        (lambda: keeps_inverse_rate(1j), "modulus smaller than 1"),
    ],
)
def test_hypotheses_are_checked(ask, said):
    with pytest.raises(MnemoscopeError, match=said):
        ask()
