"""Single steps by the compiled kernel: as by the equations, for a million steps, and what becomes of old states."""

from __future__ import annotations

import copy
import pickle
import resource
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import mnemoscope
from mnemoscope import MnemoscopeError, kernels, layers
from mnemoscope.kernels._cpu.library import available
from mnemoscope.layers import _streaming
from mnemoscope.recurrence import State, leaves

pytestmark = pytest.mark.skipif(not available(torch.float32), reason="no compiled CPU kernels here")

SCREENED = [mnemoscope.RelRNN, mnemoscope.RelLSTM]
FULL = [mnemoscope.MemRNN, mnemoscope.MemLSTM]


@pytest.fixture
def fused_steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that grows by one with every layer's step that the kernel runs."""
    calls: list[int] = []

    def spy(*args: Any) -> None:
        calls.append(1)
        kernels.attentive_step(*args)

    monkeypatch.setattr(_streaming, "kernels", _With(kernels, attentive_step=spy))
    return calls


class _With:
    """A module with some of its names replaced."""

    def __init__(self, module: Any, **names: Any) -> None:
        self._module = module
        self.__dict__.update(names)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    kind = draw(st.sampled_from(SCREENED + FULL))
    options: dict[str, Any] = dict(
        num_layers=draw(st.sampled_from([1, 1, 2])),
        bias=draw(st.booleans()),
        mix=draw(st.sampled_from(["sum", "mean"])),
        output=draw(st.sampled_from(["h", "s"])),
    )
    if kind in SCREENED:
        slots = st.integers(0, 5)
        options |= dict(buffer=draw(slots), relevant=draw(slots), decay=draw(st.sampled_from([1.0, 0.75])))
        options["refresh"] = draw(st.booleans())
    if kind in (mnemoscope.RelRNN, mnemoscope.MemRNN):
        options["nonlinearity"] = draw(st.sampled_from(["tanh", "relu", "modrelu", "identity"]))
    return dict(
        kind=kind,
        options=options,
        inputs=draw(st.integers(1, 20)),
        n=draw(st.integers(1, 40)),
        batch=draw(st.sampled_from([1, 1, 2, 15, 16, 17, 33, 70])),
        dtype=draw(st.sampled_from([torch.float32, torch.float64])),
        inplace=draw(st.booleans()),
        reset_at=draw(st.none() | st.integers(0, 9)),
    )


@settings(max_examples=60, deadline=None, derandomize=True)
@given(case=cases())
def test_a_fused_step_equals_the_equations(case: dict[str, Any]) -> None:
    torch.manual_seed(0)
    dtype, batch = case["dtype"], case["batch"]
    layer = case["kind"](case["inputs"], case["n"], **case["options"], dtype=dtype).requires_grad_(False)
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            parameter.mul_(0.7 if "weight_hh" in name else 1.0)  # identity and relu stay finite
    precise = copy.deepcopy(layer).double()
    state, expected_state = layer.initial_state(batch), precise.initial_state(batch)
    rows = torch.arange(batch) % 2 == 0
    for t in range(10):
        x = torch.randn(batch, case["inputs"], dtype=torch.float64)
        if t == case["reset_at"]:
            state, expected_state = mnemoscope.reset(state, rows), mnemoscope.reset(expected_state, rows)
        output, state = layer.step(x.to(dtype), state, inplace=case["inplace"])
        with kernels.backend("eager"):
            expected, expected_state = precise.step(x, expected_state)
        tolerance = 1e-11 if dtype is torch.float64 else 2e-5 * max(1.0, float(expected.abs().max()))
        torch.testing.assert_close(output.double(), expected, rtol=tolerance, atol=tolerance)
        for a, b in zip(leaves(state), leaves(expected_state), strict=True):
            if dtype is torch.float64 or a.is_floating_point():
                torch.testing.assert_close(a.double(), b.double(), rtol=10 * tolerance, atol=10 * tolerance)
            assert a.is_floating_point() == b.is_floating_point()


