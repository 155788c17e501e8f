"""The memory of an attentive layer survives what users of nn.LSTM do with a state, and is never lost without a word."""

from __future__ import annotations

import copy
import gc
import pickle
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from table import BATCH, HIDDEN, INPUT, TIME
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

import mnemoscope
from mnemoscope.layers import AttentiveState, CarryingTensor, _carried, _memory_layer
from mnemoscope.recurrence import leaves, map_state

LAYERS = [mnemoscope.RelLSTM, mnemoscope.MemLSTM, mnemoscope.SAB, mnemoscope.RelRNN, mnemoscope.MemRNN]
every_layer = pytest.mark.parametrize("kind", LAYERS)


@pytest.fixture(autouse=True)
def _no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def make(kind: type, **options: Any) -> tuple[Any, Tensor]:
    torch.manual_seed(0)
    return kind(INPUT, HIDDEN, **options), torch.randn(TIME, BATCH, INPUT)


def each(state: Any, fn: Callable[[Tensor], Tensor]) -> Any:
    """The state as scripts rebuild it: fn of h, or of h and c, in a bare tuple."""
    return tuple(fn(t) for t in state) if isinstance(state, tuple) else fn(state)


def repackage_hidden(h: Any) -> Any:
    """PyTorch's word_language_model."""
    if isinstance(h, Tensor):
        return h.detach()
    return tuple(repackage_hidden(v) for v in h)


order = torch.tensor([0, 1, 2])
ones = torch.ones(1, BATCH, 1)
IDIOMS: dict[str, Callable[[Any], Any]] = {
    "repackage_hidden": repackage_hidden,
    "clone": lambda s: each(s, Tensor.clone),
    "torch.clone": lambda s: each(s, torch.clone),
    "list": lambda s: [t.detach() for t in s] if isinstance(s, tuple) else [s.detach()],
    "data": lambda s: each(s, lambda t: t.data),
    "to": lambda s: each(s, lambda t: t.to("cpu")),
    "to-like": lambda s: each(s, lambda t: t.to(torch.zeros(1))),
    "double-float": lambda s: each(s, lambda t: t.double().float()),
    "contiguous": lambda s: each(s, Tensor.contiguous),
    "requires_grad_": lambda s: each(s, lambda t: t.detach().requires_grad_()),
    "detach_": lambda s: each(s, lambda t: t.clone().detach_()),
    "slice": lambda s: each(s, lambda t: t[:, 0:BATCH]),
    "slice-all": lambda s: each(s, lambda t: t[:, :, :]),
    "list-index": lambda s: each(s, lambda t: t[:, [0, 1, 2], :]),
    "mask-index": lambda s: each(s, lambda t: t[:, torch.ones(BATCH, dtype=torch.bool)]),
    "index_select": lambda s: each(s, lambda t: t.index_select(1, order)),
    "index_select-keyword": lambda s: each(s, lambda t: torch.index_select(t, dim=-2, index=order)),
    "narrow": lambda s: each(s, lambda t: t.narrow(1, 0, BATCH)),
    "chunk-cat": lambda s: each(s, lambda t: torch.cat(t.chunk(BATCH, dim=1), 1)),
    "split-cat": lambda s: each(s, lambda t: torch.cat(t.split(1, 1), dim=1)),
    "repeat": lambda s: each(s, lambda t: t.repeat(1, 2, 1)[:, :BATCH]),
    "repeat_interleave": lambda s: each(s, lambda t: t.repeat_interleave(2, dim=1)[:, ::2]),
    "mask-times": lambda s: each(s, lambda t: ones * t),
    "times-mask": lambda s: each(s, lambda t: t * ones[0]),
    "deepcopy": lambda s: copy.deepcopy(repackage_hidden(s)),
    "deepcopy-elements": lambda s: each(copy.deepcopy(mnemoscope.detach(s)), Tensor.clone),
    "pickle": lambda s: pickle.loads(pickle.dumps(repackage_hidden(s))),
    "type-of-generator": lambda s: type(s)(t.detach() for t in s) if isinstance(s, tuple) else s,  # accelerate, FSDP1
    "type-of-list": lambda s: type(s)([t.detach() for t in s]) if isinstance(s, tuple) else s,  # Lightning
    "pytree": lambda s: pytree.tree_map(Tensor.clone, s),
}


@every_layer
@pytest.mark.parametrize("idiom", IDIOMS)
def test_memory_survives(kind: type, idiom: str) -> None:
    layer, x = make(kind, num_layers=2)
    _, state = layer(x)
    torch.testing.assert_close(layer(x, IDIOMS[idiom](state))[0], layer(x, state)[0])


