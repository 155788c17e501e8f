"""Which sizes the CUDA kernels support, and that Python and the kernels agree on layouts; needs no GPU."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from mnemoscope import kernels
from mnemoscope.errors import MnemoscopeError
from mnemoscope.kernels import _operators as op
from mnemoscope.kernels._cuda import compiler, full_attention, layout, screened, screened_steps, supports

HOPPER = layout.Limits(clusters=(1, 2, 4, 8, 16), multiprocessors=132, shared_floats=227 * 256)
AMPERE = layout.Limits(clusters=(1,), multiprocessors=108, shared_floats=163 * 256)
NONE = layout.Limits(clusters=(), multiprocessors=80, shared_floats=96 * 256)
DEVICE = torch.device("cuda", 0)
LIMITS_OF = layout.limits


@pytest.fixture
def on(monkeypatch):
    monkeypatch.setattr("torch.cuda._utils._nvrtc_compile", len, raising=False)

    def use(limits):
        monkeypatch.setattr(layout, "limits", lambda device: limits)
        from mnemoscope.kernels._cuda import support

        support._fits.cache_clear()

    return use


@pytest.mark.parametrize("rows", [1, 3, 4, 6])
@pytest.mark.parametrize("n", [1, 63, 64, 65, 128, 129, 256, 257, 512])
def test_a_tile_holds_every_weight_once(on, rows, n):
    on(HOPPER)
    tile = layout.tile(rows, n, DEVICE)
    if tile is None:
        assert rows > 3
        assert n > 256
        return
    assert n <= tile.padded_n
    weights_per_thread = tile.units_per_lane * rows * 16
    assert weights_per_thread <= 192
    assert weights_per_thread * tile.threads * tile.cluster_blocks == rows * tile.padded_n**2
    assert tile.lanes_per_unit in (1, 2, 4, 8, 16, 32)


def test_devices_without_clusters_keep_what_fits_one_block(on):
    on(AMPERE)
    assert supports("attentive", n=128, dtype=torch.float32, device=DEVICE, buffer=10, relevant=10)
    assert not screened.supports(True, 128, 20, DEVICE)
    assert full_attention.choose_clusters(False, 128, 4, DEVICE).cluster_blocks == 1


def test_a_device_too_old_has_none(on):
    on(NONE)
    assert not supports("rnn", n=8, dtype=torch.float32, device=DEVICE)
    assert not supports("attentive", n=8, dtype=torch.float32, device=DEVICE)
    assert not supports("attentive", n=8, dtype=torch.float32, device=DEVICE, buffer=2, relevant=2)


def test_a_device_of_another_maker_has_none(on, monkeypatch):
    monkeypatch.setattr(torch.version, "hip", "6.4")
    found = LIMITS_OF.__wrapped__(DEVICE)
    on(found)
    assert found.clusters == ()
    assert kernels.ours_up_to(DEVICE) == 0
    assert kernels.cudnn_is_faster("lstm", 64, 16, DEVICE)  # of which `cudnn_dtype` says that there is no cuDNN
    assert not supports("attentive", n=8, dtype=torch.float32, device=DEVICE, buffer=2, relevant=2)


@pytest.mark.parametrize("lstm", [False, True])
@pytest.mark.parametrize("n", [1, 128, 200, 512])
def test_slots_fit_shared_memory(on, lstm, n):
    on(HOPPER)
    blocks = []
    for slots in range(129):
        tile = screened._tile(lstm, n, slots, HOPPER)
        assert (tile is None) == (not screened.supports(lstm, n, slots, DEVICE))
        if tile is not None:
            assert screened.backward_floats(tile, slots, has_ds=True) <= HOPPER.shared_floats
            blocks.append(tile.cluster_blocks)
    assert blocks == sorted(blocks)  # more blocks only where more slots need them
    assert len(set(blocks[:33])) <= 1  # 32 slots fit wherever the weights do
    assert not screened.supports(lstm, n, 129, DEVICE)


@pytest.mark.parametrize(("lstm", "n", "most"), [(False, 128, 128), (True, 128, 96), (False, 512, 40), (True, 256, 40)])
def test_many_slots_take_more_blocks(on, lstm, n, most):
    on(HOPPER)
    assert screened.supports(lstm, n, most, DEVICE)


def test_a_memory_is_laid_out_for_the_device_as_it_is(on):
    """Tests change the device: what was found for one must not be another's."""
    on(HOPPER)
    assert screened.supports(True, 128, 20, DEVICE)
    on(AMPERE)
    assert not screened.supports(True, 128, 20, DEVICE)


