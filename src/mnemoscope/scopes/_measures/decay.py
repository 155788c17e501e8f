"""How a quantity decays with the lag: where it ends, and by which law."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

LEAST_QUALITY = 0.9


@dataclass(frozen=True)
class Law:
    """A law fitted to a profile g(k), k >= 1.

    Attributes:
        name: "exponential" for g = a rate^k, "power law" for g = a k^exponent; "none" if there are too few lags, or if
            neither law explains nine tenths of the variance, as for a memory that is looked up at one lag.
        rate: exp of the slope of ln g against k; given whichever law fits.
        exponent: the slope of ln g against ln k; given whichever law fits.
        quality: the fraction of the variance of ln g that the chosen law explains.
        advantage: how much better the chosen law is than the other, in AIC.
    """

    name: str
    rate: float
    exponent: float
    quality: float
    advantage: float


def fit(profile: np.ndarray, floor: float) -> Law:
    """Fit both laws to ln g over the lags at which g is above `floor` times its largest, and choose by AIC."""
    # Lags at which the logarithm is meaningful.
    lags = np.arange(1, len(profile))
    values = profile[1:]
    usable = np.isfinite(values) & (values > floor * np.nanmax(profile, initial=0.0)) & (values > 0)
    if usable.sum() < 4:
        return Law("none", math.nan, math.nan, math.nan, math.nan)
    k = lags[usable].astype(float)
    logs = np.log(values[usable])

    # Both laws are straight lines: against k, and against ln k.
    slope, residual_exponential = _fit_line(k, logs)
    exponent, residual_power = _fit_line(np.log(k), logs)
    if residual_power < residual_exponential:
        name, best, other = "power law", residual_power, residual_exponential
    else:
        name, best, other = "exponential", residual_exponential, residual_power

    # Both have two parameters, so that AIC compares the residuals alone.
    tiny = 1e-24 * len(k)
    advantage = len(k) * (math.log(other + tiny) - math.log(best + tiny))
    total = float(((logs - logs.mean()) ** 2).sum())
    quality = 1 - best / total if total > tiny else 1.0
    if quality < LEAST_QUALITY:
        name = "none"
    return Law(name, math.exp(slope), exponent, quality, advantage)


def _fit_line(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Return the slope of the least-squares line through the points, and its sum of squared residuals."""
    slope, offset = np.polyfit(x, y, 1)
    return float(slope), float(((y - slope * x - offset) ** 2).sum())


def last_above(profile: np.ndarray, fraction: float) -> int:
    """Return the last lag at which a profile is at least `fraction` of its value at lag 0; -1 if there is none."""
    if not profile[0] > 0:
        return -1
    above = np.nonzero(profile >= fraction * profile[0])[0]
    return int(above[-1]) if len(above) else -1


def first_below(profile: np.ndarray, fraction: float) -> float:
    """Return the first lag at which a profile is under `fraction` of its value at lag 0; infinity if there is none."""
    below = np.nonzero(~(profile >= fraction * profile[0]))[0]
    return float(below[0]) if len(below) else math.inf


def typical(profiles: np.ndarray) -> np.ndarray:
    """Return the median over sequences, the last axis: sizes differ by orders of magnitude, or are 0 or infinite."""
    with np.errstate(over="ignore"):
        return np.median(profiles, axis=-1)
