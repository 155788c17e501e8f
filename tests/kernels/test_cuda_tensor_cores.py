"""The bfloat16 kernels of screened attention, run on the CPU by emulated.h, against the eager layers in float64."""

from __future__ import annotations

import copy
import shutil

import emulator
import hostile_numbers
import pytest
import torch
from fused_truth import Packed, calm, errors_of, relative

import mnemoscope as ms
from mnemoscope import kernels
from mnemoscope.kernels import _operators as op
from mnemoscope.kernels._cuda import attentive, layout, screened, tensor_tiles

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="the emulation is compiled by g++")

KERNELS = {"screened_tensor_forward", "screened_tensor_backward"}
HOPPER = layout.Limits(clusters=(1, 2, 4, 8, 16), multiprocessors=132, shared_floats=227 * 256)


@pytest.fixture(autouse=True)
def emulated(monkeypatch):
    """Layers on CPU tensors run the CUDA kernels; the names of those that ran."""
    return emulator.replace_cpu_kernels(monkeypatch)


@pytest.fixture
def use(monkeypatch):
    """Have every bfloat16 layer run on the tensor cores, of a device of these cluster sizes and multiprocessors."""

    def choose(multiprocessors, clusters=(1, 2, 4), warp_units=(32, 16, 8)):
        limits = layout.Limits(clusters, multiprocessors, HOPPER.shared_floats)
        tiles = tensor_tiles._tiles
        monkeypatch.setattr(layout, "limits", lambda device: limits)
        monkeypatch.setattr(
            tensor_tiles, "_tiles", lambda *sizes: (tile for tile in tiles(*sizes) if tile.warp_units in warp_units)
        )
        tensor_tiles.choose_tile.cache_clear()
        monkeypatch.setattr(attentive, "_runs_on_tensor_cores", lambda *shape: shape[3] is torch.bfloat16)

    yield choose
    tensor_tiles.choose_tile.cache_clear()


# Rounded once, numbers are off by 2e-3 in the mean. The gradients of attention's queries and scores are sums of
# differences between states, and lose a digit.
TOLERANCE, OF_DIFFERENCES = 1e-2, 5e-2


def check(layer, ran, T, B, state=None):
    """Compare outputs, states and all gradients; `layer` is a layer or one that is packed."""
    ran.clear()
    errors = errors_of(layer, torch.randn(T, B, 3).bfloat16(), state)
    assert set(ran) == KERNELS
    for name, error in errors.items():
        tolerance = OF_DIFFERENCES if "query" in name or "score" in name else TOLERANCE
        assert error < tolerance, f"{name}: {error:.1e}"


@pytest.mark.parametrize(
    ("layer", "n", "B", "options", "warp_units"),
    [  # 1, 2 and 4 lanes for a unit of a sequence
        (ms.RelRNN, 20, 3, {"buffer": 3, "relevant": 2}, 32),
        (ms.RelRNN, 100, 9, {"buffer": 0, "relevant": 3, "mix": "mean", "output": "s"}, 16),
        (ms.RelLSTM, 40, 5, {"buffer": 2, "relevant": 3, "refresh": True}, 8),
    ],
)
def test_layers(emulated, use, layer, n, B, options, warp_units):
    use(4, warp_units=(warp_units,))
    check(calm(layer(3, n, **options)).bfloat16(), emulated, 7, B)


@pytest.mark.parametrize(
    ("layer", "n", "B", "T", "clusters", "sequences"),
    [
        (ms.RelRNN, 200, 5, 6, (8,), 5),
        (ms.RelRNN, 300, 1, 4, (8,), 1),
        pytest.param(ms.RelRNN, 512, 10, 2, (16,), 10, marks=pytest.mark.slow),  # two tiles of sequences
        pytest.param(ms.RelLSTM, 200, 5, 3, (8,), 5, marks=pytest.mark.slow),
        (ms.RelRNN, 48, 64, 3, (4,), 16),  # four clusters, one after the other
    ],
)
def test_sizes(emulated, use, layer, n, B, T, clusters, sequences):
    use(clusters[0], clusters)
    layer = calm(layer(3, n, buffer=3, relevant=3)).bfloat16()
    cell = "lstm" if isinstance(layer, ms.RelLSTM) else "rnn"
    options = op.AttentionOptions(cell, "tanh", 3, 3, "sum", 1.0, False)
    forward, _ = screened.tensor_tiles(options, n, B, torch.device("cpu"), has_ds=False)
    assert forward.sequences == sequences
    check(layer, emulated, T, B)


@pytest.mark.parametrize("layer", [ms.RelRNN, ms.RelLSTM])
def test_sequences_of_several_lengths(emulated, use, layer):
    use(2)
    packed = Packed(calm(layer(3, 20, buffer=2, relevant=2)).bfloat16(), torch.tensor([1, 5, 3, 4, 2, 6, 1]))
    check(packed, emulated, 6, 7)


