"""Queries and keys too large for their exponentials: the walk must still see q + k."""

from __future__ import annotations

import pytest
import torch

import mnemoscope as ms
from mnemoscope import kernels
from mnemoscope.kernels.cpu import reach

LAYERS = [
    pytest.param(lambda **o: ms.RelRNN(3, 6, nonlinearity="modrelu", buffer=2, relevant=2, **o), id="modReLU"),
    pytest.param(lambda **o: ms.MemRNN(3, 6, nonlinearity="relu", **o), id="ReLU"),
    pytest.param(lambda **o: ms.RelRNN(3, 6, buffer=2, relevant=2, **o), id="tanh"),
    pytest.param(lambda **o: ms.MemLSTM(3, 6, **o), id="LSTM"),
]


def gradients(layer: torch.nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    layer.zero_grad()
    x = x.clone().requires_grad_()
    y, _ = layer(x)
    y.sum().backward()
    return [y.detach(), x.grad, *(p.grad.clone() for p in layer.parameters())]


@pytest.mark.parametrize("make", LAYERS)
@pytest.mark.parametrize("scale", [1.0, 30.0, 1000.0, 3000.0])
def test_states_and_attention_of_any_size(make, scale: float) -> None:
    torch.manual_seed(0)
    layer = make(dtype=torch.float64)
    with torch.no_grad():
        layer.weight_query_l0 *= scale
        layer.weight_key_l0 *= -scale  # of the other sign: the sums stay small where each of the two is large
        layer.weight_key_l0 += layer.weight_query_l0.neg() * 0.9
    x = 3 * torch.randn(9, 2, 3, dtype=torch.float64)
    found = gradients(layer, x)
    with kernels.backend("eager"):
        truth = gradients(layer, x)
    for a, b in zip(found, truth, strict=True):
        assert (a - b).norm() <= 1e-9 * b.norm() + 1e-12


@pytest.mark.parametrize(
    ("query", "key", "apart"),
    [(1.0, 1.0, True), (0.0, 100.0, True), (100.0, 0.0, True), (100.0, -99.0, False), (-50.0, 40.0, False)],
)
def test_only_sums_that_would_be_lost_are_kept_whole(query: float, key: float, apart: bool) -> None:
    """A cut-off query beside a small key is no loss: tanh of their sum is 1 all the same."""
    h, eye = torch.zeros(1, 1, 2), torch.eye(2)
    s0, keys0 = torch.full((1, 2), query), torch.full((1, 1, 2), key)
    assert reach.safe(h, h, s0, torch.zeros_like(keys0), keys0, eye, eye, "rnn", "relu") == apart