@every_layer
def test_zeros_beside_a_state_are_sequences_that_begin(kind: type) -> None:
    """As fastai's AWD_LSTM adds rows when a larger batch comes: torch.cat([h, h.new_zeros(...)], dim=1)."""
    layer, x = make(kind, num_layers=2)
    state = layer(x[:, :2])[1]
    grown = each(state, lambda t: torch.cat([t, t.new_zeros(2, BATCH - 2, HIDDEN)], dim=1))
    found, _ = layer(x, grown)
    torch.testing.assert_close(found[:, :2], layer(x[:, :2], state)[0])
    torch.testing.assert_close(found[:, 2:], layer(x[:, 2:])[0])
    mixed = each(state, lambda t: torch.cat([t, torch.ones(2, BATCH - 2, HIDDEN)], dim=1))
    assert type(mixed[0] if isinstance(mixed, tuple) else mixed) is Tensor


@every_layer
def test_gradient_reaches_the_memory_through_an_index(kind: type) -> None:
    layer, x = make(kind)
    begun = x.clone().requires_grad_()
    state = layer(begun)[1]
    (expected,) = torch.autograd.grad(layer(x, state)[0].sum(), begun, retain_graph=True)
    (found,) = torch.autograd.grad(layer(x, each(state, lambda t: t[:, [0, 1, 2]]))[0].sum(), begun)
    torch.testing.assert_close(found, expected)


@every_layer
@pytest.mark.parametrize("how", ["mask", "in-place-mask", "rows", "where"])
def test_an_episode_begins_with_an_empty_memory(kind: type, how: str) -> None:
    """As sb3-contrib and CleanRL (mask * h) and others (h[:, done] = 0) restart the environments that are done."""
    layer, x = make(kind)
    layer.requires_grad_(False)
    state = layer(x)[1]
    kept = layer(x, state)[0]
    mask = torch.tensor([1.0, 0.0, 1.0]).view(1, BATCH, 1)
    parts = state if isinstance(state, tuple) else (state,)
    if how == "mask":
        state = each(state, lambda t: mask * t)
    for t in parts:
        if how == "in-place-mask":
            t *= mask
        elif how == "rows":
            t[:, [1]] = 0
        elif how == "where":
            t[:, mask[0, :, 0] == 0] = 0.0
    output, _ = layer(x, state)
    torch.testing.assert_close(output[:, [0, 2]], kept[:, [0, 2]])
    torch.testing.assert_close(output[:, [1]], layer(x[:, [1]])[0])


LOSSES: dict[str, Callable[[Any], Any]] = {
    "sum": lambda s: each(s, lambda t: t + 1),
    "transposed": lambda s: each(s, lambda t: t.transpose(0, 1).contiguous().transpose(0, 1)),
    "numpy": lambda s: each(s, lambda t: torch.from_numpy(t.detach().numpy().copy())),
    "stack": lambda s: each(s, lambda t: torch.stack([t])[0]),
}


@every_layer
@pytest.mark.parametrize("loss", LOSSES)
def test_a_lost_memory_is_reported_once(kind: type, loss: str) -> None:
    layer, x = make(kind)
    _, state = layer(x)
    with pytest.warns(UserWarning, match="without its memory") as seen:
        layer(x, LOSSES[loss](state))
    assert seen[0].filename == __file__  # the line that lost it
    layer(x, LOSSES[loss](state))  # once


class DeviceTensor(torch.Tensor):
    """A tensor that says it is on a GPU; reading its numbers there would make the host wait."""

    is_cuda = True

    def __bool__(self) -> bool:
        raise AssertionError("the host waits for the device")


class LaterCheck:
    """A check of a GPU's tensor: done when the test says so."""

    done = False

    def __init__(self, tensor: Tensor) -> None:
        self.nonzero = bool(tensor.as_subclass(Tensor).any())

    def is_done(self) -> bool:
        return self.done

    def found(self) -> bool:
        assert self.done
        return self.nonzero


@every_layer
def test_a_memory_lost_on_a_gpu_is_reported_later_and_nobody_waits(kind: type, monkeypatch) -> None:
    monkeypatch.setattr(_memory_layer, "NonzeroCheck", LaterCheck)
    monkeypatch.setattr(_memory_layer, "values_can_be_read", lambda tensor: True)
    layer = make(kind)[0]
    h = torch.randn(1, BATCH, HIDDEN).as_subclass(DeviceTensor)
    bare = (h,) * len(layer.state_names)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer._warn_of_lost_memory(tuple(torch.zeros_like(t) for t in bare))
        layer._warn_of_lost_memory(bare)  # the first is not done: nothing new is asked
        monkeypatch.setattr(LaterCheck, "done", True)
        layer._warn_of_lost_memory(bare)  # the zeros are known
        copy.deepcopy(layer)
    with pytest.warns(UserWarning, match="without its memory"):
        layer._warn_of_lost_memory(bare)


