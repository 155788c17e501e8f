"""The contract itself: a user's own recurrence, traces, and the helpers for states."""

from __future__ import annotations

import subprocess
import sys

import numpy
import pytest
import torch
from torch import Tensor, nn

import mnemoscope
from mnemoscope.recurrence import Attention, Screening


class Leaky(mnemoscope.Recurrence):
    """A user's own: a leaky sum of its input, and a counter beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.input_size = self.hidden_size = 3
        self.rate = nn.Parameter(torch.tensor(0.5))

    def initial_state(self, batch: int) -> tuple[Tensor, tuple[Tensor]]:
        return torch.zeros(1, batch, 3), (torch.zeros(1, batch),)

    def step(self, x: Tensor, state: tuple[Tensor, tuple[Tensor]]) -> tuple[Tensor, tuple[Tensor, tuple[Tensor]]]:
        h = self.rate * state[0] + x
        return h[0], (h, (state[1][0] + 1,))


def test_a_users_recurrence_needs_two_methods() -> None:
    model, x = Leaky(), torch.randn(5, 2, 3)
    output, (_, (count,)) = model(x)
    expected = sum(0.5 ** (4 - t) * x[t] for t in range(5))
    torch.testing.assert_close(output[-1], expected)
    assert (count == 5).all()
    _, state = model(x[:2])
    torch.testing.assert_close(model(x[2:], state)[0], output[2:])
    run = mnemoscope.trace(model, x)
    torch.testing.assert_close(run.stacked()[:, 0], output)
    assert run.attention is None
    with pytest.raises(mnemoscope.MnemoscopeError, match="has no attention"):
        run.attention_by_origin()
    chosen = mnemoscope.select(state, -1)
    assert chosen[1][0].shape == (1, 1)
    torch.testing.assert_close(chosen[0][:, 0], state[0][:, 1])
    with pytest.raises(TypeError, match="abstract"):
        mnemoscope.Recurrence()


@pytest.mark.parametrize(
    "layer",
    [
        mnemoscope.LSTM(3, 4, num_layers=2),
        mnemoscope.MemRNN(3, 4, num_layers=2),
        mnemoscope.RelLSTM(3, 4, buffer=2, relevant=2),
        mnemoscope.SAB(3, 4, store_every=2),
        mnemoscope.RNN(3, 4, batch_first=True),
    ],
    ids=str,
)
def test_a_trace_is_the_run(layer) -> None:
    x = torch.randn(7, 2, 3)
    inputs = x.transpose(0, 1) if layer.batch_first else x
    run = mnemoscope.trace(layer, inputs)
    output, _ = layer(inputs)
    torch.testing.assert_close(run.output, output.transpose(0, 1) if layer.batch_first else output)
    assert len(run.states) == 8
    assert not run.output.requires_grad
    if run.attention is None:
        return
    for weights, origin in zip(run.attention, run.origin, strict=True):
        assert len(weights) == layer.num_layers
        assert all(w.shape == o.shape for w, o in zip(weights, origin, strict=True))
        assert all((w[o < 0] == 0).all() for w, o in zip(weights, origin, strict=True))
    by_origin = run.attention_by_origin(layer.num_layers - 1)  # (batch, T, origin)
    assert (by_origin.triu(1) == 0).all()  # no step attends to the future
    if not isinstance(layer, mnemoscope.SAB):  # whose memory is empty at first
        torch.testing.assert_close(by_origin.sum(-1), torch.ones(2, 7))


def test_a_trace_with_gradients_gives_them_for_every_state() -> None:
    layer = mnemoscope.RNN(3, 4, dtype=torch.float64)
    x = torch.randn(5, 1, 3, dtype=torch.float64)
    run = mnemoscope.trace(layer, x, grad=True)
    run.output[-1].sum().backward()
    h = run.output.detach()[:, 0]
    by_h = torch.ones(4, dtype=torch.float64)
    for t in (4, 3, 2, 1):
        by_h = layer.weight_hh_l0.mT @ ((1 - h[t] ** 2) * by_h)
        torch.testing.assert_close(run.states[t].grad[0, 0], by_h)
    torch.testing.assert_close(run.states[0].grad[0, 0], layer.weight_hh_l0.mT @ ((1 - h[0] ** 2) * by_h))
    assert run.states[5].grad is None  # the last one is not read
    assert (run.output.grad[-1] == 1).all()
    assert (run.output.grad[:-1] == 0).all()


@pytest.mark.filterwarnings("ignore:.*without its memory")
@pytest.mark.parametrize("layer", [mnemoscope.RelLSTM(3, 4), mnemoscope.LSTM(3, 4), mnemoscope.MemRNN(3, 4)], ids=str)
def test_a_trace_starts_from_what_the_layer_itself_takes(layer) -> None:
    x, bare = torch.randn(5, 2, 3), torch.randn(1, 2, 4)
    state = (bare,) * len(layer.state_names)
    torch.testing.assert_close(mnemoscope.trace(layer, x, state).output, layer(x, state)[0])
    with pytest.raises(mnemoscope.MnemoscopeError, match="expects a state of"):
        mnemoscope.trace(layer, x, (bare,) * 3)


def test_trace_errors() -> None:
    layer, x = mnemoscope.RNN(3, 4), torch.randn(5, 2, 3)
    with pytest.raises(mnemoscope.MnemoscopeError, match="at least one step; got a tensor"):
        mnemoscope.trace(layer, x[:0])
    for wrong in (x[:, 0], nn.utils.rnn.pack_padded_sequence(x, torch.tensor([5, 3]))):
        with pytest.raises(mnemoscope.MnemoscopeError, match="batched input with 3 dimensions; got a "):
            mnemoscope.trace(layer, wrong)


def test_select_by_any_integer() -> None:
    state = mnemoscope.RelLSTM(3, 4)(torch.randn(5, 3, 3))[1]
    for one in (1, -2, numpy.int64(1), torch.tensor(1)):
        chosen = mnemoscope.select(state, one)
        assert chosen.h.shape == (1, 1, 4)
        assert torch.equal(chosen.memory.values, state.memory.values[:, 1:2])
    for some in ([0, 2], (0, 2), slice(0, 3, 2), range(0, 3, 2), torch.tensor([True, False, True])):
        assert torch.equal(mnemoscope.select(state, some).h, state.h[:, ::2])
    with pytest.raises(IndexError):
        mnemoscope.select(state, 3)


def test_to_takes_every_form_of_tensor_to() -> None:
    state = mnemoscope.RelLSTM(3, 4)(torch.randn(5, 3, 3))[1]
    like = torch.zeros(1, dtype=torch.float64)
    forms = [((torch.float64,), {}), ((like,), {}), (("cpu", torch.float64, True), {}), ((), {"dtype": torch.float64})]
    for args, kwargs in forms:
        moved = mnemoscope.to(state, *args, **kwargs)
        assert moved.s.dtype == moved.memory.relevance.dtype == torch.float64
        assert moved.memory.origin.dtype == moved.memory.clock.dtype == torch.int64
    copied = mnemoscope.to(state, "cpu", copy=True)
    assert copied.memory.clock.data_ptr() != state.memory.clock.data_ptr()


def test_wrong_state_error() -> None:
    for wrong in ("state", 3, None, {"h": torch.zeros(1)}, (torch.zeros(1), "c")):
        with pytest.raises(mnemoscope.MnemoscopeError, match="a state is a tensor or a"):
            mnemoscope.detach(wrong)


def test_torch_func_through_steps() -> None:
    for layer in (mnemoscope.RelLSTM(3, 4, buffer=2, relevant=1), mnemoscope.MemRNN(3, 4), mnemoscope.GRU(3, 4)):
        x = torch.randn(6, 2, 3)
        state = mnemoscope.detach(layer(x)[1])
        reverse = torch.func.jacrev(lambda x, layer=layer, state=state: layer.step(x, state)[0])(x[0])
        forward = torch.func.jacfwd(lambda x, layer=layer, state=state: layer.step(x, state)[0])(x[0])
        torch.testing.assert_close(reverse, forward)
        both = torch.utils._pytree.tree_map(lambda t: torch.stack([t, t]), state)
        output, after = torch.vmap(layer.step, in_dims=(None, 0))(x[0], both)
        torch.testing.assert_close(output[1], layer.step(x[0], state)[0])
        assert type(after) is type(state)


def test_import_is_light() -> None:
    """What is heavy is loaded where it is used: not by the import."""
    code = (
        "import sys, torch; before = set(sys.modules); import mnemoscope; "
        "heavy = {'matplotlib', 'plotly', 'tyro', 'rich', 'lightning_fabric', 'flint', 'scipy', 'pooch', 'jinja2', "
        "'sympy', 'torch._dynamo'}; "
        "found = heavy & (set(sys.modules) - before); sys.exit(f'loaded {found}' if found else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


class Averaging(mnemoscope.Recurrence):
    """A user's own attention: the mean of all inputs so far, uniformly attended."""

    def __init__(self) -> None:
        super().__init__()
        self.input_size = self.hidden_size = 3

    def initial_state(self, batch: int) -> Tensor:
        return torch.zeros(1, batch, 0, 3)

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        output, state, _ = self.observe(x, state)
        return output, state

    def observe(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor, tuple[Attention, ...]]:
        state = torch.cat([state, x[None, :, None]], 2)
        steps = state.shape[2]
        weights = torch.full((len(x), steps), 1 / steps)
        origin = torch.arange(steps).expand(len(x), -1)
        return state[0].mean(1), state, (Attention(weights, origin),)


