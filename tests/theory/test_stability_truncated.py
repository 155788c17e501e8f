"""Truncated(layer, k): the depth-k feed-forward net, against running each window by itself."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mnemoscope.errors import MnemoscopeError
from mnemoscope.layers import LSTM, RNN, SAB, MemLSTM, RelLSTM
from mnemoscope.recurrence import Recurrence, map_state, select, trace
from mnemoscope.theory.stability._counterexamples import (
    ScalarSystem,
    identity_descent,
    identity_gradient,
    truncation_error,
)
from mnemoscope.theory.stability._truncation import Truncated, Window

LAYERS = {"rnn": RNN, "lstm": LSTM, "mem-lstm": MemLSTM, "rel-lstm": RelLSTM, "sab": SAB}


def make(kind="lstm", **options):
    torch.manual_seed(0)
    return LAYERS[kind](2, 3, dtype=torch.float64, **options)


def windows_one_by_one(layer, x, k):
    """The last output of the layer on x_{t-k+1} .. x_t for every t, in a plain loop."""
    return torch.stack([layer(x[max(0, t - k + 1) : t + 1])[0][-1] for t in range(len(x))])


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(sorted(LAYERS)),
    st.integers(1, 12),
    st.integers(1, 10),
    st.integers(1, 3),
    st.integers(1, 2),
    st.integers(1, 9),
)
def test_all_windows_at_once(kind, T, k, batch, layers, rows):
    layer = make(kind, num_layers=layers)
    x = torch.randn(T, batch, 2, dtype=torch.float64)
    output, state = Truncated(layer, k, rows=rows)(x)
    assert torch.allclose(output, windows_one_by_one(layer, x, k), atol=1e-12)
    assert state.clock.tolist() == [[T] * batch]
    stepped, after = Recurrence.forward(Truncated(layer, k), x)  # the loop over `step`
    assert torch.allclose(output, stepped, atol=1e-12)
    assert torch.equal(state.inputs, after.inputs)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 8), st.lists(st.integers(1, 6), min_size=2, max_size=4))
def test_pieces_give_the_whole(k, pieces):
    model = Truncated(make(), k)
    x = torch.randn(sum(pieces), 2, 2, dtype=torch.float64)
    outputs, state = [], None
    for piece in x.split(pieces):
        output, state = model(piece, state)
        outputs.append(output)
    whole, last = model(x)
    assert torch.allclose(torch.cat(outputs), whole, atol=1e-12)
    assert torch.equal(last.inputs, state.inputs)
    assert torch.equal(last.clock, state.clock)


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("steps", [3, 4, 5, 9])  # before, when and after the youngest window is full
def test_sequences_of_different_age_in_one_batch(steps, kind):
    model = Truncated(make(kind), 5)
    x = torch.randn(steps, 2, 2, dtype=torch.float64)
    _, old = model(torch.randn(3, 2, 2, dtype=torch.float64))
    mixed = Window(*(torch.cat([a[:, :1], b[:, 1:]], 1) for a, b in zip(old, model.initial_state(2), strict=True)))
    output, state = model(x, mixed)
    assert state.clock.tolist() == [[3 + steps, steps]]
    assert torch.allclose(output[:, :1], model(x[:, :1], select(old, 0))[0], atol=1e-12)
    assert torch.allclose(output[:, 1:], model(x[:, 1:])[0], atol=1e-12)
    assert torch.equal(state.inputs, Recurrence.forward(model, x, mixed)[1].inputs)


@pytest.mark.parametrize("k", [1, 5])
def test_an_empty_batch(k):
    output, state = Truncated(make(), k)(torch.randn(7, 0, 2, dtype=torch.float64))
    assert output.shape == (7, 0, 3)
    assert state.clock.shape == (1, 0)


def test_gradient_reaches_exactly_k_inputs():
    x = torch.randn(12, 1, 2, dtype=torch.float64, requires_grad=True)
    for k in (1, 4):
        output, _ = Truncated(make(), k)(x)
        (grad,) = torch.autograd.grad(output[-1].sum(), x)
        assert torch.equal(grad.flatten(1).norm(dim=1) > 0, torch.arange(12) >= 12 - k)


def test_long_enough_a_window_is_the_layer_itself():
    layer, x = make(), torch.randn(9, 2, 2, dtype=torch.float64)
    assert torch.equal(Truncated(layer, 9)(x)[0], layer(x)[0])
    assert torch.allclose(Truncated(layer, 30)(x)[0], layer(x)[0])


def test_batch_first_trace_and_functions_of_the_state():
    layer = make(batch_first=True)
    model = Truncated(layer, 3)
    x = torch.randn(2, 7, 2, dtype=torch.float64)
    output, state = model(x)
    expected = windows_one_by_one(lambda window: _time_first(layer, window), x.transpose(0, 1), 3)
    assert torch.allclose(output.transpose(0, 1), expected)
    assert torch.allclose(trace(model, x).output, output.transpose(0, 1))
    assert model.output_size == 3
    assert isinstance(map_state(torch.Tensor.detach, state), Window)
    assert "k=3" in repr(model)


def _time_first(layer, x):
    output, state = layer(x.transpose(0, 1))
    return output.transpose(0, 1), state


def test_what_cannot_be_truncated():
    with pytest.raises(MnemoscopeError, match="k >= 1"):
        Truncated(make(), 0)
    with pytest.raises(MnemoscopeError, match="bidirectional"):
        Truncated(make(bidirectional=True), 3)
    with pytest.raises(MnemoscopeError, match=r"3 dimensions; got \[4, 2\]"):
        Truncated(make(), 3)(torch.zeros(4, 2))


@pytest.mark.parametrize("k", [1, 3, 10])
def test_truncation_error_of_an_unstable_system(k):
    error = truncation_error(2.0, k, 30)
    expected = [0.0 if t <= k else 2.0 ** (t - 1) for t in range(1, 31)]
    assert error.tolist() == expected
    assert float(truncation_error(0.5, k, 30)[k:].max()) == 0.5**k  # stable: the error is lambda^k at most


@settings(max_examples=60, deadline=None)
@given(st.floats(-2, 2), st.integers(1, 12))
def test_gradient_of_the_identity_task(a, T):
    """Against backpropagation through the system itself."""
    system = ScalarSystem(a)
    output, _ = system(torch.ones(T, 1, 1, dtype=torch.float64))
    loss = 0.5 * (output[-1] - 1).square().sum()
    exact = torch.autograd.grad(loss, system.a, allow_unused=True)[0]
    assert identity_gradient(a, T) == pytest.approx(float(exact), rel=1e-6, abs=1e-6)


@pytest.mark.parametrize(("a", "T"), [(0.5, 6), (-1.7, 9), (2.5, 4)])
def test_equation_6(a, T):
    printed = ((1 - a**T) / (1 - a) - 1) * ((1 - a**T) / (1 - a) ** 2 - T * a ** (T - 1) / (1 - a))
    assert identity_gradient(a, T) == pytest.approx(printed)


def test_descent_diverges_unless_projected():
    free = identity_descent(1.5, T=10, steps=50)
    assert abs(free[-1][1]) > 1e80
    projected = identity_descent(1.5, T=10, steps=3000, bound=0.9)
    assert abs(projected[-1][0]) < 1e-3
