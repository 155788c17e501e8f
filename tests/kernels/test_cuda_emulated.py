"""The CUDA kernels, run on the CPU by emulated.h in place of the CPU's own loops, against the readable layers."""

from __future__ import annotations

import shutil
import warnings
from types import SimpleNamespace

import emulator
import pytest
import torch
from fused_truth import calm, disagreement

import mnemoscope as ms
from mnemoscope.kernels import cuda, ops, selection
from mnemoscope.kernels.cuda import compiler, layout

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="the emulation is compiled by g++")

EMULATED = layout.Limits(clusters=(1, 2, 4), multiprocessors=4, shared_floats=227 * 256)


@pytest.fixture(autouse=True)
def emulated(monkeypatch):
    """Layers on CPU tensors run the CUDA kernels; yields the names of those that ran."""
    ran = []

    def launch(name, defines, blocks, threads, shared_floats, args):
        ran.append(name)
        emulator.launch(name, defines, blocks, threads, shared_floats, args)

    monkeypatch.setattr(compiler, "launch", launch)
    monkeypatch.setattr(layout, "limits", lambda device: EMULATED)
    monkeypatch.setattr(torch.cuda, "_compile_kernel", None, raising=False)
    monkeypatch.setattr(selection, "_loops", lambda device: SimpleNamespace(supports=cuda.supports))
    library = torch.library.Library(ops.NAMESPACE, "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for module in (cuda.plain, cuda.attentive):
            for name in ops.SCHEMAS:
                if hasattr(module, name):
                    library.impl(name, getattr(module, name), "CPU", allow_override=True)
    yield ran
    library._destroy()


def check(layer, ran, kernels, T=9, B=2, state=None, most=5e-6):
    torch.manual_seed(1)
    errors = disagreement(calm(layer), torch.randn(T, B, layer.input_size), state)
    assert set(ran) == set(kernels)
    assert max(errors.values()) < most, errors


@pytest.mark.parametrize("nonlinearity", ["tanh", "relu", "identity", "modrelu"])
def test_rnn(emulated, nonlinearity):
    torch.manual_seed(0)
    check(ms.RNN(3, 20, nonlinearity=nonlinearity), emulated, ["cells_forward", "cells_backward"])


@pytest.mark.parametrize("layer", [ms.LSTM, ms.RAC])
def test_cells_of_a_size_that_fills_no_tile(emulated, layer):
    torch.manual_seed(0)
    check(layer(3, 70), emulated, ["cells_forward", "cells_backward"], T=4)


def test_goru(emulated):
    torch.manual_seed(0)
    check(ms.GORU(3, 32), emulated, ["cells_forward", "cells_backward"], T=5)


def test_a_cluster_shares_one_sequence(emulated):
    torch.manual_seed(0)
    check(ms.RNN(3, 130), emulated, ["cells_forward", "cells_backward"], T=3, B=1)


@pytest.mark.parametrize(
    ("buffer", "relevant", "options"),
    [(3, 2, {}), (10, 10, {}), (0, 3, {}), (2, 0, {"mix": "mean"}), (3, 3, {"decay": 0.7, "refresh": True, "output": "s"})],
)
def test_screening_chooses_the_same_states(emulated, buffer, relevant, options):
    torch.manual_seed(0)
    layer = ms.RelRNN(3, 20, buffer=buffer, relevant=relevant, **options)
    check(layer, emulated, ["screened_forward", "screened_backward"], T=3 * (buffer + relevant))


def test_screened_lstm_over_a_cluster_with_a_carried_state(emulated):
    torch.manual_seed(0)
    layer = calm(ms.RelLSTM(3, 65, buffer=3, relevant=2))
    state = layer(torch.randn(8, 2, 3))[1]
    emulated.clear()
    check(layer, emulated, ["screened_forward", "screened_backward"], T=8, state=ms.recurrence.detach(state))


@pytest.mark.parametrize("layer", [ms.MemRNN, ms.MemLSTM])
def test_attention_over_the_whole_past(emulated, layer):
    torch.manual_seed(0)
    layer = calm(layer(3, 20))
    state = layer(torch.randn(3, 2, 3))[1]
    emulated.clear()
    check(layer, emulated, ["past_forward", "past_backward"], T=7, state=ms.recurrence.detach(state), most=1e-5)


def test_a_long_past_is_dealt_out_to_all_warps(emulated):
    torch.manual_seed(0)
    check(ms.MemRNN(3, 10), emulated, ["past_forward", "past_backward"], T=70, B=1, most=1e-5)


@pytest.mark.parametrize("layer", [ms.LSTM, ms.RelRNN, ms.MemRNN])
def test_sequences_of_different_lengths(emulated, layer):
    torch.manual_seed(0)
    layer = calm(layer(3, 12))
    x = torch.nn.utils.rnn.pack_padded_sequence(torch.randn(6, 3, 3), torch.tensor([2, 6, 4]), enforce_sorted=False)
    fused, state = layer(x)
    assert emulated
    with ms.kernels.backend("eager"):
        truth, true_state = layer(x)
    torch.testing.assert_close(fused.data, truth.data, rtol=1e-5, atol=1e-6)
    for a, b in zip(ms.recurrence.leaves(state), ms.recurrence.leaves(true_state), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