def test_few_sequences_are_spread_over_more_blocks(on):
    on(HOPPER)
    # At 16, 32, 64 and 128 the fastest, measured.
    blocks = {1: 4, 16: 4, 28: 4, 29: 2, 32: 2, 64: 2, 66: 2, 67: 1, 128: 1, 500: 1}
    for batch, expected in blocks.items():
        assert full_attention.choose_clusters(False, 128, batch, DEVICE).cluster_blocks == expected


@pytest.mark.parametrize(
    ("rows", "n", "blocks"),
    [  # by batch, the fastest that was measured
        (3, 64, {1: 1, 66: 1, 500: 1}),
        (3, 128, {1: 4, 28: 4, 29: 2, 66: 2, 67: 1, 500: 1}),
        (3, 256, {1: 8, 14: 8, 15: 4, 500: 4}),
        (3, 512, {1: 16, 500: 16}),
        (6, 128, {1: 4, 28: 4, 29: 2, 500: 2}),
        (6, 256, {1: 8, 500: 8}),
    ],
)
def test_few_sequences_of_screening_are_spread_over_more_blocks(on, rows, n, blocks):
    on(HOPPER)
    narrow = layout.tile(rows, n, DEVICE)
    for batch, expected in blocks.items():
        tile = layout.spread_tile(narrow, batch, HOPPER)
        assert tile.cluster_blocks == expected
        assert tile.units_per_lane * 16 * tile.threads * tile.cluster_blocks == tile.padded_n**2
        assert screened.backward_floats(tile, 32, has_ds=True) <= HOPPER.shared_floats
    assert layout.spread_tile(narrow, 1, HOPPER._replace(clusters=(narrow.cluster_blocks,))) == narrow


def test_the_units_of_few_wide_sequences_are_spread_over_more_blocks(on):
    on(HOPPER)
    blocks = {1: 8, 14: 8, 15: 4, 28: 4, 29: 2, 66: 2, 67: 1, 500: 1}
    for batch, expected in blocks.items():
        assert screened_steps.choose_layout(1024, batch, 20, DEVICE).cluster_blocks == expected
    assert screened_steps.choose_layout(513, 1, 20, DEVICE).cluster_blocks == 4
    on(AMPERE)
    assert screened_steps.choose_layout(1024, 1, 20, DEVICE).cluster_blocks == 1


@pytest.mark.parametrize(("cell", "rows", "gates"), [("rnn", 3, 0), ("lstm", 6, 5)])
def test_what_a_run_saves_is_known_before_it_runs(on, cell, rows, gates):
    """Compilers see the shapes of a run on CUDA: step by step, it keeps the products of every state and the queries."""
    on(HOPPER)
    options = op.AttentionOptions(cell, "tanh", 5, 5, "sum", 1.0, False)
    for n, kept in ((1024, rows + 1), (64, 0)):
        with FakeTensorMode():
            new = partial(torch.empty, device=DEVICE)
            V = new((1 if cell == "rnn" else 4) * n, n)
            weights = op.AttentionWeights(V, new(n, n), new(n, n), new(n), None)
            state = op.AttentionState(new(2, n), None if cell == "rnn" else new(2, n))
            memory = op.CarriedMemory(new(0), new(0), new(0), new(0), new(0))
            run = op.attentive_forward.allocate(new(3, 2, len(V)), weights, state, memory, options, None, True)
        assert run.activations.shape == (3, 2, (kept + gates) * n)


def test_the_whole_past_has_no_place_in_bfloat16(on):
    on(HOPPER)
    assert not supports("attentive", n=64, dtype=torch.bfloat16, device=DEVICE)
    assert supports("attentive", n=64, dtype=torch.bfloat16, device=DEVICE, buffer=5, relevant=5)


def test_a_torch_without_the_compiler_is_named(monkeypatch):
    monkeypatch.delattr("torch.cuda._utils._nvrtc_compile", raising=False)
    with pytest.raises(MnemoscopeError, match="no runtime compiler"):
        compiler.build("cells_forward", {"CLUSTER_BLOCKS": 1, "SHARED_FLOATS": 0})
    assert not supports("rnn", n=8, dtype=torch.float32, device=DEVICE)
