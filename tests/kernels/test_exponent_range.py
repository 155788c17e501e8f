"""Queries and keys too large for their exponentials: the kernel must still see q + k."""

from __future__ import annotations

import pytest
import torch

import mnemoscope as ms
from mnemoscope import kernels
from mnemoscope.kernels import _operators as op
from mnemoscope.kernels._cpu import exponent_range
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
def test_a_row_of_nan_does_not_hide_an_overflow(make) -> None:
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
        (42.0, -42.0, True),  # on either side of each limit
    ],
)
def test_overflow_is_seen_where_a_sum_would_be_lost(query: float, key: float, apart: bool) -> None:
    """A cut-off query beside a small key is no loss: tanh of their sum is 1 all the same."""
    h, eye = torch.zeros(1, 1, 2), torch.eye(2)
    s0, keys0 = torch.full((1, 2), query), torch.full((1, 1, 2), key)
    assert exponent_range.overflowed(h, h, s0, keys0, eye, eye) != apart


@pytest.mark.skipif(not available(torch.float64), reason="no compiled CPU kernels here")
@pytest.mark.parametrize("cell", ["rnn", "lstm"])
@pytest.mark.parametrize("large", [False, True], ids=["taken apart", "kept whole"])
@pytest.mark.parametrize("carried", [False, True], ids=["from nothing", "from a memory"])
def test_backward_has_the_shapes_and_strides_of_its_fake(cell: str, large: bool, carried: bool) -> None:
    """By torch's own checker: inductor reads memory by them."""
    torch.manual_seed(0)
    T, B, n, n_inputs, slots = 5, 3, 4, 2, 3

    def some(*shape: int) -> torch.Tensor:
        return torch.randn(shape, dtype=torch.float64)

    gate_rows = n if cell == "rnn" else 4 * n
    W_a = some(n, n) * (1e4 if large else 1)
    x = some(T, B, n_inputs)
    weights = op.AttentionWeights(V=some(gate_rows, n + n_inputs), W_a=W_a, U_a=-W_a, v=some(n), b=None)
    state = op.AttentionState(s0=some(B, n), c0=None if cell == "rnn" else some(B, n))
    memory = op.CarriedMemory(
        values0=some(B, slots, n),
        keys0=some(B, slots, n),
        origin0=torch.zeros(B, slots, dtype=torch.int64),
        relevance0=some(B, slots),
        clock0=torch.zeros(B, dtype=torch.int64),
    )
    if not carried:
        memory = op.CarriedMemory(*[tensor.new_empty(0) for tensor in memory])
    options = op.AttentionOptions(cell, "tanh", buffer=2, relevant=1, mix="sum", decay=1.0, refresh=False)
    run = op.attentive_forward(x, weights, state, memory, options, lengths=None, save=True)
    assert bool(run.overflowed) == large
    saved = op.AttentiveSaved(*[getattr(run, name) for name in op.AttentiveSaved._fields])
    grads = op.AttentiveOutputGradients(dh=some(T, B, n), ds=None, dc_T=None)
    backward = op.attentive_backward_with_inputs
    flat = backward.flatten(grads, x, weights, state, memory, options, saved, None, True)
    torch.library.opcheck(backward.overload, tuple(flat), test_utils=("test_schema", "test_faketensor"))
