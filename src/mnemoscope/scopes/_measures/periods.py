"""Orbits that settle: the period at which states repeat, and whether they still come nearer to where they end."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

LONGEST_PERIOD = 32
SAME = 1e-4  # states nearer than this, relative to their size, are one
SMALL = 0.01  # the smallest size for that: an orbit that decays to zero has ended in a fixed point


def any_approaching(states: Tensor) -> bool:
    """True if some orbit of (recorded, starts, N) has no period yet and still comes nearer to where it ends."""
    noise = rounding_noise(states.dtype)
    orbits = states.transpose(0, 1).double().numpy()
    return any(not find_period(orbit, noise=noise) and _is_approaching(orbit) for orbit in orbits)


def _is_approaching(orbit: np.ndarray) -> bool:
    """True if the displacement over the period at which (steps, N) repeats best has shrunk by a twentieth."""
    if not np.isfinite(orbit).all():
        return False
    best = min((_displacements(orbit, p) for p in range(1, longest_period(len(orbit)) + 1)), key=max)
    return best[1] < 0.95 * best[0]


def longest_period(recorded: int) -> int:
    """Return the longest period that is looked for in so many recorded steps: it must be seen twice."""
    return max(1, min(LONGEST_PERIOD, recorded // 2))


def _displacements(orbit: np.ndarray, period: int) -> tuple[float, float]:
    """Return how far states (steps, N) are from where they were a period before: in the first and the second half."""
    distance = np.abs(orbit[period:] - orbit[:-period]).max(1)
    half = (len(distance) + 1) // 2
    return float(distance[:half].max()), float(distance[len(distance) - half :].max())


def rounding_noise(dtype: torch.dtype) -> float:
    """Return the relative change that counts as rounding."""
    return 100 * torch.finfo(dtype).eps


def find_period(orbit: np.ndarray, noise: float = 1e-13) -> int:
    """Return the least p for which states (steps, N) repeat after p steps; 0 if there is none, see `longest_period`.

    They must repeat up to 1e-4 of their size now, and at the end of their approach, extrapolated from both halves of
    the recording: a slow approach is no fixed point yet. Nor is a spiral into one a cycle: the steps of a cycle must be
    longer than what counts as the same.
    """
    if not np.isfinite(orbit).all():
        return 0
    size = max(np.abs(orbit).max(), SMALL)
    shortest_step = math.inf  # over fewer steps than the period
    for period in range(1, longest_period(len(orbit)) + 1):
        first, second = _displacements(orbit, period)
        if max(first, second) < noise * size:
            return period if shortest_step > 100 * noise * size else 1
        if shortest_step > 10 * SAME * size and max(first, second) < SAME * size and second < first:
            steps_between = max(1, (len(orbit) - period) // 2)
            per_period = (second / first) ** (period / steps_between)
            if second / (1 - per_period) < SAME * size:
                return period
        shortest_step = min(shortest_step, second)
    return 0
