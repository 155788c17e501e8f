"""Question 1: variances kept through layers, against sampling, and the layers' own initialization."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mnemoscope.errors import MnemoscopeError
from mnemoscope.layers import variance_preserving_
from mnemoscope.theory.foundations import preactivation_variance, variances_through_layers, weight_scale

UNITS, DISTRIBUTIONS = ("linear", "relu"), ("gaussian", "uniform")


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 12), st.floats(-0.5, 0.5), st.floats(0.05, 2), st.sampled_from(UNITS), st.integers(0, 10**6))
def test_variance_of_preactivations_by_sampling(fan_in, mean, variance, unit, seed):
    generator = torch.Generator().manual_seed(seed)
    a = torch.randn(40_000, fan_in, generator=generator, dtype=torch.float64)
    w = mean + math.sqrt(variance) * torch.randn(40_000, fan_in, generator=generator, dtype=torch.float64)
    sampled = (w * (a.relu() if unit == "relu" else a)).sum(1)
    assert float(sampled.var()) == pytest.approx(preactivation_variance(fan_in, mean, variance, unit), rel=0.12)


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("fan_in", [3, 100])
def test_spread_gives_variance_one(unit, distribution, fan_in):
    spread = weight_scale(fan_in, unit, distribution)
    variance = spread**2 if distribution == "gaussian" else spread**2 / 3
    assert preactivation_variance(fan_in, 0.0, variance, unit) == pytest.approx(1)


def test_spreads_in_closed_form():
    assert weight_scale(50, "linear", "gaussian") == pytest.approx(1 / math.sqrt(50))
    assert weight_scale(50, "linear", "uniform") == pytest.approx(math.sqrt(3 / 50))
    assert weight_scale(50, "relu", "gaussian") == pytest.approx(math.sqrt(2 / 50))
    assert weight_scale(50, "relu", "uniform") == pytest.approx(math.sqrt(6 / 50))
    with pytest.raises(MnemoscopeError, match="got gelu, gaussian"):
        weight_scale(50, "gelu")


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_layers_are_initialized_with_the_same_spread(unit, distribution):
    generator = torch.Generator().manual_seed(0)
    weight = variance_preserving_(torch.empty(4000, 60), unit, distribution, generator=generator)
    if distribution == "gaussian":
        assert float(weight.std()) == pytest.approx(weight_scale(60, unit), rel=0.01)
    else:
        assert float(weight.abs().max()) == pytest.approx(weight_scale(60, unit, "uniform"), rel=1e-4)


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_variance_survives_fifty_layers(unit, distribution):
    """A spread that is 2 % off in variance a layer would show: the mean gain is known to 0.4 %."""
    found = variances_through_layers(unit, distribution, width=96, networks=32)
    gain = found[1:] / found[:-1]
    assert float(gain.mean()) == pytest.approx(1, abs=4 * float(gain.std()) / math.sqrt(gain.numel()))
    assert float(gain.mean()) == pytest.approx(1, abs=0.02)
    wrong = variances_through_layers(unit, distribution, width=96, networks=4, scale=1.1)
    assert float(wrong[-1].mean()) > 100


def test_uncorrelated_preactivations_have_correlated_rectifications():
    """a on a circle: cov(a_1, a_2) = 0, cov(ReLU a_1, ReLU a_2) = 1/(2 pi) - 2/pi^2; the text takes it for 0."""
    t = 2 * math.pi * (torch.arange(10_000).double() + 0.5) / 10_000
    a = math.sqrt(2) * torch.stack([t.cos(), t.sin()])
    assert float(torch.cov(a, correction=0)[0, 1]) == pytest.approx(0, abs=1e-12)
    expected = 1 / (2 * math.pi) - 2 / math.pi**2
    assert float(torch.cov(a.relu(), correction=0)[0, 1]) == pytest.approx(expected, rel=1e-5)
    generator = torch.Generator().manual_seed(0)
    w = weight_scale(2) * torch.randn(10_000, 2, generator=generator).double()
    assert float((w * a.relu().T).sum(1).var()) == pytest.approx(1, rel=0.05)
