from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

import mnemoscope
from mnemoscope import MnemoscopeError
from mnemoscope.adapters import Layout, Stepped, adapt, as_recurrence
from mnemoscope.recurrence import select
from mnemoscope.scopes import horizon, stability


class Leaky(nn.Module):
    """A user's own model: a dict for a state, (batch, n) tensors, read-out included."""

    input_size = 3

    def __init__(self):
        super().__init__()
        self.read, self.mix = nn.Linear(3, 4), nn.Linear(4, 2)

    def initial_state(self, batch):
        return {"fast": torch.zeros(batch, 4), "slow": [torch.zeros(batch, 4)]}

    def step(self, x, state):
        fast = torch.tanh(self.read(x) + 0.5 * state["fast"])
        slow = 0.9 * state["slow"][0] + 0.1 * fast
        return self.mix(slow), {"fast": fast, "slow": [slow]}


def by_hand(model, x):
    state, outputs = model.initial_state(x.shape[1]), []
    for x_t in x:
        y, state = model.step(x_t, state)
        outputs.append(y)
    return torch.stack(outputs), state


def test_nested_state_equals_a_loop_by_hand():
    model, x = Leaky(), torch.randn(6, 5, 3)
    recurrence = as_recurrence(model)
    outputs, state = recurrence(x)
    wanted, final = by_hand(model, x)
    torch.testing.assert_close(outputs, wanted)
    assert [list(t.shape) for t in state] == [[1, 5, 4], [1, 5, 4]]
    torch.testing.assert_close(state[1][0], final["slow"][0])


def test_stepped_shares_parameters():
    model = Leaky()
    assert {id(p) for p in as_recurrence(model).parameters()} == {id(p) for p in model.parameters()}


def test_stepped_states_can_be_selected():
    recurrence, x = as_recurrence(Leaky()), torch.randn(6, 5, 3)
    some = select(recurrence(x)[1], [1, 3])
    torch.testing.assert_close(some[0], recurrence(x[:, [1, 3]])[1][0])


class Stacked(Leaky):
    def initial_state(self, batch):
        return torch.zeros(2, batch, 4)

    def step(self, x, state):
        return x, state + 1


def test_stepped_state_with_a_layer_dimension():
    assert list(Stepped(Stacked(), 3).initial_state(7)[0].shape) == [2, 7, 4]


class BatchLast(Leaky):
    def initial_state(self, batch):
        return torch.zeros(4, 4, batch)


class Forgetful(Leaky):
    def step(self, x, state):
        return x, state["fast"]


@pytest.mark.parametrize(
    ("model", "said"), [(BatchLast(), r"\(batch, \.\.\.\) or \(layers, batch"), (Forgetful(), "same structure")]
)
def test_stepped_refuses_bad_states(model, said):
    with pytest.raises(MnemoscopeError, match=said):
        as_recurrence(model)(torch.randn(2, 3, 3))


def test_stepped_needs_an_input_size():
    class Bare:
        def initial_state(self, batch):
            return torch.zeros(batch, 2)

        def step(self, x, state):
            return state, state + x.sum(-1, keepdim=True)

    with pytest.raises(MnemoscopeError, match="input_size"):
        as_recurrence(Bare())
    assert as_recurrence(Bare(), 3)(torch.ones(2, 1, 3))[0][-1].tolist() == [[3.0, 3.0]]


@dataclass(frozen=True)
class Memory:
    """A state that is neither a tensor nor torch's own nest: a counter comes first, and a name never changes."""

    step: int
    h: torch.Tensor
    slow: list
    name: str = "memory"
    rate: float = 0.9


class WithDataclass(nn.Module):
    """Every second step forgets: what it does depends on the counter in its state."""

    input_size = 3

    def __init__(self, batch_first=False):
        super().__init__()
        self.read, self.mix, self.swap = nn.Linear(7, 4), nn.Linear(4, 2), batch_first

    def initial_state(self, batch):
        return Memory(0, torch.zeros(batch, 4), [torch.zeros(batch, 4)])

    def step(self, x, state):
        h = torch.tanh(self.read(torch.cat([x, state.h], 1))) * (1 + state.step % 2)
        slow = state.rate * state.slow[0] + 0.1 * h
        return self.mix(slow), Memory(state.step + 1, h, [slow])

    def forward(self, x):
        y, _ = by_hand(self, x.transpose(0, 1) if self.swap else x)
        return y.transpose(0, 1) if self.swap else y


