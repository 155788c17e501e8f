"""Inputs projected by the kernel, beside inputs projected before it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import mnemoscope as ms
from mnemoscope import kernels
from mnemoscope.kernels._cpu.library import available
from mnemoscope.kernels._operator import OPERATORS
from mnemoscope.torch_internals import dispatches_plainly

pytestmark = pytest.mark.skipif(not available(torch.float32), reason="no compiled CPU kernels here")
NAMES = ["RNN", "LSTM", "MemRNN", "MemLSTM", "RelRNN", "RelLSTM"]


def gradients(layer: nn.Module, x: torch.Tensor, lengths: list[int] | None, wanted: bool) -> list[torch.Tensor]:
    x = x.clone().requires_grad_(wanted)
    fed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor(lengths), enforce_sorted=False) if lengths else x
    y, state = layer(fed)
    y = y.data if lengths else y
    h = state[0] if isinstance(state, tuple) else state
    asked = [x, *layer.parameters()] if wanted else list(layer.parameters())
    found = torch.autograd.grad(y.square().sum() + h.sum(), asked)
    return [y.detach(), *found]


def agree(a: list[torch.Tensor], b: list[torch.Tensor], within: float) -> bool:
    return all((p - q).norm() <= within * q.norm() + 1e-13 for p, q in zip(a, b, strict=True))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("options", [{}, {"bias": False}, {"num_layers": 2, "bidirectional": True}], ids=str)
@pytest.mark.parametrize("lengths", [None, [4, 11, 1, 7, 11]], ids=["whole", "packed"])
@pytest.mark.parametrize("wanted", [True, False], ids=["by x", "not by x"])
@pytest.mark.parametrize("features", [3, 19], ids=["narrower than the state", "wider"])
def test_projection_in_the_kernel_gives_the_same_results(name, options, lengths, wanted, features, monkeypatch) -> None:
    torch.manual_seed(0)
    layer = getattr(ms, name)(features, 7, dtype=torch.float64, **options)
    x = torch.randn(11, 5, features, dtype=torch.float64)
    assert kernels.should_fuse_projection(x, layer.weight_hh_l0, None)
    fused = gradients(layer, x, lengths, wanted)
    monkeypatch.setattr(kernels, "should_fuse_projection", lambda *_: False)
    assert agree(fused, gradients(layer, x, lengths, wanted), 1e-12)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("bias", [True, False], ids=["with a bias", "without"])
@pytest.mark.parametrize("batch_first", [False, True], ids=["time first", "batch first"])
@pytest.mark.parametrize("wanted", [True, False], ids=["by x", "not by x"])
def test_weights_apart_are_weights_in_one_matrix(name, bias, batch_first, wanted, monkeypatch) -> None:
    """To the bit: the loop packs the same numbers. 40 inputs reach from one panel of columns into the next."""
    torch.manual_seed(0)
    layer = getattr(ms, name)(40, 41, bias=bias, batch_first=batch_first)
    x = torch.randn(9, 5, 40)
    packed = []
    pack_projection = kernels.pack_projection
    monkeypatch.setattr(kernels, "pack_projection", lambda *args: packed.append(args) or pack_projection(*args))
    apart = gradients(layer, x, None, wanted)
    assert not packed
    monkeypatch.setattr(kernels, "loop_may_project", lambda *_: False)
    in_one = gradients(layer, x, None, wanted)
    assert packed
    assert all(torch.equal(a, b) for a, b in zip(apart, in_one, strict=True))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("frozen", [["weight_ih_l0", "bias_ih_l0"], ["bias_hh_l0"], ["weight_hh_l0"]], ids=str)
def test_frozen_weights_of_a_projection_in_the_kernel(name, frozen) -> None:
    torch.manual_seed(0)
    layer, x = getattr(ms, name)(3, 5, dtype=torch.float64), torch.randn(6, 2, 3, dtype=torch.float64)
    layer(x)[0].square().sum().backward()
    expected = {key: weight.grad for key, weight in layer.named_parameters()}
    layer.zero_grad()
    for key in frozen:
        getattr(layer, key).requires_grad_(False)
    layer(x)[0].square().sum().backward()
    for key, weight in layer.named_parameters():
        if key in frozen:
            assert weight.grad is None
        else:
            torch.testing.assert_close(weight.grad, expected[key], rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("name", ["RelRNN", "MemLSTM"])
@pytest.mark.parametrize("bias", [True, False], ids=["with a bias", "without"])
def test_a_projection_in_the_kernel_of_a_run_whose_exponentials_overflow(name, bias, monkeypatch) -> None:
    torch.manual_seed(0)
    layer = getattr(ms, name)(3, 7, bias=bias, dtype=torch.float64)
    with torch.no_grad():
        layer.weight_query_l0.mul_(1e4)
        layer.weight_key_l0.copy_(-layer.weight_query_l0)
    x = torch.randn(6, 2, 3, dtype=torch.float64)
    apart = gradients(layer, x, None, True)
    monkeypatch.setattr(kernels, "loop_may_project", lambda *_: False)
    assert agree(apart, gradients(layer, x, None, True), 1e-12)


@pytest.mark.parametrize(
    ("features", "of_b_ih", "of_b_hh"), [(3, 20, None), (3, 20, 10), (0, None, None), (0, 20, 20)], ids=str
)
def test_projections_that_a_loop_does_not_read_where_they_are(features, of_b_ih, of_b_hh) -> None:
    """With one bias, or the second of some gates only, or nothing to project: a loop would read past their ends."""
    torch.manual_seed(0)
    x, U, V = (torch.randn(*shape, dtype=torch.float64) for shape in ((4, 2, features), (20, features), (20, 5)))
    biases = [None if size is None else torch.randn(size, dtype=torch.float64) for size in (of_b_ih, of_b_hh)]
    leaves = [leaf.requires_grad_() for leaf in (x, U, V, *biases) if leaf is not None]
    projection = kernels.Projection(x, U, *biases)
    found = []
    for xp in (projection, projection.project()):
        h, h_T, c_T = kernels.lstm(torch.float64, xp, V, None, None, None)
        grads = torch.autograd.grad(h.square().sum() + h_T.sum() + c_T.sum(), leaves)
        found.append([h.detach(), h_T.detach(), *grads])
    assert agree(*found, 1e-12)


@pytest.mark.parametrize("name", ["RNN", "LSTM", "RelRNN"])
def test_the_last_state_of_a_projection_in_the_kernel_is_a_copy(name) -> None:
    layer, x = getattr(ms, name)(3, 5), torch.randn(4, 2, 3)
    with torch.no_grad():
        output, state = layer(x)
        h = state[0] if isinstance(state, tuple) else state
        before = h.clone()
        assert torch.equal(h[0], output[-1])
        output.zero_()
    assert torch.equal(h, before)


@pytest.mark.parametrize("kind", [nn.LSTM, ms.LSTM, ms.RelRNN])
@pytest.mark.parametrize("written", ["x", "weight_ih_l0", "weight_hh_l0"])
def test_what_the_backward_pass_reads_may_not_be_written_to(kind, written) -> None:
    """An error as in torch, not a wrong gradient."""
    layer, x = kind(3, 5), torch.randn(4, 2, 3)
    y = layer(x)[0]
    with torch.no_grad():
        (x if written == "x" else getattr(layer, written)).mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@pytest.mark.parametrize("name", NAMES)
def test_weight_gradients_over_more_rows_than_are_gathered(name, monkeypatch) -> None:
    """150 steps of 5 rows: more than the rows that are gathered before they are summed, and not a multiple of them."""
    torch.manual_seed(0)
    layer = getattr(ms, name)(2, 20, dtype=torch.float64)
    x = torch.randn(150, 5, 2, dtype=torch.float64)
    fused = gradients(layer, x, None, True)
    monkeypatch.setattr(kernels, "should_fuse_projection", lambda *_: False)
    assert agree(fused, gradients(layer, x, None, True), 1e-11)


@pytest.mark.parametrize("name", ["RNN", "LSTM", "RelRNN"])
def test_second_derivative(name) -> None:
    torch.manual_seed(0)
    layer = getattr(ms, name)(2, 3, dtype=torch.float64)
    x = torch.randn(4, 2, 2, dtype=torch.float64, requires_grad=True)
    weight = layer.weight_ih_l0
    assert torch.autograd.gradgradcheck(lambda x, _: layer(x)[0], (x, weight))


@pytest.fixture
def by_operator(monkeypatch):
    """Operators project their inputs, as on a GPU."""
    monkeypatch.setattr(kernels, "should_fuse_projection", lambda *_: False)
    monkeypatch.setattr(kernels, "operator_may_project", lambda *_: dispatches_plainly())
    for operator in OPERATORS.values():  # without the CPU's own way of it
        monkeypatch.setattr(operator, "_projecting_backends", set())
        monkeypatch.setattr(operator, "with_projection", {})


@pytest.mark.parametrize("name", [*NAMES, "GRU"])
@pytest.mark.parametrize("options", [{}, {"bias": False}, {"num_layers": 2, "bidirectional": True}], ids=str)
@pytest.mark.parametrize("wanted", [True, False], ids=["by x", "not by x"])
def test_projection_by_the_operator_gives_the_same_results(name, options, wanted, by_operator, monkeypatch) -> None:
    torch.manual_seed(0)
    layer = getattr(ms, name)(3, 7, batch_first=True, dtype=torch.float64, **options)
    x = torch.randn(5, 11, 3, dtype=torch.float64)
    found = gradients(layer, x, None, wanted)
    monkeypatch.setattr(kernels, "operator_may_project", lambda *_: False)
    assert agree(found, gradients(layer, x, None, wanted), 1e-12)


@pytest.mark.parametrize("name", ["RNN", "LSTM", "GRU", "RelRNN"])
def test_second_derivative_through_a_projection_by_the_operator(name, by_operator) -> None:
    torch.manual_seed(0)
    layer = getattr(ms, name)(2, 3, dtype=torch.float64)
    x = torch.randn(4, 2, 2, dtype=torch.float64, requires_grad=True)
    inputs = (x, layer.weight_ih_l0, layer.bias_ih_l0, layer.weight_hh_l0)
    assert torch.autograd.gradgradcheck(lambda x, *_: layer(x)[0], inputs)


def test_a_projection_by_the_operator_is_not_kept_for_the_backward_pass(by_operator) -> None:
    """What is saved has the inputs' width, not that of their projection."""
    layer, x = ms.RNN(3, 20, nonlinearity="relu"), torch.randn(50, 4, 3)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.numel()) or t, lambda t: t):
        layer(x)
    assert sorted(kept)[-2:] == [x.numel(), 50 * 4 * 20]  # x and h


