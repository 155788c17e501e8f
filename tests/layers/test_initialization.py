"""Variance-preserving initialization against its own moments, torch's He initialization and whole modules."""

import math

import pytest
import torch
from torch import nn

from mnemoscope.errors import MnemoscopeError
from mnemoscope.layers import GORU, LSTM, ExpRNN, variance_preserving_


@pytest.mark.parametrize("unit", ["linear", "relu"])
@pytest.mark.parametrize("distribution", ["gaussian", "uniform"])
def test_moments(unit, distribution):
    draw = torch.Generator().manual_seed(0)
    weight = variance_preserving_(torch.empty(2000, 200), unit, distribution, generator=draw)
    variance = {"linear": 1, "relu": 2}[unit] / 200
    assert float(weight.var()) == pytest.approx(variance, rel=0.01)
    assert abs(float(weight.mean())) < 4 * math.sqrt(variance / weight.numel())
    if distribution == "uniform":
        assert float(weight.abs().max()) == pytest.approx(math.sqrt(3 * variance), rel=1e-4)


def test_relu_is_he_initialization():
    """The same draws as torch's kaiming_normal_ and kaiming_uniform_ for a ReLU."""
    for ours, theirs in (("gaussian", nn.init.kaiming_normal_), ("uniform", nn.init.kaiming_uniform_)):
        one, other = torch.empty(7, 5, 3), torch.empty(7, 5, 3)
        variance_preserving_(one, "relu", ours, generator=torch.Generator().manual_seed(3))
        theirs(other, nonlinearity="relu", generator=torch.Generator().manual_seed(3))
        assert torch.allclose(one, other)


def test_a_module_is_drawn_whole():
    net = nn.Sequential(nn.Linear(400, 300), nn.ReLU(), nn.Linear(300, 10))
    assert variance_preserving_(net) is net
    assert float(net[0].weight.detach().std()) == pytest.approx(math.sqrt(2 / 400), rel=0.02)
    assert not net[0].bias.any()


def test_units_of_a_recurrence_read_input_and_state():
    layer = LSTM(30, 90)
    variance_preserving_(layer, "linear")
    for weight in (layer.weight_ih_l0, layer.weight_hh_l0):
        assert float(weight.detach().std()) == pytest.approx(math.sqrt(1 / 120), rel=0.05)
    assert not layer.bias_hh_l0.any()


def test_a_parametrized_weight_is_left_alone():
    layer = ExpRNN(4, 6)
    before = layer.weight_hh_l0.detach().clone()
    variance_preserving_(layer)
    assert torch.equal(layer.weight_hh_l0, before)


def test_fan_in_can_be_given_and_wrong_values_are_refused():
    draw = torch.Generator().manual_seed(0)
    weight = variance_preserving_(torch.empty(3000, 4), "linear", fan_in=100, generator=draw)
    assert float(weight.std()) == pytest.approx(0.1, rel=0.03)
    for fan_in in (0, -1, 1.5):
        with pytest.raises(MnemoscopeError, match=f"fan_in must be a whole number of at least 1; got {fan_in}"):
            variance_preserving_(weight, fan_in=fan_in)
    with pytest.raises(MnemoscopeError, match="got 'gelu' and 'gaussian'"):
        variance_preserving_(weight, "gelu")
    with pytest.raises(MnemoscopeError, match=r"at least 2 dimensions; got \[3\]"):
        variance_preserving_(torch.empty(3))


def test_units_of_a_cell_read_input_and_state():
    cell = variance_preserving_(nn.LSTMCell(100, 300), "linear")
    assert abs(400 * cell.weight_ih.var().item() - 1) < 0.05
    assert abs(400 * cell.weight_hh.var().item() - 1) < 0.05


def test_other_parameters_are_left_alone():
    layer = GORU(3, 8)
    before = layer.angles_l0.detach().clone()
    variance_preserving_(layer)
    assert torch.equal(layer.angles_l0, before)
