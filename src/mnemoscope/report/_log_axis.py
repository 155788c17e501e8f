"""Logarithmic axes: what they span, and their ticks."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

LOG_DECADES = 16  # orders of magnitude that a logarithmic axis shows at most
MAX_TICKS = 8  # powers of ten on a logarithmic axis


def log_range(arrays: Iterable[np.ndarray]) -> tuple[float, float] | None:
    """Return the ends of a logarithmic axis: all positive values, but at most sixteen orders of magnitude of them.

    None if no value is positive.
    """
    positive = [values[np.isfinite(values) & (values > 0)] for values in arrays]
    values = np.concatenate(positive) if positive else np.empty(0)
    if not len(values):
        return None
    top = float(values.max())
    return max(float(values.min()), top * 10.0**-LOG_DECADES, 1e-300), top


def log_ticks(low: float, high: float) -> list[float]:
    """Return the ticks of a logarithmic axis from 10**low to 10**high.

    Powers of ten, at most eight of them; 1, 2 and 5 times them, or 1 to 9 times, where the axis is short.
    """
    every = max(1, math.ceil((high - low) / MAX_TICKS))
    multiples: tuple[int, ...] = (1,)
    if high - low <= 0.6:
        multiples = tuple(range(1, 10))
    elif high - low <= 2.5:
        multiples = (1, 2, 5)
    least, most = max(math.floor(low), -300), min(math.ceil(high), 300)  # floats hold little beyond
    powers = [power for power in range(least, most + 1) if power % every == 0]
    values = [multiple * 10.0**power for power in powers for multiple in multiples]
    return [value for value in values if low <= math.log10(value) <= high]


def tick_label(value: float, power_of_ten: str) -> str:
    """Return the label of a tick; `power_of_ten` is the pattern for large and small powers, as "10^{}"."""
    if 1e-3 <= value < 1e4:
        return f"{value:g}"
    digits, power = f"{value:.0e}".split("e")  # a tick is a digit times a power of ten
    label = power_of_ten.format(int(power))
    return label if digits == "1" else f"{digits} × {label}"
