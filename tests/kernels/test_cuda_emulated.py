"""The CUDA kernels, run on the CPU by emulated.h in place of the CPU kernels, against the eager layers."""

from __future__ import annotations

import shutil

import emulator
import hostile_numbers
import pytest
import torch
from emulator import carried, check
from fused_truth import Packed, assert_fused_equals_eager, calm

import mnemoscope as ms
from mnemoscope import kernels
from mnemoscope.kernels import _fused
from mnemoscope.kernels._cuda import layout, screened, screened_steps
from mnemoscope.layers import LAYERS

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="the emulation is compiled by g++")

EMULATED = emulator.LIMITS


@pytest.fixture(autouse=True)
def emulated(monkeypatch):
    """Layers on CPU tensors run the CUDA kernels; the names of those that ran."""
    return emulator.replace_cpu_kernels(monkeypatch)


@pytest.mark.parametrize(
    ("buffer", "relevant", "options"),
    [(3, 2, {}), (0, 3, {"mix": "mean"}), (3, 3, {"decay": 0.7, "refresh": True, "output": "s"})],
)
def test_screening_chooses_the_same_states(emulated, buffer, relevant, options):
    layer = calm(ms.RelRNN(3, 20, buffer=buffer, relevant=relevant, **options))
    check(layer, emulated, "screened", T=3 * (buffer + relevant), state=carried(layer, emulated))


def test_an_odd_number_of_slots_per_lane(emulated):
    check(ms.RelRNN(3, 20, buffer=10, relevant=10), emulated, "screened", T=25, B=1)


