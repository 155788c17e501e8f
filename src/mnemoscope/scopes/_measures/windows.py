"""The shortest window whose error is allowed, found among lengths that were tried and then by bisection."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

ErrorOf = Callable[[int], float]
"""The error of a window of so many steps."""


def shortest(lengths: np.ndarray, errors: np.ndarray, allowed: float, error_of: ErrorOf | None = None) -> float:
    """Return the shortest window from which on no error tried exceeds what is allowed; infinity if there is none.

    With `error_of`, the gap below it to the next window tried is closed by bisection.
    """
    too_large = np.nonzero(~(errors <= allowed))[0]
    following = int(too_large[-1]) + 1 if len(too_large) else 0
    if following == len(lengths):
        return math.inf
    enough = int(lengths[following])
    too_short = int(lengths[following - 1]) if following else 0
    return float(enough) if error_of is None else _bisect(too_short, enough, allowed, error_of)


def shortest_near(window: int, lengths: np.ndarray, allowed: float, error_of: ErrorOf) -> float:
    """Return the shortest window of a part of the data, looked for from the `window` of the whole on.

    From there up or down to the next of the `lengths` at which the error is allowed, or is not any more; then by
    bisection. If the part agrees with the whole, two errors show it.
    """
    if not error_of(window) <= allowed:
        too_short = window
        for length in map(int, lengths[lengths > window]):
            if error_of(length) <= allowed:
                return _bisect(too_short, length, allowed, error_of)
            too_short = length
        return math.inf

    enough = window
    for length in (window - 1, *map(int, lengths[lengths < window - 1][::-1])):
        if length == 0 or not error_of(length) <= allowed:
            return _bisect(length, enough, allowed, error_of)
        enough = length
    return float(enough)


def _bisect(too_short: int, enough: int, allowed: float, error_of: ErrorOf) -> float:
    while enough - too_short > 1:
        middle = (enough + too_short) // 2
        if error_of(middle) <= allowed:
            enough = middle
        else:
            too_short = middle
    return float(enough)


def range_in_words(ends: np.ndarray | None, over: str) -> str:
    """Return " (low to high over ...)" of both ends (2,) of a range of steps; empty if they are equal or not known."""
    if ends is None or not ends[0] < ends[1]:
        return ""
    return f" ({ends[0]:.0f} to {ends[1]:.0f} over {over})"


def widened(samples: np.ndarray, figure: float) -> np.ndarray:
    """Return the 5 % and 95 % quantiles (2,) of samples of a figure, widened to hold the figure itself."""
    low, high = np.quantile(samples, [0.05, 0.95], method="nearest")
    return np.array([min(low, figure), max(high, figure)])
