"""Queries and keys too large for their exponentials: the walk must still see q + k."""

from __future__ import annotations

import pytest
import torch

import mnemoscope as ms
from mnemoscope import kernels
from mnemoscope.kernels._cpu import exponent_range
from mnemoscope.kernels._cpu.attentive import BEYOND
from mnemoscope.kernels._cpu.library import available

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


@pytest.mark.parametrize("make", LAYERS)
def test_a_row_without_numbers_hides_no_other(make) -> None:
    torch.manual_seed(0)
    layer = make(dtype=torch.float64)
    with torch.no_grad():
        layer.weight_query_l0 *= 3000
        layer.weight_key_l0.copy_(-1.9 * layer.weight_query_l0)
    x = 3 * torch.randn(9, 2, 3, dtype=torch.float64)
    wanted = layer(x)[1].s[:, 1]
    x[:, 0] = torch.nan
    found = layer(x)[1].s
    assert found[:, 0].isnan().all()
    torch.testing.assert_close(found[:, 1], wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("query", "key", "apart"),
    [
        (1.0, 1.0, True),
        (0.0, 100.0, True),
        (100.0, 0.0, True),
        (100.0, -99.0, False),
        (-50.0, 40.0, False),
        (44.0, -22.0, True),
        (44.0, -24.0, False),
        (42.0, -42.0, True),  # on either side of each border
    ],
)
def test_only_sums_that_would_be_lost_are_kept_whole(query: float, key: float, apart: bool) -> None:
    """A cut-off query beside a small key is no loss: tanh of their sum is 1 all the same."""
    h, eye = torch.zeros(1, 1, 2), torch.eye(2)
    s0, keys0 = torch.full((1, 2), query), torch.full((1, 1, 2), key)
    reached = torch.maximum(s0.abs().amax(1), keys0.abs().amax((1, 2)))
    assert exponent_range.lost(reached, h, h, s0, keys0, eye, eye) != apart


@pytest.mark.skipif(not available(torch.float64), reason="no compiled CPU kernels here")
@pytest.mark.parametrize("cell", ["rnn", "lstm"])
@pytest.mark.parametrize("large", [False, True], ids=["taken apart", "kept whole"])
def test_the_way_back_has_the_shapes_and_strides_that_compilers_are_told(cell: str, large: bool) -> None:
    """By torch's own checker: inductor reads memory by them."""
    torch.manual_seed(0)
    T, B, n, extra, slots = 5, 3, 4, 2, 3

    def some(*shape: int) -> torch.Tensor:
        return torch.randn(shape, dtype=torch.float64)

    x, V, W_a = some(T, B, extra), some(n if cell == "rnn" else 4 * n, n + extra), some(n, n) * (1e4 if large else 1)
    c0, memory = None if cell == "rnn" else some(B, n), (some(B, slots, n), some(B, slots, n))
    origin, clock = torch.zeros(B, slots, dtype=torch.int64), torch.zeros(B, dtype=torch.int64)
    given, how = (x, V, W_a, -W_a, some(n)), (cell, "tanh", 2, 1, "sum")
    begun = some(B, n), c0, *memory, origin
    walk = torch.ops.mnemoscope.attentive_forward
    h, s, _, _, _, _, _, *kept = walk(*given, None, *begun, some(B, slots), clock, *how, 1.0, False, None, True)
    back = some(T, B, n), None, None, *given, *begun, h, s, *kept, *how, None, True
    assert (kept[0][0, 0, 0] == BEYOND) == large
    walk_back = torch.ops.mnemoscope.attentive_backward_joined.default
    torch.library.opcheck(walk_back, back, test_utils=("test_schema", "test_faketensor"))
