"""Steps that count steps, and do something else at some of them."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import mnemoscope
from mnemoscope.scopes import attractors, lyapunov
from mnemoscope.scopes._attractors import ENOUGH_STARTS


class Clocked(nn.Module):
    """A step h, x, t -> h whose state holds the number of steps so far, as an int or as a tensor."""

    input_size = 1

    def __init__(self, after, counter=0):
        super().__init__()
        self.after, self.counter = after, counter

    def initial_state(self, batch):
        return {"h": torch.zeros(batch, 2, dtype=torch.float64), "t": self.counter}

    def step(self, x, state):
        h = self.after(state["h"], x, int(state["t"]))
        return h, {"h": h, "t": state["t"] + 1}


COUNTERS = [0, torch.tensor(0), torch.tensor(0, dtype=torch.int32)]


def inputs(steps=40):
    return torch.randn(steps, 3, 1, dtype=torch.float64)


@pytest.mark.parametrize("counter", COUNTERS, ids=str)
def test_a_sum_that_is_reset_has_one_cycle(counter):
    """The first step alone has a fixed point, h = x: it was counted as an attractor."""
    model = Clocked(lambda h, x, t: x.expand(-1, 2) if t % 10 == 0 else h + x, counter)
    found = attractors(model, inputs())
    assert found.figures["attractors"] == 1
    assert found.figures["periods"] == 10
    assert "fixed_points" not in found.figures
    assert found.sentence.endswith("nothing of the past but how many steps there were.")


def test_a_clock_that_updates_one_unit_at_a_time_ends_in_one_fixed_point():
    """Where a step leaves a unit alone its Jacobian has the eigenvalue 1: the fixed point was called unstable."""
    units = torch.eye(2, dtype=torch.float64)
    model = Clocked(lambda h, x, t: h + units[t % 2] * (0.5 * h + x - h))
    found = attractors(model, inputs())
    assert (found.figures["attractors"], found.figures["periods"]) == (1, 1)
    assert "stable_fixed_points" not in found.figures


@pytest.mark.parametrize("counter", COUNTERS, ids=str)
def test_a_counter_that_changes_nothing_leaves_the_fixed_points(counter):
    found = attractors(Clocked(lambda h, x, t: 0.5 * h + x, counter), inputs())
    assert (found.figures["fixed_points"], found.figures["stable_fixed_points"]) == (1, 1)


@pytest.mark.parametrize("counter", COUNTERS, ids=str)
def test_exponents_of_a_clocked_step(counter):
    model = Clocked(lambda h, x, t: (0.9 if t % 2 else 0.4) * h + x, counter)
    found = lyapunov(model, inputs(400))
    np.testing.assert_allclose(found.series["exponents"], math.log(0.9 * 0.4) / 2, rtol=1e-2)


def test_a_cycle_keeps_its_phase():
    found = attractors(Clocked(lambda h, x, t: torch.tanh(-2 * h + 0 * x)), inputs())
    assert found.figures["attractors"] > 1  # two units of which each may be a step behind
    model = mnemoscope.RNN(1, 1, bias=False)
    nn.init.constant_(model.weight_hh_l0, -2.0)
    found = attractors(model, torch.zeros(5, 2, 1))
    assert found.sentence.endswith("its phase on the cycle.")


def test_a_maximum_keeps_one_of_many_values():
    """Starts below the input end at it, and each of the others where it is: 31 attractors were called all of them."""
    found = attractors(Clocked(lambda h, x, t: torch.maximum(h[:, :1], x).expand(-1, 2)), inputs())
    assert ENOUGH_STARTS < found.figures["attractors"] < found.figures["starts"]
    assert "more starts would find more: the state can keep a continuous value, or one of many" in found.sentence
