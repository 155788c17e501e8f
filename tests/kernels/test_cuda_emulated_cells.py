"""The CUDA kernels of cells without a memory, run on the CPU by emulated.h, against the eager layers."""

from __future__ import annotations

import shutil

import emulator
import pytest
import torch
from emulator import check
from fused_truth import Packed, assert_fused_equals_eager, calm

import mnemoscope as ms
from mnemoscope import kernels
from mnemoscope.kernels._cuda import layout
from mnemoscope.kernels._operator import CUDA_CELLS
from mnemoscope.layers import LAYERS
from mnemoscope.recurrence import leaves

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="the emulation is compiled by g++")


@pytest.fixture(autouse=True)
def emulated(monkeypatch):
    """Layers on CPU tensors run the CUDA kernels; the names of those that ran."""
    return emulator.replace_cpu_kernels(monkeypatch)


def has_cell(layer):
    spec = layer(3, 16).kernel_spec()
    return spec is not None and spec.family in CUDA_CELLS


@pytest.mark.parametrize("layer", list(filter(has_cell, LAYERS.values())))
def test_cells(emulated, layer):
    check(layer(3, 16 if layer is ms.GORU else 20), emulated, "cells")


@pytest.mark.parametrize("nonlinearity", ["relu", "identity", "modrelu"])
def test_nonlinearities(emulated, nonlinearity):
    check(ms.RNN(3, 20, nonlinearity=nonlinearity), emulated, "cells")


@pytest.mark.parametrize("nonlinearity", ["tanh", "relu", "identity", "modrelu"])
def test_nan_stays_nan_in_its_row(emulated, nonlinearity):
    layer, x = ms.RNN(3, 20, nonlinearity=nonlinearity), torch.randn(6, 2, 3)
    x[2, 1] = torch.nan
    output = layer(x)[0]
    assert emulated == ["cells_forward"]
    assert output[2:, 1].isnan().all()
    assert not output[:2].isnan().any()
    assert not output[:, 0].isnan().any()


@pytest.mark.parametrize("layer", [ms.LSTM, ms.GRU])
def test_a_size_that_fills_no_tile_over_a_cluster(emulated, layer):
    check(layer(3, 70), emulated, "cells", B=1)


@pytest.fixture
def no_tile(monkeypatch):
    """Every layer is too wide for a cluster."""
    monkeypatch.setattr(layout, "tile", lambda *_: None)


@pytest.mark.parametrize("layer", list(filter(has_cell, LAYERS.values())))
def test_cells_step_by_step(emulated, no_tile, layer):
    n = 16 if layer is ms.GORU else 20
    x = torch.randn(6, 3, 3)
    layer = calm(layer(3, n))
    assert_fused_equals_eager(layer, x)
    assert_fused_equals_eager(layer, x, ms.detach(layer(x)[1]))
    assert_fused_equals_eager(Packed(layer, torch.tensor([2, 6, 4])), x)
    assert_fused_equals_eager(layer, x[:1])
    assert set(emulated) == {"cells_step_forward", "cells_step_backward"}


@pytest.mark.parametrize("nonlinearity", ["relu", "identity", "modrelu"])
def test_nonlinearities_step_by_step(emulated, no_tile, nonlinearity):
    check(ms.RNN(3, 20, nonlinearity=nonlinearity, bidirectional=True), emulated, "cells_step")


@pytest.mark.parametrize("layer", [ms.RNN, ms.LSTM, ms.GRU])
def test_cells_wider_than_a_cluster(emulated, layer):
    check(layer(3, 520), emulated, "cells_step", T=3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["RNN", "LSTM", "GORU", "RAC", "RelRNN", "MemRNN", "MemLSTM", "SAB"])
def test_weights_of_half_precision(emulated, name, dtype):
    """In bfloat16 or, where there is no such kernel, in float32, and then rounded: never by the eager loop."""
    layer = calm(LAYERS[name](3, 16)).to(dtype)
    x = torch.randn(6, 2, 3).to(dtype)
    output, state = layer(x)
    output.sum().backward()
    assert len(emulated) == 2
    assert output.dtype is dtype
    assert all(tensor.dtype is dtype for tensor in leaves(state) if tensor.is_floating_point())
    with kernels.backend("eager"):
        truth, _ = layer.float()(x.float())
    assert (output.float() - truth).norm() < 8 * torch.finfo(dtype).eps * truth.norm()


def test_gru_equals_torch(emulated):
    ours = ms.GRU(3, 12, num_layers=2, bidirectional=True)
    theirs = torch.nn.GRU(3, 12, num_layers=2, bidirectional=True)
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(7, 2, 3)
    h0 = torch.randn(4, 2, 12)
    outer = torch.randn(7, 2, 24)
    found = []
    for layer in (ours, theirs):
        output, h_n = layer(x, h0)
        grads = torch.autograd.grad((output * outer).sum() + h_n.sum(), list(layer.parameters()))
        found.append([output, h_n, *grads])
    assert set(emulated) == {"cells_forward", "cells_backward"}
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_gru_without_bias(emulated):
    check(ms.GRU(3, 20, bias=False), emulated, "cells")
