"""Numbers in sentences."""

import math

import pytest

from mnemoscope.wording import all_counted, with_error


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (-264.3, 12.0, "-260 ± 10"),
        (-264.3, 9.6, "-260 ± 10"),
        (-0.4284, 0.031, "-0.43 ± 0.03"),
        (0.5, 0.2, "0.5 ± 0.2"),
        (-3.0, 12.0, "0 ± 10"),
        (12345.6, 0.3, "12345.6 ± 0.3"),
        (-921.03, 0.0, "-921 ± 0"),
        (-0.693147, 1.2e-9, "-0.693 ± 1e-09"),
        (-0.693147, math.nan, "-0.693"),
        (-0.693147, math.inf, "-0.693"),
    ],
)
def test_a_value_has_the_digits_of_its_error(value: float, error: float, text: str) -> None:
    assert with_error(value, error) == text


def test_all_of_one_or_two_are_said_in_words() -> None:
    """A finding said "all 2 steps", and a headline "all 1 step"."""
    assert [all_counted(number, "step") for number in (1, 2.0, 3)] == ["the one step", "both steps", "all 3 steps"]