@pytest.mark.cuda
def test_a_lost_memory_does_not_make_the_host_wait() -> None:
    layer = mnemoscope.RelRNN(INPUT, HIDDEN).cuda()
    x, h = torch.randn(TIME, BATCH, INPUT).cuda(), torch.randn(1, BATCH, HIDDEN).cuda()
    layer(x, torch.zeros_like(h))  # compiles
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that this mode is a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        layer._warn_of_lost_memory((h,))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    with pytest.warns(UserWarning, match="without its memory"):
        layer(x, h)


@every_layer
def test_a_memory_of_a_changed_h_is_reported(kind: type) -> None:
    layer, x = make(kind)
    state = mnemoscope.detach(layer(x)[1])
    h = state[0] if isinstance(state, tuple) else state
    h[:, 0] += 1
    with pytest.warns(UserWarning, match="without its memory"):
        layer(x, state)


@every_layer
def test_zeros_are_no_lost_memory(kind: type) -> None:
    layer, x = make(kind)
    zeros = torch.zeros(1, BATCH, HIDDEN)
    state = zeros if len(layer.state_names) == 1 else (zeros, zeros)
    torch.testing.assert_close(layer(x, state)[0], layer(x)[0])


@pytest.mark.parametrize("kind", [mnemoscope.RelRNN, mnemoscope.MemRNN])
def test_state_is_the_tensor_that_stood_there(kind: type) -> None:
    layer, x = make(kind)
    _, h = layer(x)
    assert isinstance(h, Tensor)
    assert h.shape == (1, BATCH, HIDDEN)
    for used in (h[-1], h.squeeze(0), h.view(BATCH, HIDDEN), torch.cat([h[-1]], 1), h.permute(1, 0, 2)[:, 0]):
        assert type(used) is Tensor
        assert torch.equal(used, h.plain[0])
    nn.Linear(HIDDEN, 1)(h[-1]).sum().backward()
    assert layer.weight_hh_l0.grad.abs().sum() > 0
    assert torch.equal(torch.as_tensor(h.detach().numpy()), h.plain)
    assert repr(h) == repr(h.plain)


def test_state_of_unbatched_input() -> None:
    for kind in LAYERS:
        layer, x = make(kind)
        _, state = layer(x[:, 0])
        expected = layer(x[:, 0], state)[0]
        torch.testing.assert_close(layer(x[:, 0], repackage_hidden(state))[0], expected)
        assert [t.shape[0] for t in leaves(state)] == [1] * len(leaves(state))


def test_casts_leave_clocks_alone() -> None:
    layer, x = make(mnemoscope.RelRNN)
    state = layer(x)[1]
    state.memory.clock.fill_(2**24 + 1)  # which float32 cannot hold
    for cast in (state.half(), state.to(torch.bfloat16), state.double()):
        assert cast.memory.clock.dtype == torch.int64
        assert torch.equal(cast.memory.clock, state.memory.clock)
        assert cast.memory.values.dtype == cast.s.dtype == cast.dtype


def test_states_of_different_layers_are_not_concatenated() -> None:
    small, x = make(mnemoscope.RelRNN, buffer=2, relevant=1)
    large, _ = make(mnemoscope.RelRNN)
    assert type(torch.cat([small(x)[1], large(x)[1]], 1)) is Tensor
    assert type(torch.cat([small(x)[1], small(x)[1]], 0)) is Tensor
    assert isinstance(torch.cat([small(x)[1], small(x)[1]], 1), CarryingTensor)


def test_a_state_rebuilt_of_other_parts_has_no_memory() -> None:
    layer, x = make(mnemoscope.RelLSTM)
    state = layer(x)[1]
    assert AttentiveState(t.float() for t in state).memory is not None
    for lost in (AttentiveState(t.detach().numpy() for t in state), AttentiveState(t + 1 for t in state)):
        assert type(lost) is AttentiveState  # Hugging Face's Trainer compares types
        assert lost.memory is None
    assert len(pytree.tree_leaves(lost)) == 2
    assert len(pytree.tree_map(Tensor.clone, lost)) == 2
    assert copy.deepcopy(mnemoscope.detach(state)).memory is not None
    with pytest.warns(UserWarning, match="without its memory"):
        layer(x, lost)
    assert AttentiveState([]) == ()