def test_a_dataclass_with_a_counter_is_a_state():
    model, x = WithDataclass(), torch.randn(7, 5, 3)
    recurrence = as_recurrence(model)
    wanted, final = by_hand(model, x)
    outputs, state = recurrence(x)
    torch.testing.assert_close(outputs, wanted)
    assert [list(tensor.shape) for tensor in state] == [[1, 5], [1, 5, 4], [1, 5, 4]]
    assert state[0].unique().tolist() == [7]
    torch.testing.assert_close(state[2][0], final.slow[0])
    assert recurrence.hidden_size == 4

    # The counter belongs to the state: an old one goes on from its own step, whatever was run in between.
    early = recurrence(x[:3])[1]
    recurrence(x)
    torch.testing.assert_close(recurrence(x[3:], early)[0], wanted[3:])
    torch.testing.assert_close(recurrence(x[3:, [1, 3]], select(early, [1, 3]))[0], wanted[3:, [1, 3]])


def test_every_scope_takes_a_dataclass():
    few = {
        "attractors": {"starts": 2, "steps": 4, "recorded": 4},
        "entropy": {"points": 4},
        "smoothness": {"points": 1},
    }
    found = mnemoscope.examine(WithDataclass(), torch.randn(8, 2, 3), options=few)
    assert not [finding.why for finding in found if finding.status == "failed"]
    assert found["lyapunov"].status == found["attractors"].status == "estimated"


def test_what_changes_in_a_state_must_be_a_tensor_or_a_whole_number():
    class Warming(WithDataclass):
        def step(self, x, state):
            y, after = super().step(x, state)
            return y, Memory(after.step, after.h, after.slow, rate=state.rate / 2)

    with pytest.raises(
        MnemoscopeError, match=r"step changed 0\.9 in its state to 0\.45: what changes must be a tensor"
    ):
        as_recurrence(Warming())(torch.randn(4, 2, 3))

    class KeepsBatch(WithDataclass):
        def initial_state(self, batch):
            return Memory(batch, torch.zeros(batch, 4), [torch.zeros(batch, 4)])

    with pytest.raises(MnemoscopeError, match=r"initial_state\(2\) holds 2, initial_state\(3\) 3: what depends on the"):
        as_recurrence(KeepsBatch())


@pytest.mark.parametrize("batch_first", [False, True])
def test_the_layout_of_a_forward_is_seen_by_its_step(batch_first):
    model = WithDataclass(batch_first)
    x = torch.randn(6, 6, 3)  # no shape tells which is which
    found = adapt(model, x)
    assert found.layout is (Layout.BATCH_FIRST if batch_first else Layout.TIME_FIRST)
    assert found.recurrence_is_model
    torch.testing.assert_close(found.run(found.features), found.recurrence(found.features)[0])
    assert adapt(model, x, batch_first=not batch_first).batch_first is not batch_first  # it may be said otherwise


def test_a_forward_that_does_more_than_its_step_is_the_model():
    class Cumulative(WithDataclass):
        def forward(self, x):
            return super().forward(x).cumsum(0)

    torch.manual_seed(0)
    model, x = Cumulative(), torch.randn(30, 3, 3)
    found = adapt(model, x)
    assert not found.recurrence_is_model
    torch.testing.assert_close(found.run(found.features), model(x))
    assert horizon(model, x, fraction=0.5).figures["horizon"] > 20  # a sum forgets nothing
    assert horizon(WithDataclass(), x, fraction=0.5).figures["horizon"] < 20


def test_a_step_and_a_forward_that_both_give_nan_are_one():
    """NaN was the tolerance within which both should agree, which torch refuses."""

    class Overflowing(WithDataclass):
        def step(self, x, state):
            y, state = super().step(x, state)
            return y * torch.inf - y * torch.inf, state

    assert adapt(Overflowing(), torch.randn(6, 2, 3)).recurrence_is_model


def test_a_step_that_cannot_be_examined_leaves_the_forward():
    class Odd(WithDataclass):
        def initial_state(self, batch):
            return object()

        def forward(self, x):
            return x.cumsum(1)

    found = adapt(Odd(), torch.randn(4, 9, 3))
    assert found.recurrence is None
    assert "must be a tensor" in found.no_step