def test_a_trace_reads_attention_through_observe_alone() -> None:
    run = mnemoscope.trace(Averaging(), torch.randn(4, 2, 3))
    by_origin = run.attention_by_origin()
    torch.testing.assert_close(by_origin[0], torch.ones(4, 4).tril() / torch.arange(1, 5)[:, None])


def test_observe_gives_weights_origin_and_relevance_of_every_layer() -> None:
    layer, x = mnemoscope.RelRNN(3, 4, num_layers=2, buffer=2, relevant=1), torch.randn(5, 2, 3)
    state = layer.initial_state(2)
    for x_t in x:
        _, state, attention = layer.observe(x_t, state)
    assert len(attention) == 2
    for index, seen in enumerate(attention):
        assert torch.equal(seen.origin, state.memory.origin[index])
        assert torch.equal(seen.relevance, state.memory.relevance[index])
        torch.testing.assert_close(seen.weights.sum(1), torch.ones(2))
    assert layer.screening == Screening(buffer=2, decay=1.0)
    assert mnemoscope.MemRNN(3, 4).screening is None
    assert mnemoscope.LSTM(3, 4).observe(x[0], mnemoscope.LSTM(3, 4).initial_state(2))[2] is None


def test_additive_parameters_are_those_of_one_layer() -> None:
    layer = mnemoscope.MemLSTM(3, 4, num_layers=2, mix="mean")
    upper = layer.additive_parameters(1)
    assert upper.query is layer.weight_query_l1
    assert upper.key is layer.weight_key_l1
    assert upper.score is layer.weight_score_l1
    assert upper.factor == 0.5
    assert mnemoscope.MemRNN(3, 4).additive_parameters().factor == 1.0
    assert layer.additive_parameters(2) is mnemoscope.LSTM(3, 4).additive_parameters() is None