class Streaming(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        return self.layer(x, state)


@pytest.mark.parametrize("kind", [mnemoscope.RelLSTM, mnemoscope.RelRNN])
def test_exported_program_takes_states_and_is_saved(kind: type, tmp_path) -> None:
    layer, x = make(kind)
    layer.requires_grad_(False)
    state = layer(x)[1]
    exported = torch.export.export(Streaming(layer), (x, state))
    torch.export.save(exported, tmp_path / "layer.pt2")
    loaded = torch.export.load(tmp_path / "layer.pt2").module()
    output, final = loaded(x, state)
    torch.testing.assert_close(output, layer(x, state)[0])
    assert type(final) is type(state)
    torch.testing.assert_close(loaded(x, final)[0], layer(x, layer(x, state)[1])[0])


@pytest.mark.parametrize("kind", [mnemoscope.RelLSTM, mnemoscope.RelRNN])
def test_compiled_layer_takes_and_gives_states(kind: type) -> None:
    layer, x = make(kind)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    _, state = compiled(x)
    assert type(state) is type(layer(x)[1])
    output, state = compiled(x, repackage_hidden(state))
    expected, final = layer(x, mnemoscope.detach(layer(x)[1]))
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(layer(x, state)[0], layer(x, final)[0])


@pytest.mark.parametrize("kind", [mnemoscope.RelLSTM, mnemoscope.RelRNN])
@torch.no_grad()
def test_compiled_function_ends_an_episode(kind: type) -> None:
    """A write into h inside a compiled function empties the memory, there and for the next call."""
    layer, x = make(kind)

    def end_first_episode(x: Tensor, state: Any) -> Tensor:
        h = state[0] if isinstance(state, tuple) else state
        h[:, [0]] = 0
        return layer(x, state)[0]

    eager, compiled = layer(x)[1], layer(x)[1]
    expected = end_first_episode(x, eager)
    found = torch.compile(end_first_episode, backend="eager")(x, compiled)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(layer(x, compiled)[0], layer(x, eager)[0])


@pytest.mark.parametrize("transform", ["grad", "jacrev", "fake"])
def test_a_state_outlives_a_transform_that_looked_at_it(transform: str) -> None:
    layer, x = make(mnemoscope.RelRNN)
    with torch.no_grad():
        state = layer(x)[1]
        expected = layer(x, map_state(torch.clone, layer(x)[1]))[0]
    if transform == "grad":
        torch.func.grad(lambda x: layer(x, state)[0].sum())(x)
    elif transform == "jacrev":
        torch.func.jacrev(lambda x: layer(x, state)[0])(x)
    else:
        with FakeTensorMode(allow_non_fake_inputs=True):
            layer(x, state)
    torch.testing.assert_close(layer(x, state)[0], expected)


def test_a_state_outlives_a_cuda_graph_that_looked_at_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is made while a graph is captured is not there before its replay: outside, it is made again."""
    layer, x = make(mnemoscope.RelRNN)
    state = layer(x)[1]
    with monkeypatch.context() as capture:
        capture.setattr(_carried, "in_cuda_graph", lambda tensor: True)
        inside = state.s, state.memory.clock
    for graphs, kept, again in zip(inside, (state.s, state.memory.clock), (state.s, state.memory.clock), strict=True):
        assert graphs.data_ptr() != kept.data_ptr()
        assert kept.data_ptr() == again.data_ptr()
        torch.testing.assert_close(graphs, kept)


def test_a_state_does_not_keep_its_layer_alive() -> None:
    layer, x = make(mnemoscope.RelRNN)
    with torch.no_grad():
        state = layer(x)[1]
    alive = weakref.ref(layer)
    del layer
    gc.collect()
    assert alive() is None
    assert state.memory.values.shape[0] == 1


class Classifier(nn.Module):
    """Reads the last h, as scripts for nn.RNN do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = mnemoscope.RelRNN(INPUT, HIDDEN)
        self.head = nn.Linear(HIDDEN, 2)

    def forward(self, x: Tensor) -> Tensor:
        _, h = self.layer(x)
        return self.head(h[-1])


@pytest.mark.parametrize("strict", [False, True])
def test_exported_classifier_reads_the_last_h(strict: bool) -> None:
    model, x = Classifier().requires_grad_(False), torch.randn(TIME, BATCH, INPUT)
    exported = torch.export.export(model, (x,), strict=strict)
    torch.testing.assert_close(exported.module()(x), model(x))
    assert exported.module()(x).shape == (BATCH, 2)


@pytest.mark.parametrize("name", sorted(mnemoscope.layers.LAYERS))
def test_every_layer_is_exported(name: str) -> None:
    layer = getattr(mnemoscope, name)(INPUT, 8).requires_grad_(False)
    x, longer = torch.randn(TIME, BATCH, INPUT), torch.randn(TIME + 4, BATCH + 1, INPUT)
    sizes = {0: torch.export.Dim("time", min=2, max=100), 1: torch.export.Dim("batch", min=2, max=100)}
    exported = torch.export.export(layer, (x,), dynamic_shapes=(sizes,)).module()
    for given in (x, longer):
        torch.testing.assert_close(exported(given), layer(given), rtol=1e-4, atol=1e-5)
