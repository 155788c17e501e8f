"""The chaotic LSTM, against torch's own cell and its closed forms; invariant sets."""

import math

import pytest
import torch
from torch import nn

from mnemoscope.errors import MnemoscopeError
from mnemoscope.theory.smoothness._chaos import chaotic_lstm, largest_exponent, orbit, stability_limit, step
from mnemoscope.theory.smoothness._invariance import invariant_ball, leaves_box, origin_drift
from mnemoscope.theory.smoothness._sensitivity import tanh_network


def test_orbit_is_torchs():
    lstm = chaotic_lstm(1.0)
    torch_lstm = nn.LSTM(1, 2, bias=False, dtype=torch.float64)
    with torch.no_grad():
        torch_lstm.weight_ih_l0.copy_(lstm.weight_ih)
        torch_lstm.weight_hh_l0.copy_(lstm.weight_hh)
        output, _ = torch_lstm(torch.randn(40, 1).double(), (lstm.h[None], lstm.c[None]))
    assert torch.allclose(orbit(lstm, 40)[1:, :2], output, atol=1e-9)


def test_weights_are_those_of_the_appendix_with_two_signs_mended():
    lstm, printed = chaotic_lstm(0.5), chaotic_lstm(0.5, printed=True)
    changed = (lstm.weight_hh != printed.weight_hh).nonzero().tolist()
    assert changed == [[0, 1], [7, 1]]  # W_hi[0, 1] and W_ho[1, 1]
    assert lstm.weight_hh[0].tolist() == [-0.5, -2.0]
    assert lstm.weight_hh[7].tolist() == [-4.5, -3.5]
    assert chaotic_lstm(dtype=torch.float32).weight_hh.dtype == torch.float32
    assert lstm.h.tolist() == lstm.c.tolist() == [0.5, 0.5]


def test_the_right_weights_are_chaotic_and_the_printed_ones_are_not():
    assert largest_exponent(chaotic_lstm(1.0)) > 0.1
    states = orbit(chaotic_lstm(1.0, printed=True), 6000)[-60:]
    assert float((states[6:] - states[:-6]).abs().max()) < 1e-5
    assert all(float((states[p:] - states[:-p]).abs().max()) > 0.1 for p in range(1, 6))


def test_exponent_and_stability_limit_of_the_origin():
    J = torch.autograd.functional.jacobian(lambda s: step(s, chaotic_lstm(0.5).weight_hh), torch.zeros(4).double())
    radius = float(torch.linalg.eigvals(J).abs().max())
    assert math.log(radius) == pytest.approx(math.log(21 / 64) / 2)
    assert largest_exponent(chaotic_lstm(0.5), steps=300, discard=100) == pytest.approx(math.log(21 / 64) / 2, rel=0.02)
    at_limit = chaotic_lstm(stability_limit()).weight_hh
    J = torch.autograd.functional.jacobian(lambda s: step(s, at_limit), torch.zeros(4).double())
    assert float(torch.linalg.eigvals(J).abs().max()) == pytest.approx(1.0)


def test_origin_is_invariant_for_tanh_and_not_for_sigmoid_units():
    f, _, size = tanh_network(3, 2, 1)
    u = torch.randn(5, 2).double()
    assert origin_drift(f, 3, size, u) == 0.0
    assert origin_drift(lambda x, u, theta: torch.sigmoid(f(x, u, theta)), 3, size, u) == pytest.approx(math.sqrt(0.75))


def test_boxes_that_are_kept_and_that_are_left():
    u, corner = torch.zeros(1, 1).double(), torch.ones(2).double()
    assert leaves_box(lambda x, u, theta: torch.tanh(9 * x), torch.zeros(0), corner, u) <= 0
    assert leaves_box(lambda x, u, theta: 1.5 * x, torch.zeros(0), corner, u) == pytest.approx(0.5)  # at a vertex


def test_invariant_ball():
    radius = invariant_ball(0.75, 0.5)
    assert radius == pytest.approx(2.0)
    assert 0.75 * radius + 0.5 == pytest.approx(radius)
    with pytest.raises(MnemoscopeError, match="below 1 only; got 1"):
        invariant_ball(1.0, 0.5)
