"""Layers of bfloat16 and half precision on the CPU: by the kernels, in float32, and rounded once."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import mnemoscope
from mnemoscope.kernels._cpu.library import available
from mnemoscope.layers import _run
from mnemoscope.recurrence import leaves

pytestmark = pytest.mark.skipif(not available(torch.float32), reason="no compiled CPU kernels here")
CELLS = ["LinearSystem", "RNN", "LSTM", "GRU", "OrthRNN", "ExpRNN", "GORU", "RAC"]
NAMES = [*CELLS, "MemRNN", "MemLSTM", "SAB", "RelRNN", "RelLSTM"]
TYPES = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
STEPS = 6


@pytest.fixture(autouse=True)
def no_eager_loop(monkeypatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("the eager loop ran")

    monkeypatch.setattr(_run, "run_eager", refuse)


def layers(name: str, dtype: torch.dtype, **options) -> tuple[nn.Module, nn.Module]:
    """Return a layer, and one with the same weights in float64."""
    torch.manual_seed(0)
    layer = getattr(mnemoscope, name)(3, 8, dtype=dtype, **options)
    return layer, copy.deepcopy(layer).double()


def near(found: torch.Tensor, expected: torch.Tensor, roundings: float = 4) -> bool:
    """True if the error is a few roundings of the largest number."""
    error = (found.detach().double() - expected.detach()).abs().max()
    return bool(error <= roundings * torch.finfo(found.dtype).eps * expected.detach().abs().max())


@pytest.mark.parametrize("name", [name for name in NAMES if name != "ExpRNN"])  # whose V is rounded, too
@TYPES
def test_outputs_states_and_gradients_are_those_of_float64_rounded(name, dtype) -> None:
    layer, exact = layers(name, dtype)
    x = torch.randn(STEPS, 2, 3).to(dtype)
    (output, state), (expected, last) = layer(x), exact(x.double())
    assert output.dtype is dtype
    assert near(output, expected)
    assert all(t.dtype is dtype for t in leaves(state) if t.is_floating_point())
    assert all(near(a, b) for a, b in zip(leaves(state), leaves(last), strict=True) if a.is_floating_point())
    output.sum().backward()
    expected.sum().backward()
    for found, wanted in zip(layer.parameters(), exact.parameters(), strict=True):
        assert found.grad.dtype is dtype
        assert near(found.grad, wanted.grad, 16)


@pytest.mark.parametrize("name", NAMES)
@TYPES
@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "dropout": 0.5}, {"checkpoint": True}], ids=str)
def test_a_state_goes_on_in_its_own_type(name, dtype, options) -> None:
    layer, _ = layers(name, dtype, **options)
    layer.eval()
    x = torch.randn(STEPS, 2, 3).to(dtype)
    whole = layer(x)[0]
    first, state = layer(x[:4])
    second, _ = layer(x[4:], state)
    assert near(torch.cat([first, second]), whole.double(), 16)  # the carried state was rounded once more


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("bidirectional", [False, True], ids=["one direction", "both"])
def test_packed_sequences(name, bidirectional) -> None:
    layer, exact = layers(name, torch.bfloat16, bidirectional=bidirectional)
    x = [torch.randn(length, 3).bfloat16() for length in (2, 5, 1)]
    packed = nn.utils.rnn.pack_sequence(x, enforce_sorted=False)
    output, _ = layer(packed)
    assert output.data.dtype is torch.bfloat16
    assert near(output.data, exact(packed.to(torch.float64))[0].data, 4 if name != "ExpRNN" else 64)
