"""Weights that a hook computes before each forward pass, as torch.nn.utils' older weight and spectral norms do."""

import pytest
import torch
from certified_models import noise, with_spectral_norms
from torch import nn

import mnemoscope
from mnemoscope.scopes import stability, truncation

KINDS = [nn.RNN, nn.LSTM, mnemoscope.RNN, mnemoscope.LSTM, mnemoscope.LinearSystem]


def layer_of(kind):
    torch.manual_seed(1)
    layer = kind(3, 6).double()
    with torch.no_grad():
        for p in layer.parameters():
            p.mul_(0.2)
    return layer if isinstance(layer, nn.LSTM | mnemoscope.LSTM) else with_spectral_norms(layer, 0.9)


@pytest.mark.filterwarnings("ignore:.*deprecated:FutureWarning")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("computed_by", [nn.utils.weight_norm, nn.utils.spectral_norm])
def test_the_weights_of_a_forward_pass_are_certified(kind, computed_by):
    """Before its first forward pass a layer under spectral_norm holds other weights than it runs with."""
    layer = computed_by(layer_of(kind), "weight_hh_l0").eval()
    x = noise(20, 4, 3)
    found = stability(layer, x)
    windows = truncation(layer, x)
    layer(x)
    plain = layer_of(kind)
    with torch.no_grad():
        plain.weight_hh_l0.copy_(layer.weight_hh_l0)
    expected = stability(plain, x)
    assert found.status == expected.status
    assert found.figures["bound"] == pytest.approx(expected.figures["bound"])
    assert windows.figures.get("certified_window") == truncation(plain, x).figures.get("certified_window")


@pytest.mark.filterwarnings("ignore:.*deprecated:FutureWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_no_nearest_stable_weights_where_a_hook_computes_them(kind):
    """What is moved would be computed anew, and the distance be that of the other parameters alone."""
    layer = nn.utils.weight_norm(layer_of(kind), "weight_hh_l0")
    found = stability(layer, noise(20, 4, 3), lam=0.1)
    assert "distance" not in found.figures
    assert "output_change" not in found.figures
