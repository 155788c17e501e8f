"""Questions 2 to 4: dropout as ridge, momentum as an average, weight normalization; against sampling and torch."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils import parametrizations

from mnemoscope.errors import MnemoscopeError
from mnemoscope.theory.foundations import (
    as_running_average,
    batch_normalized,
    bias_corrected,
    column_norms,
    dropout_minimizer,
    expected_loss,
    momentum_updates,
    norm_after_step,
    normalized_gradient,
    normalized_weight,
    ridge_minimizer,
    running_average,
    running_average_updates,
)

seeds = st.integers(0, 10**6)


def random_tensors(seed, *shapes):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 3), st.integers(1, 3), st.floats(0.05, 1.0), seeds)
def test_expected_loss_over_every_mask(n, d, keep, seed):
    """The exact expectation: all 2^(n d) masks with their probabilities."""
    X, y, w = random_tensors(seed, (n, d), (n,), (d,))
    total = 0.0
    for bits in itertools.product([0.0, 1.0], repeat=n * d):
        R = torch.tensor(bits, dtype=torch.float64).view(n, d)
        kept = int(R.sum())
        total += keep**kept * (1 - keep) ** (n * d - kept) * float(((R * X) @ w - y).square().sum())
    assert float(expected_loss(X, y, w, keep)) == pytest.approx(total, rel=1e-9)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 5), st.floats(0.05, 1.0), seeds)
def test_dropout_minimiser_is_the_minimum(d, keep, seed):
    X, y, move = random_tensors(seed, (d + 3, d), (d + 3,), (d,))
    best = dropout_minimizer(X, y, keep).requires_grad_()
    (slope,) = torch.autograd.grad(expected_loss(X, y, best, keep), best)
    assert torch.allclose(slope, torch.zeros_like(slope), atol=1e-8)
    best = best.detach()
    assert float(expected_loss(X, y, best + 0.1 * move, keep)) > float(expected_loss(X, y, best, keep))


def test_limits_and_ridge():
    X, y = random_tensors(0, (9, 3), (9,))
    assert torch.allclose(dropout_minimizer(X, y, 1.0), torch.linalg.lstsq(X, y[:, None]).solution[:, 0])
    augmented = torch.cat([X, math.sqrt(0.7) * torch.eye(3).double()])
    least_squares = torch.linalg.lstsq(augmented, torch.cat([y, y.new_zeros(3)])[:, None]).solution[:, 0]
    assert torch.allclose(ridge_minimizer(X, y, 0.7), least_squares)
    with pytest.raises(MnemoscopeError, match=r"0 < keep <= 1; got 0\.0"):
        dropout_minimizer(X, y, 0.0)


def test_gamma_weights_columns_not_rows():
    """Orthonormal columns scaled by s: p w of each feature shrinks by the same 1/(1 + (1-p)/p), whatever s is."""
    Q, _ = torch.linalg.qr(random_tensors(1, (8, 3))[0])
    X, y = Q * torch.tensor([1.0, 10.0, 0.1]).double(), random_tensors(2, (8,))[0]
    assert torch.allclose(column_norms(X), torch.tensor([1.0, 10.0, 0.1]).double())
    plain = torch.linalg.lstsq(X, y[:, None]).solution[:, 0]
    assert torch.allclose(0.25 * dropout_minimizer(X, y, 0.25), plain / (1 + 3))
    shrunk = ridge_minimizer(X, y, 3.0) / plain
    assert float(shrunk.max() / shrunk.min()) > 10
    rows = torch.linalg.vector_norm(X, dim=1)  # the text's reading
    as_rows = (y - 0.25 * X @ plain).square().sum() + 0.25 * 0.75 * (rows[:3] * plain).square().sum()
    assert not torch.isclose(as_rows, expected_loss(X, y, plain, 0.25), rtol=0.05)


@settings(max_examples=60, deadline=None)
@given(st.floats(0, 0.99), st.floats(1e-3, 2), seeds, st.integers(1, 20))
def test_momentum_is_a_running_average(alpha, epsilon, seed, steps):
    (g,) = random_tensors(seed, (steps, 3))
    beta, delta = as_running_average(alpha, epsilon)
    ours = momentum_updates(g, alpha, epsilon)
    assert torch.allclose(ours, running_average_updates(g, beta, delta), atol=1e-9)
    assert torch.allclose(-delta * running_average(g, beta), ours, atol=1e-9)


def test_steps_are_those_of_torch():
    (g,) = random_tensors(3, (12, 4))
    theta = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    optimizer, before = torch.optim.SGD([theta], lr=0.2, momentum=0.8), theta.detach().clone()
    for gradient, step in zip(g, momentum_updates(g, 0.8, 0.2), strict=True):
        theta.grad = gradient.clone()
        optimizer.step()
        assert torch.allclose(theta.detach() - before, step)
        before = theta.detach().clone()


def test_average_and_its_correction_are_adams():
    (g,) = random_tensors(4, (9, 4))
    theta = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    adam, parameters = torch.optim.Adam([theta], lr=1e-3, betas=(0.9, 0.0), eps=0.0), [theta.detach().clone()]
    averages = running_average(g, 0.9)
    for gradient, average in zip(g, averages, strict=True):
        theta.grad = gradient.clone()
        adam.step()
        parameters.append(theta.detach().clone())
        assert torch.allclose(adam.state[theta]["exp_avg"], average)
    steps = -1e-3 * bias_corrected(averages, 0.9) / g.abs()  # with beta_2 = 0 Adam divides by |g_t|
    assert torch.allclose(torch.stack(parameters).diff(dim=0), steps)


def test_correction_makes_the_average_unbiased():
    averages = running_average(torch.ones(20, 1).double(), 0.7)
    assert averages[:, 0].tolist() == pytest.approx([1 - 0.7**n for n in range(1, 21)])
    assert torch.allclose(bias_corrected(averages, 0.7), torch.ones(20, 1).double())
    with pytest.raises(MnemoscopeError, match=r"got 1\.0"):
        as_running_average(1.0, 0.1)


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 6), st.floats(0.1, 5), st.floats(0.01, 3), seeds)
def test_gradient_of_a_normalized_weight(d, gamma, alpha, seed):
    u, g = random_tensors(seed, (d,), (d,))
    layer = parametrizations.weight_norm(nn.Linear(d, 1, bias=False, dtype=torch.float64))
    raw = layer.parametrizations.weight
    with torch.no_grad():
        raw.original0.fill_(gamma)
        raw.original1.copy_(u[None])
    assert torch.allclose(layer.weight[0], normalized_weight(u, gamma))
    (exact,) = torch.autograd.grad((layer.weight[0] * g).sum(), raw.original1)
    found = normalized_gradient(u, gamma, g)
    assert torch.allclose(found, exact[0])
    assert abs(float(u @ found)) < 1e-9 * float(u.norm() * found.norm() + 1)
    stepped = float((u - alpha * found).norm())
    assert stepped == pytest.approx(norm_after_step(u, gamma, g, alpha))
    assert stepped >= float(u.norm())
    assert norm_after_step(u, gamma, g, 2 * alpha) >= stepped * (1 - 1e-12)


def test_norm_grows_under_gradient_descent():
    u, target = random_tensors(5, (4,), (4,))
    sizes = [float(u.norm())]
    for _ in range(30):
        u = u - 0.3 * normalized_gradient(u, 1.0, normalized_weight(u, 1.0) - target)
        sizes.append(float(u.norm()))
    assert all(b >= a for a, b in itertools.pairwise(sizes))
    assert sizes[-1] > sizes[0]


def test_batch_normalization_needs_uncorrelated_entries():
    """On whitened samples torch's batch norm of u.x is w.x; with correlations and the same variances it is not."""
    (x, u) = random_tensors(6, (4000, 3), (3,))
    x = x - x.mean(0)
    x = x @ torch.linalg.inv(torch.linalg.cholesky(torch.cov(x.T, correction=0))).T  # covariance exactly I
    norm = nn.BatchNorm1d(1, eps=1e-30, dtype=torch.float64)
    with torch.no_grad():
        norm.weight.fill_(1.4)
        norm.bias.fill_(0.2)
        expected = norm((x @ u)[:, None])[:, 0]
        zero, eye = torch.zeros(3).double(), torch.eye(3).double()
        assert torch.allclose(batch_normalized(x, u, 1.4, 0.2, zero, eye), expected)
        assert torch.allclose(x @ normalized_weight(u, 1.4) + 0.2, expected)
        mixing = torch.tensor([[1.0, 0.0, 0.0], [0.6, 0.8, 0.0], [0.0, 0.0, 1.0]]).double()
        z, covariance = x @ mixing.T, mixing @ mixing.T
        assert torch.allclose(covariance.diagonal(), torch.ones(3).double())
        expected = norm((z @ u)[:, None])[:, 0]
        assert torch.allclose(batch_normalized(z, u, 1.4, 0.2, zero, covariance), expected)
        assert not torch.allclose(z @ normalized_weight(u, 1.4) + 0.2, expected, atol=0.05)
