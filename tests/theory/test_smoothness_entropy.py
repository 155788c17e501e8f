"""Entropy of the state: its change, the bound in the right direction, and the printed one refuted."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mnemoscope.errors import MnemoscopeError
from mnemoscope.theory.smoothness._entropy import entropy_bound, entropy_change, gaussian_entropy, hadamard_bound


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 6), st.floats(0.1, 4), st.integers(0, 10**6))
def test_entropy_of_a_gaussian_under_a_linear_map(n, scale, seed):
    generator = torch.Generator().manual_seed(seed)
    A, B = scale * torch.randn(2, n, n, generator=generator, dtype=torch.float64)
    covariance = B @ B.T + torch.eye(n)
    change = gaussian_entropy(A @ covariance @ A.T) - gaussian_entropy(covariance)
    # The determinant of A S A^T loses digits with the square of A's condition.
    rounding = 1e-7 + 1e-14 * float(torch.linalg.cond(A)) ** 2
    assert change == pytest.approx(float(entropy_change(A)), abs=rounding)
    L_f = float(torch.linalg.matrix_norm(A, ord=2))
    assert change <= float(hadamard_bound(A)) + rounding
    assert float(hadamard_bound(A)) <= entropy_bound(L_f, n) + 1e-9


def test_entropy_of_a_gaussian_by_sampling():
    generator = torch.Generator().manual_seed(0)
    covariance = torch.tensor([[2.0, 0.5], [0.5, 1.0]]).double()
    x = torch.randn(200_000, 2, generator=generator).double() @ torch.linalg.cholesky(covariance).T
    density = torch.distributions.MultivariateNormal(torch.zeros(2).double(), covariance)
    assert gaussian_entropy(covariance) == pytest.approx(float(-density.log_prob(x).mean()), abs=0.01)
    assert gaussian_entropy(covariance) == pytest.approx(float(density.entropy()))


def test_bounds_are_reached_by_a_scaled_rotation():
    A = 1.7 * torch.linalg.qr(torch.randn(5, 5, dtype=torch.float64))[0]
    assert float(entropy_change(A)) == pytest.approx(float(hadamard_bound(A)))
    assert float(entropy_change(A)) == pytest.approx(entropy_bound(1.7, 5))


def test_hadamards_bound_takes_columns():
    """Of [[1, 2], [0, 3]] the columns have lengths 1 and sqrt 13; eq. 8 names them, not the rows."""
    J = torch.tensor([[1.0, 2.0], [0.0, 3.0]], dtype=torch.float64)
    assert float(hadamard_bound(J)) == pytest.approx(math.log(math.sqrt(13)))


def test_equation_9_as_printed_fails():
    """diag(2, 0.1) has L_f = 2: the text asks for a gain of at least 2 log 2, the entropy falls by log 5."""
    change = float(entropy_change(torch.tensor([2.0, 0.1]).double().diag()))
    assert change == pytest.approx(-math.log(5))
    assert change < entropy_bound(2.0, 2)
    assert not change >= entropy_bound(2.0, 2)


def test_entropy_of_a_contraction_has_no_floor():
    """Not towards zero, as the text has it: a point mass has differential entropy -inf."""
    steps = [gaussian_entropy(torch.eye(1).double() * 0.25**t) for t in range(0, 200, 50)]
    assert [b - a for a, b in pairwise(steps)] == pytest.approx([50 * math.log(0.5)] * 3)
    assert steps[-1] < -100
    assert entropy_bound(0.0, 3) == -math.inf


def test_states_that_meet_lose_more():
    """The tent map keeps the uniform density, entropy 0, although E log|det| = log 2."""
    x = torch.rand(100_000, generator=torch.Generator().manual_seed(0)).double()
    tent = 1 - (2 * x - 1).abs()
    counts = torch.histc(tent, 50, 0, 1) / len(x)
    entropy = float(-(counts * (counts * 50).log()).sum())
    assert entropy == pytest.approx(0, abs=1e-3)
    slopes = torch.where(x < 0.5, 2.0, -2.0)[:, None, None]
    assert float(entropy_change(slopes).mean()) == pytest.approx(math.log(2))


def test_batches_and_singular_jacobians():
    J = torch.stack([torch.eye(2), torch.zeros(2, 2)]).double()
    assert entropy_change(J).tolist() == [0.0, -math.inf]
    assert hadamard_bound(J).tolist() == [0.0, -math.inf]
    with pytest.raises(MnemoscopeError, match="not negative; got L_f = -1"):
        entropy_bound(-1.0, 2)


def test_determinants_of_many_large_jacobians_in_two_threads(capfd: pytest.CaptureFixture[str]) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        J = torch.randn(2, 8, 256, 256, dtype=torch.float64)
        found = entropy_change(J)
    finally:
        torch.set_num_threads(threads)
    torch.testing.assert_close(found, torch.linalg.svdvals(J).log().sum(-1))
    assert capfd.readouterr().out == ""
