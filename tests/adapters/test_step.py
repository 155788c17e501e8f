import pytest
import torch
from torch import nn

from mnemoscope import MnemoscopeError
from mnemoscope.adapters import Stepped, as_recurrence
from mnemoscope.recurrence import select


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
