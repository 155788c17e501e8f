"""Windows of a step that counts steps begin at the count that they have in the whole sequence."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from mnemoscope.scopes import truncation


class DeltaRule(nn.Module):
    """Writes every input to the next of four columns, half of it: S_j -> S_j / 2 + x / 2 (Schlag et al. 2021)."""

    input_size = 2

    def __init__(self, first):
        super().__init__()
        self.rate, self.first = nn.Parameter(torch.tensor(0.5)), first

    def initial_state(self, batch):
        return torch.zeros(batch, 2, 4), self.first(batch)

    def step(self, x, state):
        memory, t = state
        key = F.one_hot(torch.as_tensor(t) % 4, 4).expand(len(x), 4).to(x)
        memory = memory + self.rate * (x[..., None] - memory) * key[:, None]
        return memory.flatten(1), (memory, t + 1)


FIRST = {
    "int": lambda batch: 0,
    "tensor": lambda batch: torch.tensor(0),
    "one a sequence": lambda batch: torch.zeros(batch, dtype=torch.long),
}


@pytest.mark.parametrize("first", FIRST.values(), ids=list(FIRST))
def test_a_window_keeps_its_place_in_the_cycle(first):
    """Only windows of a multiple of four steps began with the same column: 76 of 80 steps were said to be needed."""
    found = truncation(DeltaRule(first), torch.randn(80, 3, 2))
    assert 24 <= found.figures["window"] <= 32  # each column is halved 6 to 8 times
    assert found.figures["gradient_window"] <= 40


class LastId(nn.Module):
    """Reads one step late: the whole number in its state is an input, and no counter."""

    input_size = 1

    def initial_state(self, batch):
        return torch.zeros(batch, 1), torch.zeros(batch, dtype=torch.long)

    def step(self, x, state):
        return state[1][:, None].to(x), (state[0], (100 * x[:, 0]).long())


def test_a_whole_number_that_inputs_change_is_memory():
    assert truncation(LastId(), torch.randn(20, 3, 1)).figures["window"] == 2


class Latch(nn.Module):
    """Gives its input once one was above 1.5, and else nothing: a switch that in the end is on for all inputs."""

    input_size = 1

    def initial_state(self, batch):
        return torch.zeros(batch, 1), torch.zeros(batch, dtype=torch.long)

    def step(self, x, state):
        on = state[1] | (x[:, 0] > 1.5).long()
        return x * on[:, None], (state[0] + 0 * x, on)


def test_a_switch_that_all_inputs_turn_on_is_memory():
    """In the end it is the same after other inputs, but not at every step; one input was said to be enough."""
    x = torch.randn(100, 4, 1, generator=torch.Generator().manual_seed(0))
    last = [int((x[:, b, 0] > 1.5).nonzero()[-1]) for b in range(4)]
    window = truncation(Latch(), x).figures["window"]
    assert window == 100 - min(last) > 10