class ConvolutionalLSTM(nn.Module):
    """Reads images (batch, 1, 4, 4) and keeps images."""

    def __init__(self):
        super().__init__()
        self.gates = nn.Conv2d(1 + 2, 4 * 2, 3, padding=1)

    def initial_state(self, batch):
        return torch.zeros(batch, 2, 4, 4), torch.zeros(batch, 2, 4, 4)

    def step(self, x, state):
        h, c = state
        i, f, g, o = self.gates(torch.cat([x, h], 1)).chunk(4, 1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        return h, (h, c)


class WithForward(ConvolutionalLSTM):
    def forward(self, x):
        return by_hand(self, x)[0]


@pytest.mark.parametrize("make", [ConvolutionalLSTM, WithForward])
def test_a_step_may_read_and_give_images(make):
    torch.manual_seed(0)
    model, x = make(), torch.randn(12, 3, 1, 4, 4)
    adapted = adapt(model, x, batch_first=False)
    assert adapted.recurrence_is_model
    torch.testing.assert_close(adapted.run(adapted.features), by_hand(model, x)[0].flatten(2))
    found = mnemoscope.examine(model, x, batch_first=False, options={"attractors": {"steps": 20}})
    assert {finding.name: finding.why for finding in found if finding.status == "failed"} == {}
    torch.testing.assert_close(
        horizon(model, x, batch_first=False).series["input_gradient"],
        horizon(by_hand_of(model), x, batch_first=False).series["input_gradient"],
    )


def by_hand_of(model):
    return lambda x: by_hand(model, x)[0]


class OneNumber(Leaky):
    def step(self, x, state):
        y, state = super().step(x, state)
        return y[:, 0], state


def test_a_step_may_give_one_number_for_each_sequence():
    torch.manual_seed(0)
    found = mnemoscope.examine(OneNumber(), torch.randn(30, 4, 3), options={"attractors": {"steps": 20}})
    assert {finding.name: finding.why for finding in found if finding.status == "failed"} == {}
    assert found["horizon"].figures["horizon"] > 1


@dataclass
class Kept:
    both: list


class DictState(nn.Module):
    """An LSTM whose state is a dict; its step may give the keys in another order than its first state."""

    input_size = 3

    def __init__(self, keys):
        super().__init__()
        self.cell, self.keys = nn.LSTMCell(3, 4), keys

    def initial_state(self, batch):
        return Kept([{"h": torch.full((batch, 4), 0.3), "c": torch.full((batch, 4), -1.0)}])

    def step(self, x, state):
        (before,) = state.both
        after = dict(zip("hc", self.cell(x, (before["h"], before["c"])), strict=True))
        return after["h"], Kept([{key: after[key] for key in self.keys}])


def test_the_order_of_keys_in_a_state_changes_nothing():
    """States of both orders were mixed up: fixed points, exponents and the Jacobian's norm were those of no map."""
    torch.manual_seed(0)
    x, found = torch.randn(40, 4, 3), []
    for keys in ("hc", "ch"):
        torch.manual_seed(1)
        found.append(mnemoscope.examine(DictState(keys), x, options={"attractors": {"steps": 50}}))
    for one, other in zip(*found, strict=True):
        assert one.status == other.status != "failed"
        assert one.figures == pytest.approx(other.figures, rel=1e-5, abs=1e-12, nan_ok=True), one.name
        for name, values in one.series.items():
            np.testing.assert_allclose(values, other.series[name], rtol=1e-4, atol=1e-6, err_msg=name)


class Clocked(nn.Module):
    """h -> 0.9 h + x at even steps, 0.1 h + x at odd ones; the step is a whole number in its state."""

    input_size = 3

    def initial_state(self, batch):
        return torch.zeros(batch, 3), 0

    def step(self, x, state):
        h, t = state
        h = (0.1 if t % 2 else 0.9) * h + x
        return h, (h, t + 1)


def test_pairs_of_states_keep_the_step_that_they_are_at():
    """All pairs were taken to be at the step of the first of them, and none came nearer than by 0.9."""
    found = stability(Clocked(), torch.randn(41, 4, 3), points=64)
    odd = found.series["step"] % 2 == 1
    np.testing.assert_allclose(found.series["jacobian_norm"], np.where(odd, 0.1, 0.9), rtol=1e-5)
    assert len(found.series["ratio"]) == len(odd) - 3  # the first states of all sequences are equal
    assert np.isclose(found.series["ratio"], 0.1, rtol=1e-3).sum() == odd.sum()


class HalfState(nn.Module):
    """A cell whose first state names its dtype."""

    input_size = 3

    def __init__(self, dtype):
        super().__init__()
        self.cell, self.dtype = nn.GRUCell(3, 4, dtype=dtype), dtype

    def initial_state(self, batch):
        return torch.zeros(batch, 4, dtype=self.dtype)

    def step(self, x, state):
        h = self.cell(x, state)
        return h, h


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_first_state_in_half_precision(dtype):
    """Its copy in float32 got a state in half precision, which no matrix of it could be multiplied by."""
    model, x = HalfState(dtype), torch.randn(20, 2, 3, dtype=dtype)
    found = mnemoscope.examine(model, x, scopes=["horizon", "stability", "lyapunov"])
    assert all(finding.status == "estimated" for finding in found)


class GivesOne(Leaky):
    def step(self, x, state):
        return self.mix(self.read(x))


@pytest.mark.parametrize("batch", [2, 3])
def test_a_step_gives_an_output_and_a_state(batch):
    """Two sequences were taken for the two of them."""
    with pytest.raises(MnemoscopeError, match=r"GivesOne.step\(x, state\) must give \(output, state\); it gave one Te"):
        horizon(GivesOne(), torch.randn(5, batch, 3))
