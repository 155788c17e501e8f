"""One step of RNN, LSTM and GRU without gradients, as on a GPU, under the emulator."""

from __future__ import annotations

import shutil

import emulator
import pytest
import torch

import mnemoscope as ms
from mnemoscope import kernels
from mnemoscope.kernels import _dispatch
from mnemoscope.kernels._cuda import compiler, layout
from mnemoscope.layers import Layer
from mnemoscope.layers._plain import Gated

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="the emulation is compiled by g++")


@pytest.fixture(autouse=True)
def emulated(monkeypatch):
    """Steps on CPU tensors run the CUDA kernels; the names of those that ran."""
    ran = []
    torch.manual_seed(0)

    def launch(name, *rest, **named):
        ran.append(name)
        emulator.launch(name, *rest, **named)

    limits = layout.Limits(clusters=(1, 2, 4), multiprocessors=4, shared_floats=227 * 256)
    monkeypatch.setattr(compiler, "launch", launch)
    monkeypatch.setattr(layout, "limits", lambda device: limits)
    monkeypatch.setattr(_dispatch, "backend_supports", lambda *_: True)
    monkeypatch.setattr(Layer, "steps_on_gpu", lambda self, x: True)
    return ran


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("layer", [ms.RNN, ms.LSTM, ms.GRU])
@torch.no_grad()
def test_a_step_without_gradients(emulated, monkeypatch, layer, bias):
    made = layer(3, 20, bias=bias)
    x = torch.randn(3, 2, 3)
    with kernels.backend("eager"):
        expected, last = made(x)
    state = made.initial_state(2)
    monkeypatch.setattr(Layer, "run_sequence", None)
    for t in range(3):
        output, state = made.step(x[t], state)
        torch.testing.assert_close(output, expected[t], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(state, last, rtol=1e-5, atol=1e-6)
    assert emulated == ["cells_forward"] * 3


@torch.no_grad()
def test_a_step_that_is_left_to_the_way_of_a_sequence(emulated):
    layer, x = ms.LSTM(3, 20), torch.randn(2, 3)
    h, c = layer.initial_state(2)
    assert layer.step_by_kernel(x, (h, c), False) is not None
    for state in (h, (h,), (h, c[:, :1]), [h, "c"], (h.transpose(0, 1), c), (h, c.double())):
        assert layer.step_by_kernel(x, state, False) is None
    assert layer.step_by_kernel(x.double(), (h, c), False) is None
    assert layer.step_by_kernel(x[:, :2], (h, c), False) is None
    assert ms.LSTM(3, 20, num_layers=2).step_by_kernel(x, (h, c), False) is None
    assert ms.LSTM(3, 20, proj_size=5).step_by_kernel(x, (h, c), False) is None
    for other in (ms.RelLSTM, ms.MemLSTM, ms.SAB):
        assert Gated.step_by_kernel(other(3, 20), x, (h, c), False) is None
    for other in (ms.RelRNN, ms.LinearSystem, ms.OrthRNN, ms.RAC):
        assert Gated.step_by_kernel(other(3, 16), x, torch.zeros(1, 2, 16), False) is None
    with kernels.backend("eager"):
        assert layer.step_by_kernel(x, (h, c), False) is None
    with torch.enable_grad():
        assert layer.step_by_kernel(x, (h, c), False) is None
    with torch.autocast("cpu", torch.bfloat16):
        assert layer.step_by_kernel(x, (h, c), False) is None
