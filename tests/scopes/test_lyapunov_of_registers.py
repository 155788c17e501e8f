"""Exponents of shift registers, in which nothing of a start is left after as many steps as they have places."""

import math

import pytest

from mnemoscope.scopes import lyapunov
from mnemoscope.systems import DelayLine


@pytest.mark.parametrize("steps", [100, 400])
@pytest.mark.parametrize("places", [8, 20, 32, 33, 64])
def test_nothing_is_left_of_a_start_in_a_register(places: int, steps: int) -> None:
    """QR puts arbitrary directions in the place of those that a shift has ended; they are no part of the spectrum."""
    line = DelayLine(places)
    found = lyapunov(line, line.inputs(steps=steps))
    assert found.figures["largest"] == -math.inf
    assert found.labels["regime"] == "contractive"
