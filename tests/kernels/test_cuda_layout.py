"""Which sizes the CUDA kernels support, and that Python and the kernels agree on layouts; needs no GPU."""

from __future__ import annotations

import pytest
import torch

from mnemoscope.errors import MnemoscopeError
from mnemoscope.kernels import _operators as op
from mnemoscope.kernels._cuda import compiler, full_attention, layout, screened, supports

HOPPER = layout.Limits(clusters=(1, 2, 4, 8, 16), multiprocessors=132, shared_floats=227 * 256)
AMPERE = layout.Limits(clusters=(1,), multiprocessors=108, shared_floats=163 * 256)
NONE = layout.Limits(clusters=(), multiprocessors=80, shared_floats=96 * 256)
DEVICE = torch.device("cuda", 0)


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
@pytest.mark.parametrize("bf16", [False, True])
def test_a_tile_holds_every_weight_once(on, rows, n, bf16):
    on(HOPPER)
    tile = layout.tile(rows, n, DEVICE, bf16_weights=bf16)
    if tile is None:
        assert rows > 3
        assert n > 256
        assert not bf16
        return
    assert n <= tile.padded_n
    weights_per_thread = tile.units_per_lane * rows * 16
    assert weights_per_thread <= (384 if bf16 else 192)
    assert weights_per_thread * tile.threads * tile.cluster_blocks == rows * tile.padded_n**2
    assert tile.lanes_per_unit in (1, 2, 4, 8, 16, 32)


def test_devices_without_clusters_keep_what_fits_one_block(on):
    on(AMPERE)
    assert supports("attentive", n=128, dtype=torch.float32, device=DEVICE, buffer=10, relevant=10)
    assert chosen(True, 128, 1, 20) is None
    assert full_attention.choose_clusters(False, 128, 4, DEVICE).cluster_blocks == 1


def test_a_device_too_old_has_none(on):
    on(NONE)
    assert not supports("rnn", n=8, dtype=torch.float32, device=DEVICE)
    assert not supports("attentive", n=8, dtype=torch.float32, device=DEVICE)


def chosen(lstm, n, B, slots, dtype=torch.float32):
    """The tile for a batch of B sequences, on the CPU's tensors."""
    options = op.AttentionOptions("lstm" if lstm else "rnn", "tanh", slots, 0, "sum", 1.0, False)
    return screened.choose_tile(options, torch.empty(1, B, n), dtype)


@pytest.mark.parametrize("lstm", [False, True])
@pytest.mark.parametrize("n", [1, 128, 200, 512])
@pytest.mark.parametrize("B", [1, 1000])
def test_slots_fit_shared_memory(on, lstm, n, B):
    on(HOPPER)
    tile = chosen(lstm, n, B, 32)
    assert (tile is None) == (layout.tile(6 if lstm else 3, n, DEVICE) is None)
    if tile is not None:
        assert screened.backward_floats(tile, 32, has_ds=True) <= HOPPER.shared_floats
    assert chosen(lstm, n, B, 33) is None


def test_a_cluster_runs_several_sequences_only_where_it_saves_rounds(on):
    on(HOPPER)
    for B, expected in {1: 1, 8: 1, 9: 2, 16: 2, 32: 4, 64: 4}.items():  # eight clusters of 16 blocks at once
        assert chosen(False, 512, B, 20).sequences == expected
    for B, expected in {64: 1, 132: 1, 133: 2, 264: 2}.items():  # 132 of one block
        assert chosen(False, 128, B, 20).sequences == expected


def test_weights_in_bfloat16_need_half_of_the_blocks(on):
    on(HOPPER)
    assert chosen(False, 512, 1, 20).cluster_blocks == 16
    assert chosen(False, 512, 1, 20, torch.bfloat16).cluster_blocks == 8
    assert chosen(True, 512, 1, 20) is None
    assert chosen(True, 512, 1, 20, torch.bfloat16).cluster_blocks == 16


def test_few_sequences_are_spread_over_more_blocks(on):
    on(HOPPER)
    blocks = {1: 8, 16: 8, 33: 4, 66: 2, 67: 1, 500: 1}
    for batch, expected in blocks.items():
        assert full_attention.choose_clusters(False, 128, batch, DEVICE).cluster_blocks == expected


def test_the_whole_past_has_no_place_in_bfloat16(on):
    on(HOPPER)
    assert not supports("attentive", n=64, dtype=torch.bfloat16, device=DEVICE)
    assert supports("attentive", n=64, dtype=torch.bfloat16, device=DEVICE, buffer=5, relevant=5)


def test_a_torch_without_the_compiler_is_named(monkeypatch):
    monkeypatch.delattr("torch.cuda._utils._nvrtc_compile", raising=False)
    with pytest.raises(MnemoscopeError, match="no runtime compiler"):
        compiler.build("cells_forward", {"CLUSTER_BLOCKS": 1, "SHARED_FLOATS": 0})
    assert not supports("rnn", n=8, dtype=torch.float32, device=DEVICE)
