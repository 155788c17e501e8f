"""The CUDA kernels of full attention, run on the CPU by emulated.h, against the eager layers."""

from __future__ import annotations

import shutil

import emulator
import pytest
import torch
from emulator import carried, check
from fused_truth import Packed, assert_fused_equals_eager, calm, opposed

import mnemoscope as ms
from mnemoscope.kernels._cuda import full_attention, layout

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="the emulation is compiled by g++")

EMULATED = emulator.LIMITS


@pytest.fixture(autouse=True)
def emulated(monkeypatch):
    """Layers on CPU tensors run the CUDA kernels; the names of those that ran."""
    return emulator.replace_cpu_kernels(monkeypatch)


@pytest.mark.parametrize("layer", [ms.MemRNN, ms.MemLSTM])
def test_attention_over_the_whole_past(emulated, layer):
    layer = calm(layer(3, 20))
    check(layer, emulated, "full_attention", state=carried(layer, emulated))


@pytest.mark.parametrize("layer", [ms.RelRNN, ms.MemRNN])
def test_queries_and_keys_of_any_size(emulated, layer):
    # float32 has lost some digits of a small sum of large numbers.
    assert_fused_equals_eager(opposed(calm(layer(3, 20))), torch.randn(9, 2, 3), tolerance=1e-3)
    assert len(emulated) == 2


@pytest.mark.parametrize("resident", [0, 1, 2])
def test_a_past_that_shared_memory_holds_in_part(emulated, monkeypatch, resident):
    """A block's warps have a group of four rows each, and then another: 64 rows, of 16,384 floats, at a time."""
    limits = EMULATED._replace(multiprocessors=1, clusters=(1,), shared_floats=10_000 + 16_384 * resident)
    monkeypatch.setattr(layout, "limits", lambda device: limits)
    clusters = full_attention.choose_clusters(False, 10, 1, torch.device("cpu"))
    assert (clusters.forward_resident(), clusters.backward_resident()) == (resident, resident)
    layer = calm(ms.MemRNN(3, 10))
    check(layer, emulated, "full_attention", T=68, B=1, state=carried(layer, emulated, T=66, B=1))


@pytest.mark.parametrize("largest", [1.0, 60.0, 240.0])
def test_queries_and_keys_with_and_without_a_power(emulated, largest):
    """Of queries and keys that cancel: a prescaled z of 2.9 times these numbers has a power 2^z up to 126."""
    layer = calm(ms.MemRNN(3, 20))
    with torch.no_grad():
        layer.weight_query_l0.copy_(largest * torch.eye(20))
        layer.weight_key_l0.copy_(-1.9 * layer.weight_query_l0)
    state = carried(layer, emulated)
    assert_fused_equals_eager(layer, torch.randn(7, 2, 3), state, tolerance=1e-3)


def test_a_query_without_a_power(emulated):
    """Its keys have one: they are a hundredth of it."""
    layer = calm(ms.MemRNN(3, 20))
    with torch.no_grad():
        layer.weight_query_l0.copy_(60 * torch.eye(20))
        layer.weight_key_l0.copy_(0.6 * torch.eye(20))
    assert_fused_equals_eager(layer, torch.randn(7, 2, 3), tolerance=1e-3)


def test_queries_beyond_all_numbers(emulated):
    """An infinite query, by rows of its group that are none yet: all gradients were NaN."""
    layer = calm(ms.MemRNN(3, 20))
    with torch.no_grad():
        layer.weight_query_l0.copy_(3e38 * torch.eye(20))
    output, _ = layer(torch.randn(2, 2, 3))
    output.sum().backward()
    assert all(bool(parameter.grad.isfinite().all()) for parameter in layer.parameters())
    assert len(emulated) == 2


def test_columns_of_several_chunks(emulated, monkeypatch):
    """One block makes the columns of 32 states at a time of more than 128 units, of 64 otherwise.

    The first run has three chunks, and 33 carried states in two; of the second, one sequence ends a step behind its
    first chunk.
    """
    one_block = EMULATED._replace(clusters=(1,), multiprocessors=1)
    monkeypatch.setattr(layout, "limits", lambda device: one_block)
    chunks = [full_attention.choose_clusters(False, n, 1, torch.device("cpu")).column_chunk for n in (129, 6)]
    assert chunks == [32, 64]
    layer = calm(ms.MemLSTM(3, 129))
    check(layer, emulated, "full_attention", T=66, state=carried(layer, emulated, T=33))
    packed = Packed(calm(ms.MemRNN(3, 6)), torch.tensor([65, 67]))
    assert_fused_equals_eager(packed, torch.randn(67, 2, 3))
