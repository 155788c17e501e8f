"""Layers on a CUDA device: the fused kernels against the readable loop in float64, and what else they promise."""

from __future__ import annotations

import copy

import pytest
import torch
from fused_truth import calm, disagreement, opposed, relative

import mnemoscope as ms
from mnemoscope import kernels
from mnemoscope.recurrence import leaves

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device; torch sees none here"),
]
DEVICE = "cuda"
MOST = 2e-5


@pytest.fixture(autouse=True)
def full_precision(monkeypatch):
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)
    torch.manual_seed(0)


@pytest.fixture
def launched(monkeypatch):
    """The names of the kernels that ran."""
    from mnemoscope.kernels._cuda import compiler

    names = []
    run = compiler.launch

    def launch(name, *rest, **named):
        names.append(name)
        run(name, *rest, **named)

    monkeypatch.setattr(compiler, "launch", launch)
    return names


def check(layer, launched, T, B, state=None, most=MOST):
    x = 2 * torch.randn(T, B, layer.input_size, device=DEVICE)
    errors = disagreement(calm(layer), x, state)
    assert launched, "the layer took its eager path"
    assert max(errors.values()) < most, errors


SIZES = [(1, 3, 1), (7, 20, 3), (64, 1, 5), (100, 50, 4), (128, 40, 140), (200, 15, 3), (256, 9, 2)]


@pytest.mark.parametrize(("n", "T", "B"), [*SIZES, (511, 8, 2)])
@pytest.mark.parametrize("layer", [ms.RNN, ms.OrthRNN, ms.RAC, ms.RelRNN, ms.MemRNN])
def test_one_gate(launched, layer, n, T, B):
    T = max(T, 2) if layer is ms.RAC else T  # it starts from W_H^+ 1: its first step does not depend on W_H
    check(layer(5, n, device=DEVICE), launched, T, B)


@pytest.mark.parametrize(("n", "T", "B"), SIZES)
@pytest.mark.parametrize("layer", [ms.LSTM, ms.RelLSTM, ms.MemLSTM, ms.SAB])
def test_four_gates(launched, layer, n, T, B):
    check(layer(5, n, device=DEVICE), launched, T, B)


@pytest.mark.parametrize(
    "options", [{}, {"top": 1}, {"store_every": 1, "top": 32}, {"truncation": 3, "output": "both"}]
)
def test_backtracking(launched, options):
    check(ms.SAB(5, 48, device=DEVICE, **options), launched, 60, 3)


@pytest.mark.parametrize("n", [2, 64, 128, 256, 512])
def test_goru(launched, n):
    check(ms.GORU(5, n, device=DEVICE), launched, 12, 3)


@pytest.mark.parametrize("n", [1, 64, 128, 200])
def test_exprnn(launched, n):
    check(ms.ExpRNN(5, n, device=DEVICE), launched, 12, 3)


@pytest.mark.parametrize("nonlinearity", ["tanh", "relu", "identity", "modrelu"])
@pytest.mark.parametrize("layer", [ms.RNN, ms.RelRNN, ms.MemRNN])
def test_nonlinearities(launched, layer, nonlinearity):
    check(layer(5, 40, nonlinearity=nonlinearity, device=DEVICE), launched, 12, 3)


@pytest.mark.parametrize(
    ("buffer", "relevant", "options"),
    [(0, 0, {}), (0, 4, {}), (4, 0, {}), (1, 1, {}), (10, 10, {}), (20, 12, {}), (32, 0, {}), (3, 3, {"mix": "mean"}),
     (5, 5, {"decay": 0.8}), (5, 5, {"refresh": True, "output": "s"})],
)  # fmt: skip
@pytest.mark.parametrize("layer", [ms.RelRNN, ms.RelLSTM])
def test_screening(launched, layer, buffer, relevant, options):
    check(layer(5, 48, buffer=buffer, relevant=relevant, device=DEVICE, **options), launched, 60, 3)


@pytest.mark.parametrize("layer", [ms.RNN, ms.LSTM, ms.RelRNN, ms.RelLSTM, ms.MemRNN, ms.MemLSTM, ms.SAB])
def test_a_carried_state(launched, layer):
    layer = calm(layer(5, 48, device=DEVICE))
    state = ms.detach(layer(2 * torch.randn(25, 3, 5, device=DEVICE))[1])
    check(layer, launched, 30, 3, state)


@pytest.mark.parametrize("layer", [ms.LSTM, ms.RAC, ms.RelRNN, ms.RelLSTM, ms.MemRNN, ms.SAB])
def test_sequences_of_different_lengths_both_ways(launched, layer):
    layer = calm(layer(5, 24, num_layers=2, bidirectional=True, device=DEVICE))
    x, lengths = torch.randn(9, 4, 5, device=DEVICE), torch.tensor([9, 1, 4, 7])
    packed = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, enforce_sorted=False)
    fused, state = layer(packed)
    assert launched
    with kernels.backend("eager"):
        truth, true_state = copy.deepcopy(layer).double()(packed.to(torch.float64))
    assert relative(fused.data, truth.data) < MOST
    for a, b in zip(leaves(state), leaves(true_state), strict=True):
        assert relative(a, b) < MOST if a.is_floating_point() else torch.equal(a, b)


@pytest.mark.parametrize("layer", [ms.LSTM, ms.RelRNN, ms.RelLSTM, ms.MemRNN])
def test_the_same_twice_bit_for_bit(layer):
    layer = layer(5, 128, device=DEVICE)
    x, outer = torch.randn(50, 40, 5, device=DEVICE), torch.randn(50, 40, 128, device=DEVICE)

    def gradients():
        output, _ = layer(x)
        return [output, *torch.autograd.grad(output, list(layer.parameters()), outer)]

    for a, b in zip(gradients(), gradients(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("layer", [ms.RNN, ms.LSTM, ms.RelRNN, ms.RelLSTM])
def test_bfloat16_stays_near_float32(launched, layer):
    layer = calm(layer(5, 64, device=DEVICE))
    x = torch.randn(20, 3, 5, device=DEVICE)
    truth, _ = layer(x)
    launched.clear()
    output, _ = layer.bfloat16()(x.bfloat16())
    output.float().sum().backward()
    assert launched
    assert output.dtype == torch.bfloat16
    assert relative(output, truth) < 5e-2


@pytest.mark.parametrize("layer", [ms.RelRNN, ms.RelLSTM, ms.MemRNN, ms.MemLSTM])
def test_queries_and_keys_of_any_size(launched, layer):
    """float32 has lost some digits of a small sum of large numbers."""
    check(opposed(layer(5, 24, device=DEVICE)), launched, 9, 3, most=1e-3)


def test_five_thousand_steps(launched):
    check(ms.RelRNN(5, 128, device=DEVICE), launched, 5000, 2)


def test_what_does_not_fit_is_refused():
    from mnemoscope.kernels._cuda import supports

    fits = dict(n=128, dtype=torch.float32, device=torch.device(DEVICE))
    assert supports("attentive", **fits, buffer=10, relevant=10)
    assert not supports("attentive", **fits, buffer=20, relevant=20)
    assert not supports("rnn", **{**fits, "n": 1025})
    assert not supports("rnn", **{**fits, "dtype": torch.float64})
    assert not supports("elman", **fits)


def test_a_size_that_no_kernel_has_takes_the_eager_path(launched):
    output, _ = ms.RelRNN(3, 16, buffer=30, relevant=10, device=DEVICE)(torch.randn(4, 2, 3, device=DEVICE))
    assert output.shape == (4, 2, 16)
    assert not launched
