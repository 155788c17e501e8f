"""The CUDA kernels under the emulator, watched for races (races.h): loads and stores that no barrier puts in order."""

from __future__ import annotations

import shutil

import emulator
import pytest
import torch
from fused_truth import calm
from torch.nn.utils.rnn import pack_padded_sequence

import mnemoscope as ms
from mnemoscope.kernels._cuda import attentive, compiler, full_attention, layout, screened, screened_steps, tensor_tiles

needed = ("g++", "addr2line")
pytestmark = pytest.mark.skipif(not all(map(shutil.which, needed)), reason="the emulation is compiled by g++")


@pytest.fixture(autouse=True)
def watched(monkeypatch):
    """Layers on CPU tensors run the CUDA kernels, watched; the names of those that ran."""
    monkeypatch.setattr(emulator.Watch, "races", True)
    return emulator.replace_cpu_kernels(monkeypatch)


@pytest.fixture
def device(monkeypatch):
    """Choose the cluster sizes and the multiprocessors of the device."""

    def choose(clusters, multiprocessors):
        limits = emulator.LIMITS._replace(clusters=clusters, multiprocessors=multiprocessors)
        monkeypatch.setattr(layout, "limits", lambda _: limits)
        tensor_tiles.choose_tile.cache_clear()

    yield choose
    tensor_tiles.choose_tile.cache_clear()


def run(layer, T, B, lengths=None, state=None):
    """Both passes. A race raises KernelError."""
    x = torch.randn(T, B, 3, dtype=next(layer.parameters()).dtype, requires_grad=True)
    if lengths is not None:
        x = pack_padded_sequence(x, lengths, enforce_sorted=False)
    output, state = layer(x, state)
    (output if lengths is None else output.data).float().square().sum().backward()
    return ms.detach(state)


def of_family(name):
    return {f"{name}_forward", f"{name}_backward"}


slow = pytest.mark.slow  # a kernel takes seconds to compile and more to watch: `make test` does one of each family


# Sequences of one step, and of odd and even numbers of them.
@pytest.mark.parametrize("layer", [pytest.param(ms.RNN, marks=slow), ms.GRU])
def test_cells(watched, device, layer):
    device((4,), 4)
    run(layer(3, 70), 4, 3, [1, 3, 4])
    assert set(watched) == of_family("cells")


@pytest.mark.parametrize("clusters", [pytest.param((1,), marks=slow), (2,)])
def test_screening(watched, device, clusters):
    device(clusters, 64)
    layer = calm(ms.RelRNN(3, 20 if clusters == (1,) else 70, buffer=1, relevant=1))
    run(layer, 3, 2, [1, 3], run(layer, 3, 2))
    assert set(watched) == of_family("screened")


@pytest.mark.parametrize("by_step", [True, pytest.param(False, marks=slow)])
def test_more_slots_than_lanes(watched, device, monkeypatch, by_step):
    device((2,), 64)
    if by_step:
        monkeypatch.setattr(screened, "supports", lambda *_: False)
        monkeypatch.setattr(screened_steps, "_LEAST_UNITS", 8)
    layer = calm(ms.RelRNN(3, 70, buffer=1, relevant=34))
    run(layer, 3, 1, None, run(layer, 36, 1) if not by_step else None)
    assert set(watched) == of_family("screened_step" if by_step else "screened")


@pytest.mark.parametrize("clusters", [pytest.param((1,), marks=slow), (2,)])
def test_sequences_that_share_a_cluster(watched, device, clusters):
    device(clusters, 1)
    layer = calm(ms.RelRNN(3, 20 if clusters == (1,) else 70, buffer=1, relevant=1))
    run(layer, 3, 3, [3, 2, 1], run(layer, 3, 3))
    assert set(watched) == of_family("screened_batch")


def test_tensor_cores(watched, device, monkeypatch):
    device((2,), 4)
    monkeypatch.setattr(attentive, "_runs_on_tensor_cores", lambda *_: True)
    layer = calm(ms.RelRNN(3, 70, buffer=1, relevant=1)).bfloat16()
    run(layer, 3, 3, [3, 2, 1], run(layer, 3, 3))
    assert set(watched) == of_family("screened_tensor")


def test_screening_step_by_step(watched, device, monkeypatch):
    device((2,), 64)
    monkeypatch.setattr(screened, "supports", lambda *_: False)
    monkeypatch.setattr(screened_steps, "_LEAST_UNITS", 8)
    run(calm(ms.RelLSTM(3, 37, buffer=2, relevant=2, output="s")), 6, 2)
    assert set(watched) == of_family("screened_step")


