"""How a quantity falls off with the lag: where it ends, and by which law."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

LEAST_QUALITY = 0.9


@dataclass(frozen=True)
class Law:
    """A law fitted to a profile g(k), k >= 1: `exponential` g = a rate^k or `power law` g = a k^exponent.

    `rate` is exp of the slope against k, `exponent` the slope against ln k; both are given whichever fits. `quality` is
    the share of the variance of ln g that the chosen law explains, `advantage` how much better it is than the other in
    AIC. `none` where there are too few lags to tell, or where neither explains nine tenths of the variance: a memory
    that is looked up at one lag falls by no law.
    """

    name: str
    rate: float
    exponent: float
    quality: float
    advantage: float


def fit(profile: np.ndarray, floor: float) -> Law:
    """Fit both laws to ln g over the lags at which g is above `floor` times its largest, and choose by AIC."""
    lags = np.arange(1, len(profile))
    values = profile[1:]
    usable = np.isfinite(values) & (values > floor * np.nanmax(profile, initial=0.0)) & (values > 0)
    if usable.sum() < 4:
        return Law("none", math.nan, math.nan, math.nan, math.nan)
    k, logs = lags[usable].astype(float), np.log(values[usable])
    slope, residual = _line(k, logs)
    exponent, residual_power = _line(np.log(k), logs)
    total = float(((logs - logs.mean()) ** 2).sum())
    name, best, other = ("exponential", residual, residual_power)
    if residual_power < residual:
        name, best, other = ("power law", residual_power, residual)
    tiny = 1e-24 * len(k)
    advantage = len(k) * (math.log(other + tiny) - math.log(best + tiny))  # both laws have two parameters
    quality = 1 - best / total if total > tiny else 1.0
    return Law(name if quality >= LEAST_QUALITY else "none", math.exp(slope), exponent, quality, advantage)


def _line(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """The slope of a straight line through the points, and its sum of squared residuals."""
    slope, offset = np.polyfit(x, y, 1)
    return float(slope), float(((y - slope * x - offset) ** 2).sum())


def last_above(profile: np.ndarray, fraction: float) -> int:
    """The last lag at which a profile is at least `fraction` of its value at lag 0; -1 where it never is."""
    above = np.nonzero(profile >= fraction * profile[0])[0] if profile[0] > 0 else np.array([], int)
    return int(above[-1]) if len(above) else -1


def first_below(profile: np.ndarray, fraction: float) -> float:
    """The first lag at which a profile is under `fraction` of its value at lag 0; infinity where it never is."""
    below = np.nonzero(~(profile >= fraction * profile[0]))[0]
    return float(below[0]) if len(below) else math.inf


def typical(profiles: np.ndarray) -> np.ndarray:
    """The median over sequences, the last axis: sizes differ by orders of magnitude, and some are zero or infinite."""
    with np.errstate(over="ignore"):
        return np.median(profiles, axis=-1)
