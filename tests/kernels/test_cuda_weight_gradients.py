"""The launch that makes the gradients of all weights of a short run, under the emulator, against torch's products."""

from __future__ import annotations

import shutil

import emulator
import pytest
import torch

import mnemoscope as ms
from mnemoscope.kernels import Projection
from mnemoscope.kernels._cuda import compiler, layout, weight_gradients

emulated = pytest.mark.skipif(shutil.which("g++") is None, reason="the emulation is compiled by g++")


def make(T, B, n, E, G, du_row=None, du_width=0, has_first=True, bias=True, keys=False, device="cpu"):
    """Return the arguments of `weight_gradients`, float32, and what it must return, by float64."""
    torch.manual_seed(0)
    dz, states, x = torch.randn(T, B, G), torch.randn(T, B, n), torch.randn(T, B, E)
    first = torch.randn(B, n) if has_first else torch.empty(0)
    du = torch.randn(T, B, du_width) if du_width else None
    b = torch.zeros(G) if bias else None
    dk, h, dv_rows = (torch.randn(T, B, n), torch.randn(T, B, n), torch.randn(B, n)) if keys else (None, None, None)
    dy = dz if du is None else torch.cat([dz[..., :du_row], du], -1)
    before = torch.cat([(first if has_first else torch.zeros(B, n))[None], states[:-1]])
    wide_dz, wide_dy = dz.double().flatten(0, 1), dy.double().flatten(0, 1)
    expected = (
        wide_dy.T @ before.double().flatten(0, 1),
        wide_dz.T @ x.double().flatten(0, 1),
        wide_dz.sum(0) if bias else None,
        wide_dy.sum(0) if bias else None,
        dk.double().flatten(0, 1).T @ h.double().flatten(0, 1) if keys else None,
        dv_rows.double().sum(0) if keys else None,
    )
    made = (x, torch.zeros(G, E), b, b, dz, first, states, du, dk, h, dv_rows)
    tensors = [None if t is None else t.to(device) for t in made]
    return (Projection(*tensors[:4]), *tensors[4:8], G if du_row is None else du_row, *tensors[8:]), expected


SHAPES = {
    "one row": {"T": 1, "B": 1, "n": 5, "E": 1, "G": 5},
    "LSTM": {"T": 9, "B": 5, "n": 20, "E": 3, "G": 80},
    "no first state": {"T": 4, "B": 3, "n": 16, "E": 2, "G": 16, "has_first": False},
    "wide inputs, no bias": {"T": 3, "B": 7, "n": 70, "E": 130, "G": 70, "bias": False},
    "GRU": {"T": 6, "B": 4, "n": 33, "E": 10, "G": 99, "du_row": 66, "du_width": 33},
    "RelRNN": {
        "T": 5,
        "B": 30,
        "n": 64,
        "E": 10,
        "G": 64,
        "du_row": 64,
        "du_width": 64,
        "keys": True,
        "has_first": False,
    },
    "RelRNN, many sequences": {"T": 2, "B": 70, "n": 70, "E": 3, "G": 70, "du_row": 70, "du_width": 70, "keys": True},
    "RelLSTM": {"T": 5, "B": 3, "n": 20, "E": 3, "G": 80, "du_row": 80, "du_width": 20, "keys": True},
}


def check(found, expected):
    for one, other in zip(found, expected, strict=True):
        if other is None:
            assert one is None
        else:
            torch.testing.assert_close(one.double().cpu(), other, rtol=2e-5, atol=2e-5)


@emulated
@pytest.mark.parametrize("blocks", [2, 8])
@pytest.mark.parametrize("shape", SHAPES)
def test_equal_torchs_products(monkeypatch, shape, blocks):
    monkeypatch.setattr(compiler, "launch", emulator.launch)
    limits = layout.Limits(clusters=(1, blocks), multiprocessors=4, shared_floats=227 * 256)
    monkeypatch.setattr(layout, "limits", lambda device: limits)
    arguments, expected = make(**SHAPES[shape])
    check(weight_gradients.weight_gradients(*arguments), expected)


@pytest.mark.cuda
@pytest.mark.parametrize("shape", [*SHAPES.values(), {"T": 128, "B": 64, "n": 128, "E": 10, "G": 512}])
def test_equal_torchs_products_on_cuda_in_every_run(shape):
    arguments, expected = make(**shape, device="cuda")
    found = weight_gradients.weight_gradients(*arguments)
    scale = max(1.0, float(expected[0].abs().max()))
    check([None if t is None else t / scale for t in found], [None if t is None else t / scale for t in expected])
    for one, other in zip(found, weight_gradients.weight_gradients(*arguments), strict=True):
        assert one is other is None or torch.equal(one, other)


def test_left_to_torch(monkeypatch):
    limits = layout.Limits(clusters=(1, 8), multiprocessors=4, shared_floats=227 * 256)
    monkeypatch.setattr(layout, "limits", lambda device: limits)
    arguments, _ = make(T=2, B=2, n=4, E=3, G=4)
    projection, dz, *rest = arguments
    assert weight_gradients.weight_gradients(projection, dz.bfloat16(), *rest) is None
    assert weight_gradients.weight_gradients(projection, dz.transpose(0, 1), *rest) is None
    monkeypatch.setattr(weight_gradients, "_MOST_PRODUCTS", 10)
    assert weight_gradients.weight_gradients(*arguments) is None
    monkeypatch.setattr(layout, "limits", lambda device: limits._replace(clusters=(1,)))
    assert weight_gradients.weight_gradients(*arguments) is None


@pytest.mark.cuda
@pytest.mark.parametrize("layer", [ms.RNN, ms.LSTM, ms.GRU, ms.RelRNN, ms.RelLSTM])
@pytest.mark.parametrize("frozen", ["weight_ih_l0", "bias_hh_l0", "weight_hh_l0"])
def test_some_weights_without_a_gradient_on_cuda(layer, frozen):
    made = layer(3, 20).cuda()
    x = torch.randn(6, 2, 3, device="cuda")
    names = [name for name, _ in made.named_parameters() if name != frozen]
    expected = torch.autograd.grad(made(x)[0].square().sum(), [getattr(made, name) for name in names])
    getattr(made, frozen).requires_grad_(False)
    found = torch.autograd.grad(made(x)[0].square().sum(), [getattr(made, name) for name in names])
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