@pytest.mark.parametrize(
    ("layer", "n", "buffer", "relevant", "options"),
    [  # more than the lanes of a warp: two or three slots a lane, on one block and over a cluster
        (ms.RelRNN, 20, 15, 18, {}),
        (ms.RelRNN, 20, 0, 40, {"mix": "mean"}),
        (ms.RelRNN, 20, 40, 0, {"refresh": True, "decay": 0.7}),
        (ms.RelRNN, 20, 30, 40, {"output": "s", "decay": 0.7}),
        (ms.RelLSTM, 65, 18, 15, {}),
    ],
)
@pytest.mark.parametrize("by_step", [False, True])
def test_more_slots_than_lanes(emulated, monkeypatch, layer, n, buffer, relevant, options, by_step):
    if by_step:
        monkeypatch.setattr(screened, "supports", lambda *_: False)
    layer = calm(layer(3, n, buffer=buffer, relevant=relevant, **options))
    state = carried(layer, emulated, T=buffer + relevant // 2)
    check(layer, emulated, "screened_step" if by_step else "screened", T=2 * (buffer + relevant) // 3 + 3, state=state)


@pytest.mark.parametrize("by_step", [False, True])
def test_scores_of_more_slots_than_lanes_are_compared_with_each_other(emulated, monkeypatch, by_step):
    """The softmax subtracts the largest of all: less that of a lane's first slot, exponentials are out of range."""
    if by_step:
        monkeypatch.setattr(screened, "supports", lambda *_: False)
    layer = calm(ms.RelRNN(3, 20, buffer=40, relevant=0))
    with torch.no_grad():
        layer.weight_score_l0 *= 5000
    check(layer, emulated, "screened_step" if by_step else "screened", T=60)


@pytest.mark.parametrize("by_step", [False, True])
def test_every_slot_is_empty_past_a_length(emulated, monkeypatch, by_step):
    """The naive loop reads these slots in a double backward pass."""
    if by_step:
        monkeypatch.setattr(screened, "supports", lambda *_: False)
    module, saved = screened_steps if by_step else screened, []
    forward = module.forward

    def kept(run, *rest, **more):
        run.slots.fill_(7)
        saved.append((run.slots, run.attention))
        return forward(run, *rest, **more)

    monkeypatch.setattr(module, "forward", kept)
    packed = Packed(calm(ms.RelRNN(3, 20, buffer=20, relevant=20)), torch.tensor([30, 45]))
    assert_fused_equals_eager(packed, 2 * torch.randn(45, 2, 3))
    slots, attention = saved[0]
    empty = -(torch.arange(45)[:, None] >= torch.tensor([45, 30])).int()  # the longest comes first
    assert torch.equal(slots.amax(-1).clamp(max=0), empty)
    assert torch.equal(attention.sum(-1) < 0.5, empty.bool())


@pytest.fixture
def one_multiprocessor(monkeypatch):
    """A device so small that sequences share a cluster."""
    limits = EMULATED._replace(multiprocessors=1)
    monkeypatch.setattr(layout, "limits", lambda device: limits)


@pytest.mark.parametrize(
    ("layer", "n", "B", "options"),
    [  # the last cluster is not full, but for a batch of 2: then two lanes have the same unit of a sequence
        (ms.RelRNN, 20, 9, {"buffer": 3, "relevant": 2}),
        (ms.RelRNN, 100, 5, {"buffer": 0, "relevant": 3, "mix": "mean"}),
        (ms.RelRNN, 20, 9, {"buffer": 3, "relevant": 0, "nonlinearity": "modrelu"}),
        (ms.RelLSTM, 100, 9, {"buffer": 2, "relevant": 3, "refresh": True}),
        (ms.RelLSTM, 20, 2, {"buffer": 3, "relevant": 2}),
    ],
)
def test_sequences_that_share_a_cluster(emulated, one_multiprocessor, layer, n, B, options):
    check(layer(3, n, **options), emulated, "screened_batch", T=7, B=B)


@pytest.mark.parametrize("layer", [ms.RelRNN, ms.RelLSTM])
def test_sequences_of_several_lengths_share_a_cluster(emulated, one_multiprocessor, layer):
    packed = Packed(calm(layer(3, 20, buffer=2, relevant=2)), torch.tensor([1, 5, 3, 4, 2]))
    assert_fused_equals_eager(packed, torch.randn(6, 5, 3))
    assert set(emulated) == {"screened_batch_forward", "screened_batch_backward"}


@pytest.mark.parametrize("layer", [ms.RelRNN, ms.RelLSTM])
def test_sequences_that_share_a_cluster_go_on_from_a_state(emulated, one_multiprocessor, layer):
    layer = layer(3, 20, buffer=3, relevant=3)
    state = ms.detach(layer(2 * torch.randn(5, 5, 3))[1])
    emulated.clear()
    check(layer, emulated, "screened_batch", T=6, B=5, state=state)


def test_fewer_sequences_share_a_cluster_where_shared_memory_is_short(emulated, monkeypatch):
    limits = EMULATED._replace(multiprocessors=1, shared_floats=12_500)
    monkeypatch.setattr(layout, "limits", lambda device: limits)
    layer = ms.RelRNN(3, 20, buffer=5, relevant=4)
    tile = layout.require_tile(3, 20, torch.device("cpu"))
    chosen = [
        screened._batch_tile(tile, 5, 9, floats, limits).sequences
        for floats in (screened.batch_forward_floats, screened._BACKWARD_FLOATS[True])
    ]
    assert chosen == [4, 2]  # of the four lanes of a unit, two have the same sequence
    check(layer, emulated, "screened_batch", T=6, B=5)


@pytest.mark.parametrize("B", [4, 8])  # as many sequences, in a cluster with eight lanes to a unit
def test_sequences_share_a_cluster_of_many_blocks(emulated, monkeypatch, B):
    limits = EMULATED._replace(clusters=(8,), multiprocessors=1)
    monkeypatch.setattr(layout, "limits", lambda device: limits)
    check(ms.RelRNN(3, 200, buffer=1, relevant=1), emulated, "screened_batch", T=2, B=B)


def test_sequences_share_a_cluster_where_that_is_faster():
    h200 = layout.Limits(clusters=(1, 2, 4, 8, 16), multiprocessors=132, shared_floats=227 * 256)

    def sequences(lstm, n, batch):
        tile = layout.fewest_blocks(screened.rows_per_unit(lstm), n, h200.clusters)
        chosen = screened._batch_tile(tile, batch, 20, screened.batch_forward_floats, h200)
        return 1 if chosen is None else chosen.sequences

    # The fastest of what was measured, by batch: 7 clusters of 16 blocks run at once, and 28 of 4.
    assert [sequences(False, 512, batch) for batch in (7, 8, 16, 32, 64)] == [1, 2, 4, 8, 4]
    assert [sequences(False, 256, batch) for batch in (28, 32, 64, 128, 256)] == [1, 2, 4, 4, 4]
    assert [sequences(False, 128, batch) for batch in (128, 160, 512)] == [1, 2, 2]
    assert [sequences(True, 256, batch) for batch in (14, 16, 64)] == [1, 2, 8]


@pytest.mark.parametrize(("layer", "B"), [(ms.RelRNN, 2), (ms.RelRNN, 8), (ms.RelLSTM, 2)])
def test_few_sequences_are_spread_over_more_blocks(emulated, monkeypatch, layer, B):
    limits = EMULATED._replace(multiprocessors=16)
    monkeypatch.setattr(layout, "limits", lambda device: limits)
    layer = calm(layer(3, 70, buffer=2, relevant=2, output="s" if layer is ms.RelLSTM else "h"))
    narrow = layout.require_tile(screened.rows_per_unit(isinstance(layer, ms.RelLSTM)), 70, torch.device("cpu"))
    assert layout.spread_tile(narrow, B, limits).cluster_blocks == (4 if B == 2 else 2) > narrow.cluster_blocks
    check(layer, emulated, "screened", T=9, B=B)


def test_screened_lstm_over_a_cluster(emulated):
    check(ms.RelLSTM(3, 65, buffer=3, relevant=2), emulated, "screened", T=7, B=1)


@pytest.fixture
def no_clusters(monkeypatch):
    """No layer fits a cluster: screened attention runs step by step."""
    monkeypatch.setattr(screened, "supports", lambda *_: False)


@pytest.mark.parametrize(
    ("layer", "options"),
    [
        (ms.RelRNN, {"buffer": 3, "relevant": 2}),
        (ms.RelRNN, {"buffer": 0, "relevant": 3, "mix": "mean", "nonlinearity": "modrelu"}),
        (ms.RelLSTM, {"buffer": 3, "relevant": 3, "decay": 0.7, "refresh": True, "output": "s"}),
        (ms.RelRNN, {"buffer": 0, "relevant": 0}),
    ],
)
def test_screening_step_by_step(emulated, no_clusters, layer, options):
    layer = calm(layer(3, 20, **options))
    steps = 3 * (layer.buffer + layer.relevant) + 2
    check(layer, emulated, "screened_step", T=steps, state=carried(layer, emulated))
    emulated.clear()
    check(layer, emulated, "screened_step", T=steps)


@pytest.mark.parametrize("layer", [ms.RelRNN, ms.RelLSTM])
def test_screening_step_by_step_of_padded_rows(emulated, no_clusters, layer):
    packed = Packed(calm(layer(3, 8, buffer=2, relevant=2, bidirectional=True)), torch.tensor([2, 6, 4]))
    assert_fused_equals_eager(packed, torch.randn(6, 3, 3))
    assert set(emulated) == {"screened_step_forward", "screened_step_backward"}


def total_gradient(layer, x):
    """The gradient of every state, by whatever reads it."""
    with kernels.recording() as runs:
        output, _ = layer(x)
    (run,) = runs
    found = torch.autograd.grad(output.square().sum(), run.inputs, allow_unused=True, materialize_grads=True)
    return run.total_gradient(*found)


@pytest.mark.parametrize("name", ["RelRNN", "RelLSTM"])
def test_total_gradients_of_states_step_by_step(emulated, monkeypatch, name):
    """A second backward pass, with another cell, reads what the first one's cell saved."""
    layer, x = LAYERS[name](3, 20, buffer=2, relevant=2), torch.randn(7, 2, 3)
    by_clusters = total_gradient(layer, x)
    monkeypatch.setattr(screened, "supports", lambda *_: False)
    emulated.clear()
    torch.testing.assert_close(total_gradient(layer, x), by_clusters)
    assert "screened_step_backward" in emulated


@pytest.mark.parametrize("layer", [ms.RelRNN, ms.RelLSTM])
def test_screening_step_by_step_over_a_cluster(emulated, no_clusters, monkeypatch, layer):
    monkeypatch.setattr(screened_steps, "_LEAST_UNITS", 8)
    assert screened_steps.choose_layout(37, 2, 5, torch.device("cpu")).cluster_blocks == 2
    layer = calm(layer(3, 37, buffer=3, relevant=2, output="s"))
    check(layer, emulated, "screened_step", T=9, state=carried(layer, emulated))


@pytest.mark.parametrize("options", [{}, {"output": "s"}])
def test_gradients_that_do_not_stay_in_the_cache(emulated, no_clusters, monkeypatch, options):
    monkeypatch.setattr(screened_steps, "_CACHED_BYTES", 0)
    layer = calm(ms.RelLSTM(3, 20, buffer=3, relevant=2, **options))
    check(layer, emulated, "screened_step", T=9, state=carried(layer, emulated))


@pytest.mark.parametrize("layer", [ms.RelRNN, ms.RelLSTM])
def test_more_units_than_a_block_has_threads(emulated, no_clusters, monkeypatch, layer):
    monkeypatch.setattr(screened_steps, "_MOST_THREADS", 128)
    monkeypatch.setattr(layout, "limits", lambda device: EMULATED._replace(clusters=(1,)))
    assert screened_steps.choose_layout(150, 1, 21, torch.device("cpu")).threads == 128
    check(layer(3, 150, buffer=10, relevant=11), emulated, "screened_step", T=24, B=1)


def test_a_layer_wider_than_one_cluster_holds(emulated):
    check(ms.RelLSTM(3, 520, buffer=2, relevant=1), emulated, "screened_step", T=4, B=1)


@pytest.mark.parametrize("detach_scores", [True, False])
@pytest.mark.parametrize("options", [{}, {"store_every": 1, "truncation": 3, "output": "h"}])
def test_backtracking(emulated, options, detach_scores):
    layer = calm(ms.SAB(3, 20, top=3, detach_scores=detach_scores, **options))
    check(layer, emulated, "sab", T=14, state=carried(layer, emulated, T=5))


@pytest.mark.parametrize("layer", [ms.RNN, ms.LSTM, ms.GRU, ms.GORU, ms.RAC, ms.RelRNN, ms.MemRNN, ms.MemLSTM, ms.SAB])
def test_packed_sequences_in_both_directions(emulated, layer):
    packed = Packed(calm(layer(3, 8, bidirectional=True)), torch.tensor([2, 6, 4]))
    assert_fused_equals_eager(packed, torch.randn(6, 3, 3))
    assert emulated


@pytest.mark.parametrize("name", ["RelRNN", "SAB"])
def test_numbers_out_of_range_are_brought_into_range(emulated, name, monkeypatch):
    hostile_numbers.unchecked(monkeypatch)
    layer = hostile_numbers.layers()[name]
    for clock in (-5, 2**63 - 1):
        hostile_numbers.check_clock(layer, clock)
    for length in (-1, 10**6):
        hostile_numbers.check_lengths(layer, length)
    hostile_numbers.check_saved_slots(layer, seed=0)
    assert emulated


@pytest.mark.parametrize(
    ("fixture", "family"), [("one_multiprocessor", "screened_batch"), ("no_clusters", "screened_step")]
)
def test_slots_out_of_range_shared_or_by_step(emulated, fixture, family, request):
    request.getfixturevalue(fixture)
    hostile_numbers.check_saved_slots(hostile_numbers.layers()["RelRNN"], seed=0)
    assert set(emulated) == {f"{family}_forward", f"{family}_backward"}


@pytest.mark.parametrize("layer", [ms.RNN, ms.LSTM, ms.GRU, ms.GORU, ms.RelRNN, ms.RelLSTM])
def test_a_single_step_from_zero(emulated, layer):
    assert_fused_equals_eager(calm(layer(3, 16)), torch.randn(1, 2, 3))
    assert emulated


@pytest.mark.parametrize("layer", [ms.RNN, ms.LSTM, ms.GRU, ms.GORU, ms.RelRNN, ms.RelLSTM])
def test_the_gradient_of_a_gradient_from_zero(emulated, layer):
    layer = calm(layer(3, 8))
    x = torch.randn(4, 2, 3, requires_grad=True)
    found = []
    for backend in ("auto", "eager"):
        with kernels.backend(backend):
            (first,) = torch.autograd.grad(layer(x)[0].square().sum(), x, create_graph=True)
        found.append(torch.autograd.grad(first.square().sum(), [x, *layer.parameters()]))
    assert emulated
    for ours, eager in zip(*found, strict=True):
        torch.testing.assert_close(ours, eager, rtol=1e-4, atol=1e-5)


def test_carried_states_stay_as_they_are(emulated):
    layer = calm(ms.RelRNN(3, 20, buffer=2, relevant=3))
    state = carried(layer, emulated, T=9)
    _, after = layer(torch.randn(1, 2, 3), state)
    old, new = state.memory.origin, after.memory.origin
    same = (new[..., :, None] == old[..., None, :]) & (new >= 0)[..., None]  # the slots of one state, after and before
    assert same.sum() >= 2 * 4  # of two sequences, all but the state that left
    for name in ("values", "keys"):
        stored = getattr(after.memory, name)[..., :, None, :].expand(*same.shape, -1)[same]
        given = getattr(state.memory, name)[..., None, :, :].expand(*same.shape, -1)[same]
        assert torch.equal(stored, given)


@pytest.mark.parametrize("layer", [ms.RNN, ms.LSTM, ms.GRU, ms.RelRNN])
def test_the_two_biases_have_gradients_of_their_own(emulated, layer):
    layer = layer(3, 16)
    layer(torch.randn(5, 2, 3))[0].sum().backward()
    kept = layer.bias_hh_l0.grad.clone()
    assert kept.any()
    layer.bias_ih_l0.grad.zero_()  # as an optimizer may write into it
    assert torch.equal(layer.bias_hh_l0.grad, kept)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", ["RNN", "LSTM", "GRU", "RelRNN", "RelLSTM"])
def test_the_kernel_adds_the_biases_of_the_inputs(name, bias, monkeypatch):
    """torch's product with a bias takes the host three times as long as one without."""
    monkeypatch.setattr(kernels.Projection, "project", None)  # with the biases: nobody may call it
    assert_fused_equals_eager(calm(getattr(ms, name)(3, 20, bias=bias)), torch.randn(5, 2, 3))


@pytest.mark.parametrize("name", ["RNN", "LSTM", "GRU"])
def test_the_kernel_gives_the_last_state(name, monkeypatch):
    """It has memory of its own, and first and second derivatives as the last output has them."""
    monkeypatch.setattr(_fused, "last_valid_state", None)  # which would copy it: nobody may call it
    layer, x = getattr(ms, name)(3, 20), torch.randn(4, 2, 3, requires_grad=True)
    weights = [x, *layer.parameters()]

    def last(output, state):
        return state[0] if isinstance(state, tuple) else state

    output, state = layer(x)
    h = last(output, state)
    assert torch.equal(h[0], output[-1])
    assert h.data_ptr() != output[-1].data_ptr()
    alone = torch.autograd.grad(h.square().sum(), weights, retain_graph=True)
    both = torch.autograd.grad(h.square().sum() + output.sin().sum(), weights)
    first = torch.autograd.grad(last(*layer(x)).square().sum(), weights, create_graph=True)
    second = torch.autograd.grad(sum(g.square().sum() for g in first), weights)

    output, _ = layer(x)
    loss = output[-1].square().sum()
    torch.testing.assert_close(alone, torch.autograd.grad(loss, weights, retain_graph=True))
    torch.testing.assert_close(both, torch.autograd.grad(loss + output.sin().sum(), weights))
    first = torch.autograd.grad(layer(x)[0][-1].square().sum(), weights, create_graph=True)
    torch.testing.assert_close(second, torch.autograd.grad(sum(g.square().sum() for g in first), weights))


class NoGradient(torch.autograd.Function):
    """Says that its input has no gradient."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return None


@pytest.mark.parametrize("name", ["RNN", "LSTM", "GRU", "RelRNN"])
def test_states_that_receive_no_gradient(emulated, name):
    layer, x = getattr(ms, name)(3, 20), torch.randn(4, 2, 3, requires_grad=True)
    output, _ = layer(x)
    (found,) = torch.autograd.grad(NoGradient.apply(output).sum() + x.sum(), x)
    assert torch.equal(found, torch.ones_like(x))