def test_backtracking(watched, device):
    device((2,), 64)
    layer = calm(ms.SAB(3, 70, top=3, store_every=1, truncation=3, detach_scores=False))
    run(layer, 4, 1, None, run(layer, 5, 1))
    assert set(watched) == of_family("sab")


def test_attention_over_the_whole_past(watched, device):
    device((2,), 64)
    layer = calm(ms.MemLSTM(3, 10))
    run(layer, 3, 2, [1, 3], run(layer, 2, 2))
    assert set(watched) == of_family("full_attention")


@slow
def test_columns_of_two_chunks(device):
    device((2,), 64)
    assert full_attention.choose_clusters(False, 257, 1, torch.device("cpu")).column_chunk == 16
    run(calm(ms.MemRNN(3, 257)), 18, 1)


def changed(tmp_path, monkeypatch, file, old, new):
    """Compile the kernels from sources of which one line is another."""
    sources = shutil.copytree(compiler.FOLDER, tmp_path / "cuda")
    text = (sources / file).read_text()
    assert old in text
    (sources / file).write_text(text.replace(old, new))
    monkeypatch.setattr(emulator.Watch, "sources", sources)


RACE, EARLY = "a race", "a block may end"


@pytest.mark.parametrize(
    ("file", "old", "new", "found"),
    [
        pytest.param("cells_forward.cu", "shared_h + ((t + 1) & 1)", "shared_h + (t & 1)", RACE, id="one buffer"),
        pytest.param(
            "cells_backward.cu", "shared_dy + (t & 1)", "shared_dy + 0", RACE, id="one buffer, backward", marks=slow
        ),
        pytest.param("exchange.cuh", "now = next;", "", RACE, id="one barrier"),
        pytest.param("exchange.cuh", "odd ^= 1;", "", RACE, id="the parity of the first round", marks=slow),
        pytest.param(
            "tile.cuh", "UNIT_BYTES = 4 * PADDED_N", "UNIT_BYTES = 2 * PADDED_N", RACE, id="too few bytes", marks=slow
        ),
        pytest.param(
            "tile.cuh", "UNIT_BYTES = 4 * PADDED_N", "UNIT_BYTES = 8 * PADDED_N", "deadlock", id="too many", marks=slow
        ),
        pytest.param("exchange.cuh", "if (renews) expect_bytes(barrier, bytes);", "", "deadlock", id="no next round"),
        pytest.param("cells_forward.cu", "sync_cluster();", "", "a send before its barrier", id="no begin", marks=slow),
        pytest.param("cells_forward.cu", "        receive(", "if (t < 2) receive(", EARLY, id="no end", marks=slow),
    ],
)
def test_what_breaks_the_exchange_is_found(tmp_path, monkeypatch, device, file, old, new, found):
    changed(tmp_path, monkeypatch, file, old, new)
    device((4,), 4)
    with pytest.raises(emulator.KernelError, match=found):
        run(ms.RNN(3, 70), 3, 4)


@slow
@pytest.mark.parametrize(
    ("file", "old", "tensor_cores"),
    [
        ("screened_forward.cu", "sync_cluster();  // all have read it", False),
        ("screened_backward.cu", "sync_warp();  // the other lanes of the unit have added", False),
        ("attention.cuh", "part[0][0];\n    sync_block();", False),
        ("exchange.cuh", "sync_warp();", True),
        ("screened_tensor_forward.cu", "        sync_block();\n        if (!at.has_pair) continue;", True),
    ],
)
def test_a_barrier_that_is_missing_is_found(tmp_path, monkeypatch, device, file, old, tensor_cores):
    new = old.replace("sync_cluster();", "").replace("sync_block();", "").replace("sync_warp();", "")
    changed(tmp_path, monkeypatch, file, old, new)
    device((2,), 64)
    monkeypatch.setattr(attentive, "_runs_on_tensor_cores", lambda *_: tensor_cores)
    layer = calm(ms.RelRNN(3, 70, buffer=1, relevant=1)).to(torch.bfloat16 if tensor_cores else torch.float32)
    with pytest.raises(emulator.KernelError, match=RACE):
        run(layer, 2, 1, None, run(layer, 2, 1))


def test_a_block_that_overtakes_another_is_found(tmp_path, monkeypatch, device):
    changed(tmp_path, monkeypatch, "full_attention_forward.cu", "(t & 1) * CLUSTER_BLOCKS", "0 * CLUSTER_BLOCKS")
    device((2,), 64)
    with pytest.raises(emulator.KernelError, match=RACE):
        run(ms.MemRNN(3, 10), 3, 1)
