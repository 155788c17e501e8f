"""What is said to be known of a system holds for its own sequences, wherever its parameters lie."""

import math

import pytest

from mnemoscope import systems
from mnemoscope.scopes import SCOPES

CASES = [
    systems.LogisticMap(1 + math.sqrt(5)),
    systems.Lorenz(dt=0.001),
    systems.Lorenz(dt=1.0),
    systems.DelayLine(1),
    systems.DelayLine(50),
    systems.DelayLine(120),
    systems.LeakySum(0.5, present=-1.0),
    systems.LeakySum(0.99),
    systems.LeakySum(1 - 1e-12),
    systems.RandomCircuit(1, 4),
    systems.RandomCircuit(4, 70),
    systems.RandomCircuit(20, 4),
    systems.RandomTanhNetwork(1, 2.0),
]


@pytest.mark.parametrize("system", CASES, ids=str)
def test_what_is_known_is_measured(system):
    for known in system.known():
        if known.scope == "attractors" and known.figure in ("fixed_points", "stable_fixed_points"):
            continue  # a search that may miss some
        found = SCOPES[known.scope].measure(system, system.inputs(), **known.options)
        assert known.holds(found.figures[known.figure]), f"{known}; measured {found.sentence}"


def test_little_is_known_where_a_superstable_cycle_has_no_finite_exponent():
    assert {known.figure for known in CASES[0].known()} == {"attractors", "periods", "stable_fixed_points"}
