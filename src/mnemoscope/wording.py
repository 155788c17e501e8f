"""Numbers in sentences for users: with their nouns, with their errors, or told apart from 1."""

from __future__ import annotations

import math

SMALLEST_ERROR = 1e-4  # that is written in plain decimals


def counted(number: float, noun: str) -> str:
    """Return a whole number and its noun: "1 step", "2 steps"."""
    return f"{number:.0f} {noun}" if number == 1 else f"{number:.0f} {noun}s"


def all_counted(number: float, noun: str) -> str:
    """Return a whole number of things and that it is all of them: "the one step", "both steps", "all 3 steps"."""
    return {1: f"the one {noun}", 2: f"both {noun}s"}.get(int(number), f"all {counted(number, noun)}")


def with_error(value: float, error: float) -> str:
    """Return "-0.43 ± 0.03": the error to one digit and the value to the same place; the value alone if it has none."""
    if not math.isfinite(error):
        return f"{value:.3g}"
    if error < SMALLEST_ERROR:  # its place would be a row of zeros
        return f"{value:.3g} ± {error:.1g}"
    error = float(f"{error:.1g}")
    place = -math.floor(math.log10(error))
    rounded = round(value, place) + 0.0  # + 0.0: no -0
    return f"{rounded:.{max(place, 0)}f} ± {error:.{max(place, 0)}f}"


def told_from_one(number: float) -> str:
    """Return a number with 3 significant digits, or with as many more as tell it from 1."""
    texts = [f"{number:.{digits}g}" for digits in range(3, 18)]
    return next((text for text in texts if float(text) != 1), "1")
