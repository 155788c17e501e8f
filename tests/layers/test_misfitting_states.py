"""A state that does not fit is refused in one line: it never reaches a kernel, and never kills the process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from table import BATCH, INPUT, TIME
from torch import Tensor
from torch.nn.utils.rnn import pack_padded_sequence

import mnemoscope
from mnemoscope.kernels._cpu import library
from mnemoscope.layers import Layer
from mnemoscope.recurrence import leaves, map_state, rebuild

SHAPES: dict[str, dict[str, Any]] = {
    "one": {},
    "stacked": dict(num_layers=2),
    "both directions": dict(num_layers=2, bidirectional=True),
}
MAKERS: dict[str, Callable[..., Layer]] = {
    "LSTM": lambda **shape: mnemoscope.LSTM(INPUT, 4, **shape),
    "GRU": lambda **shape: mnemoscope.GRU(INPUT, 4, **shape),
    "RNN": lambda **shape: mnemoscope.RNN(INPUT, 4, **shape),
    "GORU": lambda **shape: mnemoscope.GORU(INPUT, 4, **shape),
    "RAC": lambda **shape: mnemoscope.RAC(INPUT, 4, **shape),
    "RelRNN": lambda **shape: mnemoscope.RelRNN(INPUT, 4, buffer=2, relevant=2, **shape),
    "RelRNN without a buffer": lambda **shape: mnemoscope.RelRNN(INPUT, 4, buffer=0, relevant=3, **shape),
    "RelLSTM": lambda **shape: mnemoscope.RelLSTM(INPUT, 4, buffer=3, relevant=1, **shape),
    "MemRNN": lambda **shape: mnemoscope.MemRNN(INPUT, 4, **shape),
    "MemLSTM": lambda **shape: mnemoscope.MemLSTM(INPUT, 4, **shape),
    "SAB": lambda **shape: mnemoscope.SAB(INPUT, 4, store_every=2, top=2, truncation=3, **shape),
}
LAYERS = st.sampled_from(sorted(MAKERS))
MEMORY = ["values", "keys", "origin", "relevance", "clock"]  # the last leaves of a state with a memory


# What can be wrong with one tensor of a state: each gives something that must be refused.

RESHAPED: dict[str, Callable[[Tensor], Any]] = {
    "no dimension": lambda t: t.flatten()[0],
    "flat": lambda t: t.flatten(),
    "one dimension less": lambda t: t[0],
    "one dimension more": lambda t: t[None],
    "one layer too many": lambda t: torch.cat([t, t[:1]]),
    "no layer": lambda t: t[:0],
    "one sequence too many": lambda t: torch.cat([t, t[:, :1]], 1),
    "one sequence too few": lambda t: t[:, 1:],
    "no sequence": lambda t: t[:, :0],
    "last dimension too long": lambda t: torch.cat([t, t[..., :1]], -1),
    "last dimension too short": lambda t: t[..., 1:],
    "nothing": lambda t: torch.empty(0),
}
OTHER_TYPES = [torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int8, torch.bool, torch.complex64]
RETYPED: dict[str, Callable[[Tensor], Any]] = {str(dtype): lambda t, d=dtype: t.to(d) for dtype in OTHER_TYPES}
MOVED: dict[str, Callable[[Tensor], Any]] = {"meta": lambda t: t.to("meta")}
NOT_A_TENSOR: dict[str, Callable[[Tensor], Any]] = {
    "a string": lambda t: "h",
    "a number": lambda t: 1.5,
    "a list": lambda t: t.tolist(),
    "an array": lambda t: t.numpy(),
}
MISFITS = RESHAPED | RETYPED | MOVED | NOT_A_TENSOR
OUT_OF_RANGE = [  # clocks count from 0, and a state was made before its clock
    *[("clock", value) for value in (-1, -5, -(2**31), -(2**63), 2**62 + 1, 2**63 - 1)],
    *[("origin", value) for value in (-2, -5, -(2**63), TIME, 2**31, 2**63 - 1)],
]


def made_by(layer: Layer) -> Any:
    """A state after a few steps, without a graph."""
    torch.manual_seed(1)
    return mnemoscope.detach(layer(torch.randn(TIME, BATCH, INPUT))[1])


def ways(layer: Layer) -> dict[str, Callable[[Any], Any]]:
    """Everything that takes a state."""
    x = torch.randn(3, BATCH, INPUT)

    def packed(state: Any) -> Any:
        return layer(pack_padded_sequence(x, torch.tensor([3, 1, 2]), enforce_sorted=False), state)

    def differentiated(state: Any) -> None:
        output, _ = layer(x, state)
        output.sum().backward()

    def eager(state: Any) -> Any:
        with mnemoscope.kernels.backend("eager"):
            return layer(x, state)

    def portable(state: Any) -> Any:
        with mnemoscope.kernels.backend("portable"):
            return layer(x, state)

    found = {"forward": differentiated, "packed": packed, "eager": eager, "portable": portable}
    if not layer.bidirectional:
        found["step"] = lambda state: layer.step(x[0], state)
    return found


def refused(run: Callable[[Any], Any], state: Any) -> str:
    with pytest.raises(mnemoscope.MnemoscopeError, match="state") as error:
        run(state)
    assert "\n" not in str(error.value)
    return str(error.value)


def replaced(state: Any, field: int, value: Any) -> Any:
    """The state with another tensor at `field` of its leaves."""
    tensors: list[Any] = leaves(state)
    tensors[field] = value
    return rebuild(state, tensors)


@settings(max_examples=400, deadline=None)
@given(LAYERS, st.sampled_from(sorted(SHAPES)), st.sampled_from(sorted(MISFITS)), st.data())
def test_a_tensor_that_does_not_fit_is_refused(name: str, shape: str, misfit: str, data: st.DataObject) -> None:
    layer = MAKERS[name](**SHAPES[shape])
    state = made_by(layer)
    tensors = leaves(state)
    field = data.draw(st.integers(0, len(tensors) - 1))
    way = data.draw(st.sampled_from(sorted(ways(layer))))
    wrong = MISFITS[misfit](tensors[field])
    refused(ways(layer)[way], replaced(state, field, wrong))


@settings(max_examples=150, deadline=None)
@given(LAYERS, st.sampled_from(sorted(SHAPES)), st.sampled_from(sorted(RESHAPED | RETYPED)), st.data())
def test_a_state_whose_every_tensor_was_changed_is_refused(
    name: str, shape: str, misfit: str, data: st.DataObject
) -> None:
    layer = MAKERS[name](**SHAPES[shape])
    way = data.draw(st.sampled_from(sorted(ways(layer))))
    refused(ways(layer)[way], map_state(MISFITS[misfit], made_by(layer)))


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from([name for name in MAKERS if "Rel" in name or "Mem" in name or name == "SAB"]),
    st.sampled_from(sorted(SHAPES)),
    st.sampled_from(OUT_OF_RANGE),
    st.data(),
)
def test_a_clock_or_an_origin_out_of_range_is_refused(
    name: str, shape: str, wrong: tuple[str, int], data: st.DataObject
) -> None:
    counter, value = wrong
    layer = MAKERS[name](**SHAPES[shape])
    state = made_by(layer)
    field = MEMORY.index(counter) - len(MEMORY)
    tensor = leaves(state)[field].clone()
    place = tuple(data.draw(st.integers(0, size - 1)) for size in tensor.shape)
    tensor[place] = value
    way = data.draw(st.sampled_from(sorted(ways(layer))))
    message = refused(ways(layer)[way], replaced(state, field, tensor))
    assert f"memory.{counter} must" in message
    assert str(value) in message


@settings(max_examples=20, deadline=None)
@given(LAYERS, st.sampled_from([torch.nan, torch.inf, -torch.inf, 1e38]), st.data())
def test_any_number_in_a_state_is_computed_with(name: str, number: float, data: st.DataObject) -> None:
    layer = MAKERS[name]()
    state = made_by(layer)
    floating = [k for k, tensor in enumerate(leaves(state)) if tensor.is_floating_point()]
    field = data.draw(st.sampled_from(floating))
    strange = replaced(state, field, torch.full_like(leaves(state)[field], number))
    for run in ways(layer).values():
        run(strange)


def test_a_sparse_state_is_refused() -> None:
    layer = MAKERS["LSTM"]()
    for run in ways(layer).values():
        refused(run, tuple(t.to_sparse() for t in made_by(layer)))


def test_counters_are_checked_without_compiled_kernels_too(monkeypatch) -> None:
    layer = MAKERS["RelRNN"]()
    state = made_by(layer)
    monkeypatch.setattr(library, "library", lambda: None)
    layer.step(torch.randn(BATCH, INPUT), state)
    for counter, value in OUT_OF_RANGE:
        field = MEMORY.index(counter) - len(MEMORY)
        wrong = replaced(state, field, torch.full_like(leaves(state)[field], value))
        refused(lambda state: layer.step(torch.randn(BATCH, INPUT), state), wrong)


@pytest.mark.parametrize("name", MAKERS)
def test_an_unbatched_state_that_does_not_fit_is_refused(name: str) -> None:
    layer = MAKERS[name]()
    x = torch.randn(TIME, INPUT)
    state = mnemoscope.detach(layer(x)[1])
    for field, tensor in enumerate(leaves(state)):
        for wrong in (tensor.flatten()[:1].squeeze(), tensor[None], torch.cat([tensor, tensor]), tensor.to("meta")):
            refused(lambda state: layer(x, state), replaced(state, field, wrong))


@pytest.mark.parametrize("name", MAKERS)
def test_a_state_laid_out_otherwise_gives_the_same(name: str) -> None:
    layer = MAKERS[name]()
    state = made_by(layer)
    x = torch.randn(3, BATCH, INPUT)
    turned = map_state(lambda t: t.transpose(0, -1).contiguous().transpose(0, -1), state)
    strided = map_state(lambda t: torch.stack([t, t], -1)[..., 1], state)
    for other in (turned, strided):
        for run in (lambda state: layer(x, state)[0], lambda state: layer.step(x[0], state)[0]):
            torch.testing.assert_close(run(other), run(state))


def test_messages_say_what_is_wrong_and_what_to_do() -> None:
    layer = MAKERS["RelLSTM"]()
    state = made_by(layer)
    x = torch.randn(3, BATCH, INPUT)

    def message(name: str, tensor: Tensor) -> str:
        wrong = replaced(state, MEMORY.index(name) - len(MEMORY), tensor)
        return refused(lambda state: layer(x, state), wrong)

    said = message("clock", state.memory.clock.float())
    assert said == (
        "RelLSTM's state does not fit: its memory.clock counts steps in torch.int64; got torch.float32: convert a "
        "state with mnemoscope.to(state, dtype), which leaves its integers"
    )
    said = message("clock", torch.full_like(state.memory.clock, -5))
    assert "must count steps from 0 on" in said
    assert "got clocks from -5 to -5" in said
    said = message("keys", state.memory.keys[:, :, 1:])
    assert "its memory.keys must be a tensor [1, 3, 4, 4]; got a tensor [1, 3, 3, 4]" in said
    assert "for another batch?" in said


@pytest.mark.parametrize("wrong", [torch.zeros(INPUT), torch.zeros(2, BATCH, INPUT), torch.zeros(BATCH, 7), "x", None])
def test_a_wrong_input_of_step_is_refused(wrong: Any) -> None:
    layer = mnemoscope.LSTM(INPUT, 4)
    with pytest.raises(mnemoscope.MnemoscopeError, match=r"LSTM\.step expects the input of one step"):
        layer.step(wrong, layer.initial_state(BATCH))


@pytest.mark.parametrize("name", MAKERS)
def test_a_weight_of_another_shape_is_refused(name: str) -> None:
    """A kernel that believed the layer's sizes would read past its end."""
    layer = MAKERS[name](num_layers=2)
    plain = [key for key, _ in layer.named_parameters() if "parametrizations" not in key]
    for key in plain:
        weight = getattr(layer, key)
        for wrong in (weight[:1].clone(), torch.cat([weight, weight]), weight[..., None].clone()):
            setattr(layer, key, torch.nn.Parameter(wrong))
            with pytest.raises(mnemoscope.MnemoscopeError, match=f"{key} must be "):
                layer(torch.randn(TIME, BATCH, INPUT))
        setattr(layer, key, weight)
    layer(torch.randn(TIME, BATCH, INPUT))