@pytest.mark.parametrize("layer", [ms.RelRNN, ms.RelLSTM])
def test_a_carried_state(emulated, use, layer):
    use(4)
    layer = calm(layer(3, 40, buffer=3, relevant=3)).bfloat16()
    state = ms.detach(layer(torch.randn(5, 5, 3).bfloat16())[1])
    check(layer, emulated, 6, 5, state)


@pytest.mark.parametrize("nonlinearity", ["identity", "modrelu"])
def test_nonlinearities(emulated, use, nonlinearity):
    use(2)
    layer = calm(ms.RelRNN(3, 20, nonlinearity=nonlinearity, buffer=2, relevant=2)).bfloat16()
    check(layer, emulated, 5, 3)


def test_two_runs_are_bitwise_equal(use):
    """The emulator runs threads, and delivers what blocks send, in an order that is drawn at random."""
    use(4)
    layer, x = ms.RelRNN(3, 100, buffer=3, relevant=2).bfloat16(), torch.randn(4, 5, 3).bfloat16()

    def run():
        output, _ = layer(x)
        return [output, *torch.autograd.grad(output.float().square().sum(), list(layer.parameters()))]

    for a, b in zip(run(), run(), strict=True):
        assert torch.equal(a, b)


def test_slots_out_of_range(emulated, use):
    use(2)
    layer = copy.deepcopy(hostile_numbers.layers()["RelRNN"]).bfloat16()
    hostile_numbers.check_saved_slots(layer, seed=0, dtype=torch.bfloat16)
    assert set(emulated) == KERNELS


def test_autocast_is_bfloat16(emulated, use, monkeypatch):
    use(2)
    monkeypatch.setattr(kernels, "operator_may_project", lambda *_: False)  # as it is under autocast
    layer, x = ms.RelRNN(3, 20, buffer=2, relevant=2), torch.randn(5, 3, 3)
    truth = layer(x)[0]
    emulated.clear()
    with torch.autocast("cpu", torch.bfloat16):
        output, _ = layer(x)
    output.float().sum().backward()
    assert set(emulated) == KERNELS
    assert relative(output, truth) < 1e-2
    assert layer.weight_hh_l0.grad.dtype == torch.float32


def test_float32_never_runs_on_the_tensor_cores(monkeypatch):
    monkeypatch.setattr(layout, "limits", lambda device: HOPPER)
    device = torch.device("cpu")
    options = op.AttentionOptions("rnn", "tanh", 10, 10, "sum", 1.0, False)
    for n, B in ((64, 8), (512, 64), (512, 1000), (1024, 64)):
        assert not attentive._runs_on_tensor_cores((9, B, n), options, device, torch.float32)


def test_bfloat16_runs_on_the_tensor_cores_where_that_is_faster(monkeypatch):
    monkeypatch.setattr(layout, "limits", lambda device: HOPPER)

    def runs(cell, n, B, buffer=10):
        options = op.AttentionOptions(cell, "tanh", buffer, 10, "sum", 1.0, False)
        return attentive._runs_on_tensor_cores((9, B, n), options, torch.device("cpu"), torch.bfloat16)

    assert runs("rnn", 512, 64)
    assert runs("rnn", 512, 1000)
    assert runs("lstm", 256, 64)
    assert runs("lstm", 512, 64)  # which no cluster holds in float32
    assert not runs("rnn", 512, 4)  # each sequence has a cluster of its own
    assert not runs("rnn", 1024, 64)  # which no cluster holds at all
    assert not runs("rnn", 512, 64, buffer=-1)  # attention over the whole past


@pytest.mark.parametrize("rows", [3, 6])
@pytest.mark.parametrize("n", [1, 64, 100, 200, 300, 512])
@pytest.mark.parametrize("batch", [1, 5, 64, 1000])
def test_a_tile_fits_its_device(rows, n, batch):
    for transposed in (False, True):
        fields = 2 * rows + 2 if transposed else rows + 1
        tile = tensor_tiles.choose_tile(rows, n, batch, 20, fields, HOPPER, transposed=transposed)
        assert n <= tile.padded_n < n + 16 * tile.cluster_blocks + 16
        assert tile.shared_floats(fields, 20) <= HOPPER.shared_floats
        assert tile.threads <= 1024
        assert tile.clusters(batch) * tile.sequences >= batch
        packed = tile.pack(torch.ones(rows * n, n))
        assert (
            packed.numel() == tile.weights_per_thread * 32 * tile.row_groups * tile.column_groups * tile.cluster_blocks
        )
        assert packed.view(torch.bfloat16).sum() == rows * n * n


def test_no_tile_without_clusters():
    one_block = HOPPER._replace(clusters=(1,))
    assert tensor_tiles.choose_tile(3, 64, 8, 20, 4, one_block, transposed=False) is None


def test_eager_layers_are_what_they_were(emulated):
    """No kernel at all: the switch is the user's."""
    with kernels.backend("eager"):
        ms.RelRNN(3, 20).bfloat16()(torch.randn(3, 2, 3).bfloat16())
    assert not emulated
