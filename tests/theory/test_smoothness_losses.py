"""Lemmas 1 and 2: the constants of sums, products and of both losses hold, and are reached."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from mnemoscope.theory.smoothness._losses import (
    cross_entropy,
    cross_entropy_value,
    product_lipschitz,
    squared_error,
    squared_loss_value,
    sum_lipschitz,
)

seeds = st.integers(0, 10**6)


def loss_of(kind, size):
    if kind == "squared":
        return squared_error(), squared_loss_value
    return cross_entropy(size), cross_entropy_value


def draw_pair(seed, size, scale):
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(2, size, generator=generator, dtype=torch.float64), generator


@settings(max_examples=200, deadline=None)
@given(seeds, st.integers(1, 5), st.floats(0.01, 20), st.sampled_from(["squared", "entropy"]))
def test_slopes_stay_below_property_1(seed, size, scale, kind):
    (p, q), generator = draw_pair(seed, size, scale)
    loss, value = loss_of(kind, size)
    y = torch.rand(size, generator=generator, dtype=torch.float64).round()
    allowed = loss.steepness(float(y.norm()), torch.maximum(p.norm(), q.norm()))
    assert float((value(p, y) - value(q, y)).abs()) <= float(allowed * (p - q).norm()) * (1 + 1e-9)


def test_property_1_is_reached():
    """Opposite to its target the squared error has slope 2 ||y|| + 2 ||p||; logits that are sure and wrong have 1."""
    y = torch.tensor([3.0, -4.0], dtype=torch.float64)
    p, q = -2 * y, -2.0001 * y
    slope = (squared_loss_value(p, y) - squared_loss_value(q, y)).abs() / (p - q).norm()
    assert float(slope / squared_error().steepness(5.0, q.norm())) == pytest.approx(1, abs=1e-4)
    logits = torch.tensor([[-40.0] * 9, [-41.0] * 9], dtype=torch.float64)
    slope = cross_entropy_value(logits, torch.ones(9).double()).diff().abs() / (logits[0] - logits[1]).norm()
    assert float(slope) == pytest.approx(cross_entropy(9).K0) == pytest.approx(3.0)


@settings(max_examples=60, deadline=None)
@given(seeds, st.integers(1, 4), st.sampled_from(["squared", "entropy"]))
def test_gradient_is_psi_minus_K3_y(seed, size, kind):
    (p, q), generator = draw_pair(seed, size, 2.0)
    y = torch.rand(size, generator=generator).round().double()
    loss, value = loss_of(kind, size)

    def psi(p):
        leaf = p.clone().requires_grad_()
        return torch.autograd.grad(value(leaf, y), leaf)[0] + loss.K3 * y

    assert torch.allclose(psi(p), 2 * p if kind == "squared" else torch.sigmoid(p))
    assert float((psi(p) - psi(q)).norm()) <= loss.K4 * float((p - q).norm()) * (1 + 1e-9)
    assert float(psi(p).norm()) <= float(loss.psi(p.norm())) * (1 + 1e-9)


def test_psi_of_the_cross_entropy_is_bounded():
    loss = cross_entropy(4)
    assert float(torch.sigmoid(torch.tensor(1e-4).double()) - 0.5) == pytest.approx(loss.K4 * 1e-4)  # steepest at 0
    assert float(loss.psi(torch.tensor(0.0))) == 1.0  # sigma(0) = 1/2 in four entries
    assert float(loss.psi(torch.tensor(1e9))) == 2.0


def test_values_are_torchs():
    p, y = torch.randn(7, 3).double(), torch.rand(7, 3).round().double()
    assert torch.allclose(cross_entropy_value(p, y), F.binary_cross_entropy_with_logits(p, y, reduction="none").sum(1))
    assert torch.allclose(squared_loss_value(p, y), F.mse_loss(p, y, reduction="none").sum(1))


def test_the_printed_property_1_fails_for_the_cross_entropy():
    """y = 0, predictions 0 and eps: K1 ||y|| + K2 max(|p|, |q|) is K2 eps for any constants, the slope is 1/2."""
    p = torch.tensor([[0.0], [1e-8]], dtype=torch.float64)
    slope = float(cross_entropy_value(p, torch.zeros(1).double()).diff().abs() / 1e-8)
    assert slope == pytest.approx(0.5, rel=1e-5)
    for K2 in (1.0, 100.0, 1e6):
        assert slope > K2 * 1e-8
    assert slope <= cross_entropy(1).K0


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.floats(0.1, 3), st.floats(0.1, 3)), min_size=1, max_size=4))
def test_products_and_sums_in_the_worst_case(pairs):
    """Affine functions where each is at its bound: the slope of their product is exactly Lemma 1's."""
    constants, bounds = [L for L, _ in pairs], [M for _, M in pairs]
    x = torch.zeros((), dtype=torch.float64, requires_grad=True)
    values = [M + L * x for L, M in pairs]
    product = torch.autograd.grad(math.prod(values), x, retain_graph=True)[0]
    total = torch.autograd.grad(sum(values), x)[0]
    assert float(product) == pytest.approx(product_lipschitz(constants, bounds))
    assert float(total) == pytest.approx(sum_lipschitz(constants))