@pytest.mark.parametrize("kind", SCREENED + FULL)
def test_steps_without_gradients_are_fused(kind: type, fused_steps: list[int]) -> None:
    layer, x = kind(3, 4, 2), torch.randn(2, 3)
    state = layer.initial_state(2)
    with torch.no_grad():
        state = layer.step(x, state)[1]
    with torch.inference_mode():
        layer.step(x, layer.step(x, state)[1])
    assert len(fused_steps) == 6  # of two layers each
    layer.requires_grad_(False)
    layer.step(x, state)
    assert len(fused_steps) == 8
    layer.step(x.requires_grad_(), state)
    layer.requires_grad_().step(x, state)
    with torch.no_grad(), kernels.backend("portable"):
        layer.step(x, state)
    with torch.no_grad(), torch.autocast("cpu"):
        layer.step(x, state)
    assert len(fused_steps) == 8


@pytest.mark.parametrize("kind", SCREENED + FULL)
@torch.no_grad()
def test_an_input_that_is_negated_when_it_is_read(kind: type) -> None:
    """The imaginary part of a conjugate lies in memory with the other sign."""
    layer, z = kind(1, 4), torch.randn(3, 1, 1, dtype=torch.complex64)
    negated = z.conj().imag
    assert negated[0].is_neg()
    assert negated[0].is_contiguous()
    expected, _ = layer(negated.resolve_neg())
    state = layer.initial_state(1)
    for t in range(3):
        output, state = layer.step(negated[t], state)
        torch.testing.assert_close(output, expected[t])


@pytest.mark.parametrize("kind", SCREENED + FULL)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@torch.no_grad()
def test_a_weight_of_another_type_is_not_read_as_one_of_the_inputs(kind: type, dtype: torch.dtype) -> None:
    layer = kind(3, 4)
    layer.weight_score_l0 = torch.nn.Parameter(layer.weight_score_l0.to(dtype))
    with pytest.raises((TypeError, RuntimeError)):
        layer.step(torch.randn(2, 3), layer.initial_state(2))


