import numpy as np
import pytest
import torch
from torch import nn

from mnemoscope import LSTM, RNN, ExpRNN, LinearSystem, MemRNN, MnemoscopeError
from mnemoscope.layers import variance_preserving_
from mnemoscope.scopes import signal


def test_activation_moments_equal_those_of_the_outputs():
    layer, x = nn.GRU(3, 6), torch.randn(9, 5, 3)
    found, h = signal(layer, x), layer(x)[0].detach().double()
    np.testing.assert_allclose(found.series["activation_mean"][0], h.mean((1, 2)), atol=1e-6)
    np.testing.assert_allclose(found.series["activation_variance"][0], h.var((1, 2), correction=0), atol=1e-6)


def test_variance_over_depth():
    layer, x = LSTM(3, 6, 3), torch.randn(9, 5, 3)
    found = signal(layer, x)
    top = layer(x)[0].detach().double()
    assert found.series["gradient_variance"].shape == (3, 9)
    np.testing.assert_allclose(found.series["activation_mean"][2], top.mean((1, 2)), atol=1e-6)
    bottom = LSTM(3, 6)
    bottom.load_state_dict({k: v for k, v in layer.state_dict().items() if k.endswith("l0")})
    np.testing.assert_allclose(found.series["activation_mean"][0], bottom(x)[0].detach().mean((1, 2)), atol=1e-6)


@pytest.mark.parametrize("scale", [0.5, 1.0, 1.2])
def test_gradient_variance_of_a_scaled_orthogonal_system(scale):
    layer = LinearSystem(3, 6, bias=False).double()
    layer.weight_hh_l0.data = scale * torch.linalg.qr(torch.randn(6, 6, dtype=torch.float64)).Q
    found = signal(layer, torch.randn(9, 50, 3, dtype=torch.float64))
    second = found.series["gradient_variance"][0] + found.series["gradient_mean"][0] ** 2
    np.testing.assert_allclose(second[0] / second[-1], scale**16, rtol=1e-9)


def test_gradients_through_attention():
    layer = MemRNN(3, 6)
    layer.weight_hh_l0.data *= 1e-3
    found = signal(layer, torch.randn(30, 5, 3))
    assert found.series["gradient_variance"][0, 0] > 1e-6 * found.series["gradient_variance"][0, -2]


@pytest.mark.parametrize(("unit", "phi", "gain"), [("linear", "tanh", 1.0), ("relu", "relu", 2.0)])
def test_weight_gain_of_variance_preserving_weights(unit, phi, gain):
    layer = RNN(60, 80, nonlinearity=phi)
    variance_preserving_(layer, unit, generator=torch.Generator().manual_seed(0))
    found = signal(layer, torch.randn(5, 4, 60))
    assert found.labels["weights"] == ["weight_ih_l0", "weight_hh_l0"]
    assert found.figures["preserving_gain"] == gain
    np.testing.assert_allclose(found.series["weight_gain"], gain, rtol=0.1)


def test_weight_gain_of_a_parametrized_weight():
    layer = ExpRNN(8, 24)
    found = signal(layer, torch.randn(5, 4, 8))
    assert sorted(found.labels["weights"]) == ["weight_hh_l0", "weight_ih_l0"]
    gains = dict(zip(found.labels["weights"], found.series["weight_gain"], strict=True))
    for name, weight in (("weight_ih_l0", layer.weight_ih_l0), ("weight_hh_l0", layer.weight_hh_l0)):
        assert gains[name] == pytest.approx(32 * float(weight.detach().var(correction=0)), rel=1e-5)


def test_warnings_of_saturated_and_silent_units():
    layer = RNN(3, 6)
    layer.bias_ih_l0.data.fill_(9.0)
    found = signal(layer, torch.randn(9, 5, 3))
    assert found.figures["saturated"] == 1
    assert "saturated, where tanh and sigmoid pass no gradient" in found.warnings[0]
    layer = RNN(3, 6, nonlinearity="relu")
    layer.bias_ih_l0.data.fill_(-9.0)
    found = signal(layer, torch.randn(9, 5, 3))
    assert found.figures["silent"] == 1
    assert "silent" in found.warnings[0]


def test_unbounded_units_do_not_saturate():
    layer = RNN(3, 6, nonlinearity="relu")
    layer.bias_ih_l0.data.fill_(9.0)
    found = signal(layer, torch.randn(9, 5, 3))
    assert found.figures["saturated"] == 0
    assert not found.warnings


def test_signal_of_any_recurrence():
    class Inner(nn.Module):
        input_size = 2

        def initial_state(self, batch):
            return {"h": torch.zeros(batch, 2)}

        def step(self, x, state):
            h = x + 0.5 * state["h"]
            return h.sum(-1, keepdim=True), {"h": h}

    found = signal(Inner(), torch.randn(9, 5, 2))
    second = found.series["gradient_variance"][0] + found.series["gradient_mean"][0] ** 2
    np.testing.assert_allclose(second[0] / second[-2], 0.25**7, rtol=1e-5)


def test_one_step_is_refused():
    with pytest.raises(MnemoscopeError, match="give sequences of at least 2 steps; got 1"):
        signal(nn.RNN(2, 3), torch.randn(1, 2, 2))


def test_weights_of_a_users_own_step_have_their_own_names():
    class Own(nn.Module):
        input_size = 3

        def __init__(self):
            super().__init__()
            self.mix = nn.Linear(7, 4)

        def initial_state(self, batch):
            return torch.zeros(batch, 4)

        def step(self, x, h):
            h = torch.tanh(self.mix(torch.cat([x, h], 1)))
            return h, h

    assert signal(Own(), torch.randn(9, 2, 3)).labels["weights"] == ["mix.weight"]
