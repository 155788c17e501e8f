"""Models with a step and a forward: which of the two is the model."""

import numpy as np
import pytest
import torch
from torch import nn

import mnemoscope
from mnemoscope.adapters import adapt
from mnemoscope.scopes import horizon, truncation


class AddsUp(mnemoscope.RNN):
    def forward(self, x, state=None, *, starts=None):
        output, state = super().forward(x, state, starts=starts)
        return output.cumsum(0), state


class Decaying(mnemoscope.Recurrence):
    input_size = hidden_size = 3

    def initial_state(self, batch):
        return torch.zeros(1, batch, 3)

    def step(self, x, state):
        state = 0.2 * state + x
        return state[0], state

    def forward(self, x, state=None, *, starts=None):
        output, state = super().forward(x, state, starts=starts)
        return output.cumsum(0), state


@pytest.mark.parametrize("make", [lambda: AddsUp(3, 5), Decaying])
def test_a_recurrence_whose_forward_does_more_than_its_step_is_not_its_step(make):
    """Its forward was compared with itself, and its horizon was that of the step."""
    torch.manual_seed(0)
    model, x = make(), torch.randn(30, 3, 3)
    assert not adapt(model, x).recurrence_is_model
    assert horizon(model, x).figures["horizon"] == 29


class Overflowing(Decaying):
    """Infinite from the third step on, or NaN."""

    def __init__(self, nan):
        super().__init__()
        self.nan = nan

    def step(self, x, state):
        state = 1e30 * state + x
        return state[0] - state[0].roll(1, -1) if self.nan else state[0], state

    def forward(self, x, state=None, *, starts=None):
        output, state = mnemoscope.Recurrence.forward(self, x, state, starts=starts)
        return 2 * output, state


@pytest.mark.parametrize("nan", [False, True])
def test_outputs_that_overflow_are_compared_where_they_are_finite(nan):
    """An infinite tolerance let any forward pass for the step, and one of NaN was an error of torch's."""
    assert not adapt(Overflowing(nan), torch.randn(12, 3, 3)).recurrence_is_model


def test_an_arithmetic_circuit_that_overflows_is_its_step():
    layer = mnemoscope.RAC(3, 8, 3)
    with torch.no_grad():
        for p in layer.parameters():
            p.mul_(1e9)
    assert adapt(layer, torch.randn(12, 3, 3)).recurrence_is_model


def test_a_layer_whose_hook_changes_its_outputs_is_not_its_step():
    torch.manual_seed(0)
    layer, x = mnemoscope.RNN(3, 5), torch.randn(30, 3, 3)
    assert adapt(layer, x).recurrence_is_model
    layer.register_forward_hook(lambda module, arguments, result: (result[0].cumsum(0), result[1]))
    assert not adapt(layer, x).recurrence_is_model


class Read(nn.Module):
    """A layer with a read-out."""

    output_size = 2

    def __init__(self):
        super().__init__()
        self.embed, self.layer, self.linear = nn.Identity(), mnemoscope.RNN(3, 5), nn.Linear(5, 2)
        self.affine_readout = self.linear.weight
        mnemoscope.layers.project_(self.layer, 0.5)

    def read(self, h, x):
        return self.linear(h)

    def forward(self, x):
        return self.linear(self.layer(x)[0])


def test_a_layer_before_a_read_out_whose_hook_changes_its_outputs_is_not_its_step():
    """The windows of its step were certified for its outputs, and the first measurement exceeded them."""
    torch.manual_seed(0)
    model, x = Read(), torch.randn(30, 3, 3)
    model.layer.register_forward_hook(lambda module, arguments, result: None)
    assert adapt(model, x).recurrence_is_model
    assert truncation(model, x).certified == ("certified_window",)
    model.layer.register_forward_hook(lambda module, arguments, result: (result[0].cumsum(0), result[1]))
    assert not adapt(model, x).recurrence_is_model
    assert truncation(model, x).certified == ()


class LastOnly(nn.Module):
    """h -> 0.3 h + x, whose forward gives nine numbers of the last state."""

    input_size = 3
    batch_first = True

    def __init__(self):
        super().__init__()
        self.read = nn.Linear(3, 9, bias=False)

    def initial_state(self, batch):
        return torch.zeros(batch, 3)

    def step(self, x, h):
        h = 0.3 * h + x
        return self.read(h), h

    def forward(self, x):
        h = self.initial_state(len(x))
        for x_t in x.unbind(1):
            y, h = self.step(x_t, h)
        return y


def test_as_many_numbers_of_a_sequence_as_steps_are_not_one_a_step():
    """Nine numbers of a window of nine steps were read as one number a step, and the window was twice too long."""
    torch.manual_seed(0)
    model, x = LastOnly(), torch.randn(6, 100, 3)
    found = truncation(model, x)
    assert 9 in found.series["window"]
    assert (np.diff(found.series["output_error"]) <= 1e-6).all()
    assert found.figures["window"] < 7
    assert len(adapt(model, x[:, :9]).run(x[:, :9].transpose(0, 1))) == 1


class OtherStep(nn.Module):
    """Its forward calls helpers whose names are those of a step, with arguments and results of its own."""

    def __init__(self):
        super().__init__()
        self.read, self.mix = nn.Linear(3, 4), nn.Linear(4, 2)

    def initial_state(self, batch):
        return torch.zeros(batch, 4)

    def step(self, x, h):
        return torch.tanh(self.read(x) + 0.5 * h)

    def forward(self, x):
        h, outputs = self.initial_state(len(x)), []
        for x_t in x.unbind(1):
            h = self.step(x_t, h)
            outputs.append(self.mix(h))
        return torch.stack(outputs, 1)


class OtherStart(OtherStep):
    def initial_state(self, batch, device=None, *, dtype):
        return torch.zeros(batch, 4, device=device, dtype=dtype)

    def forward(self, x):
        h = self.initial_state(len(x), dtype=x.dtype)
        return self.mix(torch.stack([h := self.step(x_t, h) for x_t in x.unbind(1)], 1))


@pytest.mark.parametrize("make", [OtherStep, OtherStart])
def test_a_step_with_other_arguments_or_results_leaves_the_forward(make):
    """Nothing was measured of such a model, not even what takes inputs and outputs alone."""
    torch.manual_seed(0)
    model, x = make(), torch.randn(6, 30, 3)
    found = mnemoscope.examine(model, x, scopes=["recurrence", "horizon", "stability"])
    wanted = horizon(lambda x: model(x), x)
    assert found["horizon"].figures["horizon"] == wanted.figures["horizon"] > 1
    assert found["recurrence"].labels["kind"] == "recurrent"
    assert found["stability"].status == "not applicable"
    said = {OtherStep: "OtherStep.step(x, state) must give (output, state); it gave one Tensor"}
    assert said.get(make, f"{make.__name__} has a step that raised ") in found["stability"].why
