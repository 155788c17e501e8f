"""Sequences that begin inside others: rows of a state set back by `reset`, steps by `starts`, as if run one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from table import INPUT, ROWS, Row
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import mnemoscope
from mnemoscope import adapters, kernels, training
from mnemoscope.layers import Layer, _sequences
from mnemoscope.recurrence import State, leaves, map_state
from mnemoscope.theory.stability import Truncated

TOLERANCE = {torch.float32: dict(rtol=1e-4, atol=1e-6), torch.float64: dict(rtol=1e-11, atol=1e-12)}
every_row = pytest.mark.parametrize("row", ROWS, ids=str)
GROWING = [row for row in ROWS if row.layer in (mnemoscope.MemRNN, mnemoscope.MemLSTM, mnemoscope.SAB)]


def draw(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def differentiable(state: State) -> list[Tensor]:
    return [t for t in leaves(state) if t.requires_grad]


def one_by_one(layer: Any, x: Tensor, state: State | None, starts: Tensor, lengths: list[int]) -> tuple[Tensor, list]:
    """The outputs (time, batch, features) and the last state of each row, every piece by a call of its own."""
    outputs = []
    finals = []
    for row, length in enumerate(lengths):
        begins = [0, *(t for t in range(1, length) if starts[t, row])]
        now = None if state is None or starts[0, row] else mnemoscope.select(state, row)
        pieces = []
        for first, end in zip(begins, [*begins[1:], length], strict=True):
            output, now = layer(x[first:end, row : row + 1], now)
            pieces.append(output)
            final, now = now, None
        padding = x.new_zeros(len(x) - length, 1, output.shape[-1])
        outputs.append(torch.cat([*pieces, padding]))
        finals.append(final)
    return torch.cat(outputs, 1), finals


@st.composite
def cases(data: Any) -> dict[str, Any]:
    steps, batch = data(st.integers(1, 9)), data(st.integers(1, 4))
    begins = data(st.lists(st.booleans(), min_size=steps * batch, max_size=steps * batch))
    return dict(
        starts=torch.tensor(begins).view(steps, batch),
        lengths=data(st.none() | st.lists(st.integers(1, steps), min_size=batch, max_size=batch)),
        carried=data(st.booleans()),
        num_layers=data(st.sampled_from([1, 2])),
        batch_first=data(st.booleans()),
        backend=data(st.sampled_from(["auto", "eager"])),
        dtype=data(st.sampled_from([torch.float64, torch.float64, torch.float32])),
        padding=data(st.sampled_from([0, 4096])),
    )


@every_row
@settings(max_examples=12, deadline=None, derandomize=True)
@given(case=cases())
def test_pieces_equal_separate_runs(row: Row, case: dict[str, Any]) -> None:
    dtype, starts, batch_first = case["dtype"], case["starts"], case["batch_first"]
    steps, batch = starts.shape
    layer = row.make(num_layers=case["num_layers"], dtype=dtype)
    x = draw(steps, batch, INPUT).to(dtype).requires_grad_()
    before = None
    if case["carried"]:
        _, before = layer(draw(3, batch, INPUT).to(dtype))
        before = map_state(lambda t: t.detach().clone().requires_grad_(t.is_floating_point()), before)
        if hasattr(before, "memory"):
            before.memory.relevance.requires_grad_(False)
    lengths = case["lengths"] or [steps] * batch

    with kernels.backend(case["backend"]):
        expected, finals = one_by_one(layer, x, before, starts, lengths)
    layer.batch_first = batch_first
    with kernels.backend(case["backend"]), pytest.MonkeyPatch.context() as patch:
        patch.setattr(_sequences, "_PADDING", case["padding"])
        if case["lengths"]:
            packed = pack_padded_sequence(x, torch.tensor(lengths), enforce_sorted=False)
            longest = starts[: max(lengths)]
            output, final = layer(packed, before, starts=longest.T if batch_first else longest)
            output, _ = pad_packed_sequence(output, total_length=steps)
        elif batch_first:
            output, final = layer(x.transpose(0, 1), before, starts=starts.T)
            output = output.transpose(0, 1)
        else:
            output, final = layer(x, before, starts=starts)

        # What comes after: states may have their empty slots elsewhere.
        layer.batch_first = False
        more = draw(2, batch, INPUT, seed=2).to(dtype)
        later, _ = layer(more, final)
        expected_later = torch.cat([layer(more[:, b : b + 1], state)[0] for b, state in enumerate(finals)], 1)

    torch.testing.assert_close(output, expected, **TOLERANCE[dtype])
    torch.testing.assert_close(later, expected_later, **TOLERANCE[dtype])
    torch.testing.assert_close(leaves(final)[0], torch.cat([leaves(f)[0] for f in finals], 1), **TOLERANCE[dtype])

    wanted = [x, *layer.parameters(), *([] if before is None else differentiable(before))]
    weights = draw(*output.shape, seed=3).to(dtype)
    found, right = (
        torch.autograd.grad((y * weights).sum() + z.square().sum(), wanted, allow_unused=True)
        for y, z in ((output, later), (expected, expected_later))
    )
    largest = max(g.abs().max() for g in right if g is not None)
    for a, b, t in zip(found, right, wanted, strict=True):
        zero = torch.zeros_like(t)
        error = ((zero if a is None else a) - (zero if b is None else b)).abs().max()
        assert error <= TOLERANCE[dtype]["atol"] * max(1.0, float(largest))


@every_row
@pytest.mark.parametrize("num_layers", [1, 2])
def test_reset_rows_begin_anew_and_others_go_on(row: Row, num_layers: int) -> None:
    layer, x, more = row.make(num_layers=num_layers), draw(6, 3, INPUT), draw(4, 3, INPUT, seed=2)
    state = layer(x)[1]
    kept = [t.clone() for t in leaves(state)]
    after = mnemoscope.reset(state, torch.tensor([False, True, False]), layer.initial_state(1))
    assert type(after) is type(state)
    for before, t in zip(kept, leaves(state), strict=True):
        assert torch.equal(before, t)  # the state itself is as it was
    output, _ = layer(more, after)
    torch.testing.assert_close(output[:, [0, 2]], layer(more, state)[0][:, [0, 2]], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(output[:, [1]], layer(more[:, [1]])[0], rtol=1e-12, atol=1e-12)

    # Nothing of the row's past is left, and the others keep theirs.
    gradients = torch.autograd.grad(output[:, 1].sum(), differentiable(state), allow_unused=True, retain_graph=True)
    assert all(g is None or not g.any() for g in gradients)
    gradients = torch.autograd.grad(output[:, 0].sum(), differentiable(state), allow_unused=True)
    assert any(g is not None and g.any() for g in gradients)

    if row.layer is not mnemoscope.RAC:  # which does not begin with zeros
        for a, b in zip(leaves(mnemoscope.reset(state, [1])), leaves(after), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=0)


@pytest.mark.parametrize(
    "rows",
    [
        [False, True, True],
        np.array([False, True, True]),
        torch.tensor([False, True, True]),
        [1, 2],
        [-1, -2],
        np.array([1, 2]),
        torch.tensor([1, 2], dtype=torch.int32),
        slice(1, None),
    ],
    ids=str,
)
def test_rows_are_a_mask_or_indices(rows: Any) -> None:
    h, c = torch.ones(2, 3, 4), torch.full((2, 3, 4), 2.0)
    reset = mnemoscope.reset((h, c), rows)
    assert isinstance(reset, tuple)
    assert torch.equal(reset[0][:, 0], h[:, 0])
    assert torch.equal(reset[1][:, 0], c[:, 0])
    assert not any(t[:, 1:].any() for t in reset)


def test_one_row_and_no_row() -> None:
    h = torch.ones(1, 3, 2)
    assert mnemoscope.reset(h, 2).sum(-1).tolist() == [[2, 2, 0]]
    assert mnemoscope.reset(h, np.int64(0)).sum(-1).tolist() == [[0, 2, 2]]
    for none in ([], [False] * 3, np.zeros(3, dtype=bool), torch.zeros(3, dtype=torch.bool), slice(0, 0)):
        assert torch.equal(mnemoscope.reset(h, none), h)


def test_a_diverged_row_begins_anew() -> None:
    layer = mnemoscope.RelLSTM(INPUT, 4)
    x = torch.randn(5, 2, INPUT)
    broken = x.clone()
    broken[2, 0] = torch.nan
    output, _ = layer(x, mnemoscope.reset(layer(broken)[1], [0]))
    torch.testing.assert_close(output[:, :1], layer(x[:, :1])[0])


def test_torch_and_nested_states() -> None:
    lstm = nn.LSTM(INPUT, 4, 2)
    x = torch.randn(5, 3, INPUT)
    state = lstm(x)[1]
    output, _ = lstm(x, mnemoscope.reset(state, [1]))
    torch.testing.assert_close(output[:, 1:2], lstm(x[:, 1:2])[0])
    nested = ((state, torch.arange(6).view(2, 3)), mnemoscope.RelRNN(INPUT, 4, 2)(x)[1])
    ((h, c), clock), memory = mnemoscope.reset(nested, [0])
    assert not h[:, 0].any()
    assert not c[:, 0].any()
    assert clock.tolist() == [[0, 1, 2], [0, 4, 5]]
    assert memory.memory.clock.tolist() == [[0, 5, 5], [0, 5, 5]]


def test_a_learned_initial_state() -> None:
    layer = mnemoscope.MemLSTM(INPUT, 4)
    learned = (torch.randn(1, 1, 4, requires_grad=True), torch.randn(1, 1, 4))
    x = torch.randn(5, 3, INPUT)
    output, _ = layer(x, mnemoscope.reset(layer(x)[1], [0, 2], learned))
    with pytest.warns(UserWarning, match="without its memory"):
        expected, _ = layer(x[:, :1], learned)
    torch.testing.assert_close(output[:, :1], expected)
    assert torch.autograd.grad(output[:, 2].sum(), learned[0])[0].any()


@pytest.mark.parametrize("row", GROWING, ids=str)
@pytest.mark.parametrize("how", ["reset", "mask", "starts"])
def test_a_growing_memory_is_as_long_as_its_longest_episode(row: Row, how: str) -> None:
    layer, x = row.make().requires_grad_(False), draw(40, 3, INPUT)
    state = layer.initial_state(3)
    longest = 0
    for t in range(40):
        begins = torch.tensor([t % 5 == 0, t % 7 == 3, t % 4 == 1])
        if how == "starts":
            _, state = layer(x[t : t + 1], state, starts=begins[None])
        else:
            if how == "reset":
                state = mnemoscope.reset(state, begins)
            else:
                keep = (~begins).double().view(1, 3, 1)
                state = tuple(keep * s for s in state) if isinstance(state, tuple) else keep * state
            _, state = layer.step(x[t], state)
        h = state[0] if isinstance(state, tuple) else state
        longest = max(longest, h.memory.origin.shape[-1])
    assert longest <= 7
    assert mnemoscope.reset(state, slice(None)).memory.origin.shape[-1] == 0


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([0, 3], r"indices of a batch of 3; got \[0, 3\]"),
        ([True, False], r"mask of bool, \[3\], or different indices.*got \[2\] of bool"),
        ([1, 0, 1], r"different indices of the batch; got \[1, 0, 1\]: .* make it one of bool"),  # not rows 0 and 1
        (torch.tensor([0, 0, 1]), r"got \[0, 0, 1\]: .* make it one of bool"),
        (torch.zeros(3), r"got \[3\] of float32"),
        ("first", r"mask of bool, \[3\], or different indices of the batch; got a str"),
        ([[0], [1, 2]], r"mask of bool, \[3\], or different indices of the batch; got "),
        (torch.zeros(3, 1, dtype=torch.bool), r"got \[3, 1\] of bool"),
    ],
)
def test_wrong_rows_error(rows: Any, message: str) -> None:
    with pytest.raises(mnemoscope.MnemoscopeError, match=message):
        mnemoscope.reset(torch.ones(1, 3, 4), rows)


def test_wrong_initial_state_error() -> None:
    state = (torch.ones(1, 3, 4), torch.ones(1, 3, 4))
    for wrong in (torch.ones(1, 1, 4), (torch.ones(1, 1, 4), torch.ones(1, 1, 5)), (torch.ones(1, 2, 4),) * 2):
        with pytest.raises(mnemoscope.MnemoscopeError, match="reset: the initial state is"):
            mnemoscope.reset(state, [0], wrong)
    with pytest.raises(mnemoscope.MnemoscopeError, match="reset: the initial state is"):
        mnemoscope.reset(mnemoscope.MemLSTM(2, 4).initial_state(3), [0], torch.ones(1, 1, 4))
    for wrong_state in (torch.ones(4), ()):
        with pytest.raises(mnemoscope.MnemoscopeError, match="reset needs a state"):
            mnemoscope.reset(wrong_state, [0])


@pytest.mark.parametrize("kind", [mnemoscope.RNN, mnemoscope.LSTM, mnemoscope.RelRNN, mnemoscope.RelLSTM])
def test_an_initial_state_of_another_shape_is_refused(kind: type[Layer]) -> None:
    _, state = kind(INPUT, 4)(torch.randn(5, 3, INPUT))
    other_size = kind(INPUT, 5).initial_state(1)
    for wrong in (torch.ones(1, 1, 1), torch.ones(4), torch.ones(1, 2, 4), other_size, 0, "ab", [None]):
        with pytest.raises(mnemoscope.MnemoscopeError, match="reset: the initial state is"):
            mnemoscope.reset(state, [0], wrong)


def test_an_initial_state_with_another_kind_of_memory_is_refused() -> None:
    x = torch.randn(5, 3, INPUT)
    _, state = mnemoscope.RelRNN(INPUT, 4)(x)
    _, other = mnemoscope.RelRNN(INPUT, 4, buffer=3, relevant=17)(x)  # with as many slots
    message = "memory of the initial state holds the last 3 and 17 older ones, that of the state the last 10 and 10"
    with pytest.raises(mnemoscope.MnemoscopeError, match=message):
        mnemoscope.reset(state, [0], other)


def test_wrong_starts_error() -> None:
    layer, x = mnemoscope.RelLSTM(INPUT, 4), torch.randn(5, 3, INPUT)
    for wrong in (torch.zeros(5, 3), torch.zeros(3, 5, dtype=torch.bool), [True]):
        with pytest.raises(mnemoscope.MnemoscopeError, match=r"RelLSTM: starts must be a mask of bool, \[5, 3\]"):
            layer(x, starts=wrong)
    masks = torch.zeros(2, 5, 3, dtype=torch.bool)
    with pytest.raises(mnemoscope.MnemoscopeError, match="RelLSTM: starts= cannot be mapped by vmap"):
        torch.vmap(lambda mask: layer(x, starts=mask)[0])(masks)
    torch.vmap(lambda inputs: layer(inputs, starts=masks[0])[0])(x[None])  # one mask for all
    both = mnemoscope.LSTM(INPUT, 4, bidirectional=True)
    with pytest.raises(mnemoscope.MnemoscopeError, match="starts= needs bidirectional=False"):
        both(x, starts=torch.zeros(5, 3, dtype=torch.bool))


def test_unbatched_and_arrays() -> None:
    layer, x = mnemoscope.RelLSTM(INPUT, 4), torch.randn(5, INPUT)
    output, (h, _) = layer(x, starts=np.array([True, False, False, True, False]))
    torch.testing.assert_close(output[3:], layer(x[3:])[0])
    torch.testing.assert_close(h.plain, layer(x[3:])[1][0].plain)


def test_a_recurrence_of_ones_own() -> None:
    class Count(mnemoscope.Recurrence):
        input_size = hidden_size = 1

        def initial_state(self, batch: int) -> Tensor:
            return torch.full((1, batch, 1), 10.0)

        def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
            return state[0] + x, state + x

    starts = torch.tensor([[False, True], [False, False], [True, False]])
    output, state = Count()(torch.ones(3, 2, 1), torch.zeros(1, 2, 1), starts=starts)
    assert output[..., 0].tolist() == [[1, 11], [2, 12], [11, 13]]
    assert state.flatten().tolist() == [11, 13]


def test_networks_with_a_readout_and_truncated_models() -> None:
    x = torch.randn(6, 2, INPUT)
    starts = torch.zeros(6, 2, dtype=torch.bool)
    starts[2] = True
    network = training.SequenceModel(INPUT, 5, training.NetworkConfig(model="RelRNN", hidden_size=4))
    for model in (network, adapters.as_recurrence(network), Truncated(mnemoscope.RNN(INPUT, 4), 3)):
        output, _ = model(x, starts=starts)
        torch.testing.assert_close(output[2:], model(x[2:])[0])
    torch_lstm = adapters.as_recurrence(nn.LSTM(INPUT, 4))
    torch.testing.assert_close(torch_lstm(x, starts=starts)[0][2:], torch_lstm(x[2:])[0])


def test_many_short_pieces_beside_a_long_one_are_not_padded_to_its_length() -> None:
    starts = torch.ones(1000, 20, dtype=torch.bool)
    starts[:, 0] = False
    groups = _sequences.group_pieces(_sequences.cut_pieces(starts, None), apart=False)
    padded = sum(group[0].length * len(group) for group in groups)
    assert len(groups) <= 3
    assert padded <= 2 * starts.numel() + len(groups) * 4096


def test_layers_have_no_reset_that_fastai_would_call() -> None:
    for layer in mnemoscope.layers.LAYERS.values():
        assert not hasattr(layer, "reset")
