"""What is said of long chaotic runs, and of runs of one step."""

import math

import pytest
import torch

from mnemoscope import MnemoscopeError
from mnemoscope.scopes import lyapunov
from mnemoscope.scopes._smoothness import _sentence
from mnemoscope.systems import LogisticMap


def test_a_slope_that_overflows_grows_to_infinity():
    said = _sentence({"L_x": 2.0, "growth": math.inf}, "exponential", "exponential")
    assert said.startswith("The slope of the cost grows to infinity with the sequences; ")


def test_an_exponent_of_a_chaotic_run_holds_though_its_states_do_not():
    found = lyapunov(LogisticMap(3.9), torch.zeros(400, 2, 1, dtype=torch.float64))
    assert found.labels["regime"] == "chaotic"
    assert "only averages over them hold" in found.warnings[0]


def test_one_step_is_refused_in_words_that_name_no_option():
    model = torch.nn.RNN(3, 4)
    with pytest.raises(MnemoscopeError, match="at least 2 steps; got 1"):
        lyapunov(model, torch.randn(1, 2, 3))
    assert lyapunov(model, torch.randn(1, 2, 3), steps=20).status == "estimated"