def test_a_frozen_projection_by_the_operator(by_operator) -> None:
    layer, x = ms.LSTM(3, 5), torch.randn(4, 2, 3)
    for name in ("weight_ih_l0", "bias_ih_l0"):
        getattr(layer, name).requires_grad_(False)
    layer(x)[0].sum().backward()
    assert layer.weight_ih_l0.grad is None
    assert layer.bias_ih_l0.grad is None
    assert layer.bias_hh_l0.grad.abs().sum() > 0
    assert layer.weight_hh_l0.grad.abs().sum() > 0


def test_a_projection_by_the_operator_under_transforms_and_profiles(by_operator) -> None:
    """What torch's dispatcher must see is projected before the operator."""
    layer, x = ms.LSTM(3, 5), torch.randn(4, 2, 3)
    expected = layer(x)[0]
    with torch.profiler.profile():
        torch.testing.assert_close(layer(x)[0], expected)
    with torch.no_grad():
        torch.testing.assert_close(layer(x)[0], expected)
    with torch.inference_mode():
        torch.testing.assert_close(layer(x)[0], expected)


def test_wide_inputs_and_large_layers_are_projected_before_the_kernel() -> None:
    x, V = torch.randn(4, 2, 10), torch.randn(64, 16)
    assert kernels.should_fuse_projection(x, V, None)
    assert kernels.should_fuse_projection(torch.randn(4, 2, 17), V, None)  # wider than the state, and in cache
    assert not kernels.should_fuse_projection(x.to("meta"), V, None)
    with kernels.recording():
        assert not kernels.should_fuse_projection(x, V, None)  # the projections' gradients are what is asked for


def test_gradients_are_the_same_bits_twice() -> None:
    torch.manual_seed(0)
    layer, x = ms.RelLSTM(3, 20), torch.randn(90, 50, 3)
    first, second = gradients(layer, x, None, True), gradients(layer, x, None, True)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize(
    ("width", "features", "batch", "threads", "fused"),
    [
        (1024, 8, 1, 1, True),  # 16 MB
        (1024, 8, 1, 4, False),  # four threads would each sum such a gradient
        (256, 8, 1, 4, True),
        (128, 2000, 1, 1, False),  # U alone would be read for every step of the one row
        (128, 2000, 8, 1, True),
        (128, 2000, 8, 4, False),  # two rows a thread
        (4096, 8, 1, 1, False),
    ],
)
def test_weights_that_do_not_stay_in_cache(width, features, batch, threads, fused, monkeypatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    x, V = torch.empty(2, batch, features), torch.empty(4 * width, width)
    assert kernels.should_fuse_projection(x, V, None) is fused
