"""The period at which states repeat: found where there is one, and not where they only come nearer to a point."""

from __future__ import annotations

import numpy as np
import pytest

from mnemoscope.scopes._measures.periods import find_period


@pytest.mark.parametrize("period", [1, 2, 5, 32])
def test_find_period(period: int) -> None:
    wave = np.tile(np.random.default_rng(period).normal(size=(period, 3)), (80 // period + 1, 1))[:80]
    assert find_period(wave) == period
    assert find_period(np.random.default_rng(0).normal(size=(80, 3))) == 0


def test_find_period_waits_for_a_slow_approach() -> None:
    slow = 0.9999 ** np.arange(64.0)[:, None]
    assert find_period(slow) == 0
    assert find_period(1 + 1e-6 * 0.5 ** np.arange(64.0)[:, None]) == 1


@pytest.mark.parametrize("amplitude", [1.0, 1e-3, 3e-6, 1e-6, 1e-8, 1e-14])
@pytest.mark.parametrize("angle", [np.pi - 0.1, 2 * np.pi / 5 + 0.02, 0.3])
def test_a_spiral_into_a_fixed_point_is_no_cycle(amplitude, angle) -> None:
    """Turning by about half a circle, a state is nearer to where it was two steps before than to the last one."""
    t = np.arange(64)
    z = amplitude * (0.98 * np.exp(1j * angle)) ** t
    assert find_period(np.stack([z.real, z.imag], 1)) in (0, 1)


def test_small_cycles_are_found() -> None:
    """Around 1, of a size of 1e-6, and exact: more than rounding, though less than what counts as the same."""
    orbit = 1 + 1e-6 * np.array([[1.0], [-1.0]] * 32)
    assert find_period(orbit) == 2
