"""What models give back, and what they do to what they read."""

import pytest
import torch
from torch import nn

from mnemoscope.adapters import Layout, adapt
from mnemoscope.scopes import examine, recurrence


class Unrolled(nn.Module):
    """A cell in a loop, whose outputs stay a list."""

    def __init__(self, features=2, with_state=False):
        super().__init__()
        self.cell, self.head, self.with_state = nn.GRUCell(3, 6), nn.Linear(6, features), with_state

    def forward(self, x):
        h, outputs = None, []
        for x_t in x.unbind(1):
            h = self.cell(x_t, h)
            outputs.append(self.head(h).squeeze(-1))
        return (outputs, h) if self.with_state else outputs


@pytest.mark.parametrize(
    ("steps", "features", "with_state"), [(9, 2, False), (9, 2, True), (9, 1, False), (4, 2, False)]
)
def test_a_list_of_one_output_a_step(steps, features, with_state):
    model, x = Unrolled(features, with_state), torch.randn(4, steps, 3)
    found = adapt(model, x)
    outputs = model(x)[0] if with_state else model(x)
    wanted = torch.stack(outputs).view(steps, 4, features)
    torch.testing.assert_close(found.run(found.features), wanted)
    torch.testing.assert_close(found.run(found.features[:4]), wanted[:4])
    assert "on no later ones" in recurrence(model, x).sentence


class OfEachLayer(nn.Module):
    """What each of its layers gives, (time, batch, features): a list that may be as long as the sequences."""

    def __init__(self, count):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(count))

    def forward(self, x):
        outputs = []
        for layer in self.layers:
            x = layer(x).tanh()
            outputs.append(x)
        return outputs


def test_a_list_of_what_each_layer_gives_is_not_one_of_steps():
    model, x = OfEachLayer(6), torch.randn(6, 2, 3)
    found = adapt(model, x, batch_first=False)
    torch.testing.assert_close(found.run(found.features), model(x)[0])


class InPlace(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(3, 4, batch_first=True)

    def forward(self, x):
        x.mul_(0.5)
        return self.rnn(x)[0]


def test_a_model_that_changes_its_inputs_repeats_itself_and_leaves_them():
    x = torch.randn(4, 9, 3)
    before = x.clone()
    assert recurrence(InPlace(), x).labels["kind"] == "recurrent"
    assert torch.equal(x, before)


class StepInside(nn.Module):
    """A step, and a forward over (batch, time, features) or (time, batch, features) that gives its running sum."""

    def __init__(self, axis):
        super().__init__()
        self.cell, self.axis = nn.GRUCell(3, 4), axis

    def initial_state(self, batch):
        return torch.zeros(batch, 4)

    def step(self, x, h):
        h = self.cell(x, h)
        return h, h

    def forward(self, x):
        h, outputs = torch.zeros(x.shape[1 - self.axis], 4), []
        for x_t in x.unbind(self.axis):
            h = self.step(x_t, h)[1]
            outputs.append(h)
        return torch.stack(outputs, self.axis).cumsum(self.axis)


@pytest.mark.parametrize(("axis", "layout"), [(0, Layout.TIME_FIRST), (1, Layout.BATCH_FIRST)])
def test_the_layout_of_a_forward_that_gives_more_than_its_step(axis, layout):
    model, x = StepInside(axis), torch.randn(5, 6, 3)
    assert adapt(model, x).layout is layout
    found = examine(model, x, scopes=["recurrence"])
    assert found["recurrence"].labels["kind"] == "recurrent"
