"""Steps that are hard to differentiate: a function with a backward pass alone, and a first state that is infinite."""

import math

import pytest
import torch
from torch import nn

from mnemoscope.scopes import examine, lyapunov


class Shrink(torch.autograd.Function):
    """0.9 h, with a backward pass and nothing else, as surrogate gradients of spikes are written."""

    @staticmethod
    def forward(ctx, h):
        return 0.9 * h

    @staticmethod
    def backward(ctx, gradient):
        return 0.9 * gradient


class Leaky(nn.Module):
    def __init__(self):
        super().__init__()
        self.read = nn.Linear(2, 3)

    def initial_state(self, batch):
        return torch.zeros(batch, 3)

    def step(self, x, h):
        h = Shrink.apply(h) + self.read(x)
        return h, h


def test_exponents_through_a_function_with_a_backward_pass_alone():
    found = lyapunov(Leaky(), torch.randn(40, 3, 2))
    assert found.series["exponents"] == pytest.approx([math.log(0.9)] * 3, abs=1e-5)


def test_what_such_a_function_lacks_is_said():
    found = examine(Leaky(), torch.randn(12, 3, 2), scopes=["smoothness"])["smoothness"]
    assert found.status == "failed"
    assert found.why.endswith("; give the model's torch.autograd.Function a setup_context beside its forward")


class FromNothing:
    """The running maximum of its inputs: it begins at -infinity, as the stabilizer of an mLSTM may."""

    def initial_state(self, batch):
        return torch.full((batch, 2), -torch.inf)

    def step(self, x, largest):
        largest = torch.maximum(x, largest)
        return largest, largest


@pytest.mark.parametrize("name", ["stability", "entropy", "lyapunov"])
def test_a_first_state_that_is_infinite_is_called_so(name):
    found = examine(FromNothing(), torch.randn(12, 3, 2), scopes=[name])[name]
    assert found.why == "the model's first state is NaN or infinite: begin with finite numbers"