@pytest.mark.parametrize("kind", SCREENED + FULL)
def test_steps_with_gradients_equal_the_sequence(kind: type) -> None:
    layer, x = kind(3, 4, dtype=torch.float64), torch.randn(6, 2, 3, dtype=torch.float64, requires_grad=True)
    with torch.no_grad():  # a state of fused steps is one to go on from with gradients
        state = layer.step(x[0], layer.initial_state(2))[1]
    outputs = []
    now = state
    for x_t in x[1:]:
        output, now = layer.step(x_t, now, inplace=True)
        outputs.append(output)
    stepped, whole = torch.stack(outputs), layer(x[1:], state)[0]
    torch.testing.assert_close(stepped, whole, rtol=1e-10, atol=1e-12)
    for a, b in zip(*(torch.autograd.grad(y.sum(), [x, *layer.parameters()]) for y in (stepped, whole)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


def numbers(state: State) -> list[Tensor]:
    return [t.clone() for t in leaves(state)]


@pytest.mark.parametrize("kind", SCREENED + FULL)
def test_an_old_state_stays_as_it_was(kind: type) -> None:
    """Two ways from every state of a stream: each is that of a stream of its own, and no state changes."""
    torch.manual_seed(0)
    layer = kind(3, 8, dtype=torch.float64).requires_grad_(False)
    x, other = torch.randn(40, 3, 3, dtype=torch.float64), torch.randn(3, 3, dtype=torch.float64)
    state = layer.initial_state(3)
    past = []
    for x_t in x:
        past.append((state, numbers(state)))
        _, state = layer.step(x_t, state)
    for t, (state, before) in enumerate(past):
        output, _ = layer.step(other, state)
        expected, _ = layer(torch.cat([x[:t], other[None]]))
        torch.testing.assert_close(output, expected[-1], rtol=1e-10, atol=1e-12)
        for a, b in zip(leaves(state), before, strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize("kind", FULL)
def test_a_growing_memory_is_not_copied_at_every_step(kind: type) -> None:
    layer, x = kind(3, 4).requires_grad_(False), torch.randn(2, 3)
    state = layer.initial_state(2)
    addresses = set()
    for _ in range(500):
        _, state = layer.step(x, state)
        addresses.add(state.memory.values.data_ptr())
    assert state.memory.values.shape == (1, 2, 500, 4)
    assert len(addresses) <= 8  # it doubles


@pytest.mark.parametrize("kind", SCREENED)
def test_a_memory_is_overwritten_where_the_caller_allows_it(kind: type) -> None:
    layer, x = kind(3, 4, 2, dtype=torch.float64), torch.randn(12, 2, 3, dtype=torch.float64)
    with torch.no_grad():
        state = layer.initial_state(2)
        address = state.memory.values.data_ptr()
        outputs = []
        for x_t in x:
            old = state
            output, state = layer.step(x_t, state, inplace=True)
            outputs.append(output)
            assert state.memory.values.data_ptr() == address
        torch.testing.assert_close(torch.stack(outputs), layer(x)[0], rtol=1e-10, atol=1e-12)
        for used_up in (old, old[0] if isinstance(old, tuple) else old):
            with pytest.raises(mnemoscope.MnemoscopeError, match=r"step\(\.\.\., inplace=True\) has overwritten"):
                layer.step(x[0], used_up if isinstance(old, tuple) == isinstance(used_up, tuple) else (used_up, old[1]))
        output, after = layer.step(x[0], state)
        assert after.memory.values.data_ptr() != address


def test_what_a_gradient_needs_is_not_overwritten() -> None:
    layer, x = mnemoscope.RelLSTM(3, 4), torch.randn(5, 2, 3)
    _, state = layer(x)
    kept = numbers(state)
    with torch.no_grad():
        layer.step(x[0], state, inplace=True)  # its memory belongs to a graph
    for a, b in zip(leaves(state), kept, strict=True):
        assert torch.equal(a, b)

    with torch.no_grad():
        state = layer(x)[1]
    loss = layer(x, state)[0].sum()  # saves the memory for the backward pass
    with torch.no_grad():
        layer.step(x[0], state, inplace=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("kind", SCREENED + FULL)
def test_states_of_a_stream_are_states_like_others(kind: type) -> None:
    layer = kind(3, 4).requires_grad_(False)
    x = torch.randn(9, 3, 3)
    state = layer.initial_state(3)
    for x_t in x:
        _, state = layer.step(x_t, state)
    expected = layer(x, state)[0]
    for again in (copy.deepcopy(state), pickle.loads(pickle.dumps(state)), mnemoscope.detach(state)):
        torch.testing.assert_close(layer(x, again)[0], expected)
        torch.testing.assert_close(layer.step(x[0], again)[0], expected[0])
    torch.testing.assert_close(layer.step(x[0, 1:], mnemoscope.select(state, [1, 2]))[0], expected[0, 1:])
    other = copy.deepcopy(layer)
    torch.testing.assert_close(other.step(x[0], state)[0], expected[0])  # another layer checks it anew
    with pytest.raises(mnemoscope.MnemoscopeError, match="expects a state of"):
        layer.step(x[0, :2], state)
    with pytest.raises(mnemoscope.MnemoscopeError, match="step expects the input of one step"):
        layer.step(x, state)


def test_weights_that_change_between_steps_are_read_anew() -> None:
    layer, x = mnemoscope.RelLSTM(3, 4).requires_grad_(False), torch.randn(2, 3)
    state = layer.step(x, layer.initial_state(2))[1]
    layer.weight_hh_l0.data.mul_(3)  # of which torch keeps no count
    layer.weight_ih_l0 = torch.nn.Parameter(torch.randn(3, 16).T, requires_grad=False)  # not contiguous
    with kernels.backend("eager"):
        expected, _ = layer.step(x, state)
    torch.testing.assert_close(layer.step(x, state)[0], expected)


def test_hostile_clocks_of_a_stream_stay_inside() -> None:
    layer, x = mnemoscope.RelRNN(3, 4, buffer=3, relevant=2).requires_grad_(False), torch.randn(2, 3)
    for clock in (-7, -(2**63), 2**63 - 1):
        state = layer.step(x, layer.initial_state(2))[1]
        state.memory.clock.fill_(clock)
        state.memory.origin.fill_(2**62)
        layer.step(x, state, inplace=True)


def _contractive(kind: type) -> Any:
    torch.manual_seed(0)
    layer = kind(3, 16, buffer=5, relevant=5).requires_grad_(False)
    layer.weight_hh_l0.mul_(0.8)
    return layer


def _stream_equals_sequence(kind: type, steps: int, piece: int) -> None:
    """Stream pieces of a long sequence, and run each piece whole: equal outputs, a state and a process of one size."""
    layer, chunk = _contractive(kind), torch.Generator().manual_seed(1)
    streamed, sequence = layer.initial_state(2), layer.initial_state(2)
    sizes = [t.shape for t in leaves(streamed)]
    largest = 0.0
    before = None
    for _ in range(steps // piece):
        x = torch.randn(piece, 2, 3, generator=chunk)
        outputs = []
        for x_t in x.unbind(0):
            output, streamed = layer.step(x_t, streamed, inplace=True)
            outputs.append(output)
        expected, sequence = layer(x, sequence)
        largest = max(largest, float((torch.stack(outputs) - expected).abs().max()))
        before = before or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert largest < 1e-4
    assert [t.shape for t in leaves(streamed)] == sizes
    assert torch.equal(leaves(streamed)[-1], leaves(sequence)[-1])  # the clocks
    assert int(leaves(streamed)[-1][0, 0]) == steps
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 16_000  # kilobytes


@pytest.mark.parametrize("kind", SCREENED)
def test_a_stream_neither_grows_nor_drifts(kind: type) -> None:
    _stream_equals_sequence(kind, 6000, 1000)


@pytest.mark.slow
@pytest.mark.parametrize("kind", SCREENED)
def test_a_million_steps_neither_grow_nor_drift(kind: type) -> None:
    _stream_equals_sequence(kind, 1_000_000, 5000)


def carrier_of(state: State) -> Any:
    return state[0] if isinstance(state, tuple) else state


@pytest.mark.parametrize("name", ["RelRNN", "RelLSTM", "MemLSTM"])
def test_a_state_that_nobody_looked_into_is_the_layers_own(name: str) -> None:
    torch.manual_seed(0)
    layer, x = getattr(layers, name)(3, 5), torch.randn(6, 2, 3)
    other = getattr(layers, name)(3, 5)
    weights = [layer.weights(0)]
    with torch.no_grad():
        seen = layer(x)[1]
        assert carrier_of(seen).s.shape == (1, 2, 5)
        truth = layer(x, seen)
        state = layer(x)[1]
        own = carrier_of(state).unstacked.state
        for ours, theirs in zip(leaves(layer(x, state)), leaves(truth), strict=True):
            assert torch.equal(ours, theirs)
        assert layer._first_states(state, weights, x, None)[0] is own
        with pytest.raises(MnemoscopeError, match="batch"):
            layer._first_states(layer(x)[1], weights, x[:, :1], None)

        # Another layer, a call with gradients, and a state that was looked into take the stacked state.
        assert other._first_states(layer(x)[1], weights, x, None)[0].s.shape == (2, 5)
        with torch.enable_grad():
            assert layer._first_states(state, weights, x, None)[0] is not own
        assert carrier_of(state).unstacked is None
        assert layer._first_states(state, weights, x, None)[0] is not own
        state = layer(x)[1]
        h = carrier_of(state)
        h.s = torch.ones(1, 2, 5)
        assert torch.equal(layer._first_states(state, weights, x, None)[0].s, h.s[0])


@pytest.mark.parametrize("name", ["RelRNN", "RelLSTM"])
def test_a_state_is_differentiated_as_it_was_made(name: str) -> None:
    """Whenever its s and its memory are asked for."""
    layer, x = getattr(layers, name)(3, 5), torch.randn(4, 2, 3)
    state = layer(x)[1]
    with torch.no_grad():
        s, memory = carrier_of(state).s, carrier_of(state).memory
    assert s.requires_grad
    assert memory.values.requires_grad
    state = layer(x)[1]
    with torch.inference_mode():
        assert carrier_of(state).memory.keys.requires_grad
    with torch.no_grad():
        state = layer(x)[1]
    assert not carrier_of(state).s.requires_grad
    with torch.inference_mode():
        state = layer(x)[1]
    assert carrier_of(state).s.is_inference()
