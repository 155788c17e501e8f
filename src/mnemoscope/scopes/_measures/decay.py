"""How a quantity decays with the lag: where it ends, and by which law."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch

from mnemoscope.scopes._measures.rounding import negligible

LEAST_QUALITY = 0.9
FLAT = 0.01  # in ln g: a profile that changes by less over all lags follows no law
GAP = 0.1  # of the line under which a profile counts as gone: below it lies a gap
PLATEAU = 10  # times its last quarter, a profile that ends among rounding errors is still clear of them


@dataclass(frozen=True)
class Law:
    """A law fitted to a profile g(k), k >= 1.

    Attributes:
        name: "exponential" for g = a rate^k, "power law" for g = a k^exponent; "none" if there are too few lags, if
            g is the same at all of them, or if neither law explains nine tenths of the variance, as for a memory that
            is looked up at one lag.
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


def fit(profile: np.ndarray, dtype: torch.dtype) -> Law:
    """Fit both laws to ln g over the lags at which g is above rounding errors, and choose by AIC."""
    # Lags at which the logarithm is meaningful.
    lags = np.arange(1, len(profile))
    values = profile[1:]
    usable = np.isfinite(values) & (values > rounding_level(profile, dtype)) & (values > 0)
    if usable.sum() < 4:
        return Law("none", math.nan, math.nan, math.nan, math.nan)
    k = lags[usable].astype(float)
    logs = np.log(values[usable])

    # Both laws are straight lines: against k, and against ln k.
    slope, residual_exponential = fit_line(k, logs)
    exponent, residual_power = fit_line(np.log(k), logs)
    if residual_power < residual_exponential:
        name, best, other = "power law", residual_power, residual_exponential
    else:
        name, best, other = "exponential", residual_exponential, residual_power

    # Both have two parameters, so that AIC compares the residuals alone.
    tiny = 1e-24 * len(k)
    advantage = len(k) * (math.log(other + tiny) - math.log(best + tiny))
    total = float(((logs - logs.mean()) ** 2).sum())
    quality = 1 - best / total if total > tiny else 1.0
    if quality < LEAST_QUALITY or np.ptp(logs) < FLAT:
        name = "none"
    return Law(name, math.exp(slope), exponent, quality, advantage)


def rounding_level(profile: np.ndarray, dtype: torch.dtype) -> float:
    """Return the level above which a profile is more than rounding errors.

    The product of a loop's Jacobians is accurate however small it is. Where all steps are computed at once, by
    cumulative sums or a Fourier transform, the profile ends in a plateau of rounding errors: it follows no law.
    """
    largest = float(np.nanmax(profile, initial=0.0))
    last = profile[-max(1, len(profile) // 4) :]
    plateau = float(np.nanmedian(last)) if not np.isnan(last).all() else 0.0
    of_sums = min(PLATEAU * plateau, negligible(dtype) * largest)
    return max(torch.finfo(dtype).eps ** 2 * largest, of_sums)


def fit_line(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Return the slope of the least-squares line through the points, and its sum of squared residuals."""
    slope, offset = np.polyfit(x, y, 1)
    return float(slope), float(((y - slope * x - offset) ** 2).sum())


def strongest_past(profile: np.ndarray) -> float:
    """Return the largest value at lags >= 1; 0 if there are none."""
    return float(np.max(profile[1:], initial=0.0))


def horizon(profile: np.ndarray, fraction: float, rounding: float = 0.0) -> int:
    """Return the last lag k >= 1 at which a profile is at least `fraction` of its largest value at lags >= 1.

    The present, lag 0, takes no part: a large direct path from input to output does not shorten the memory beside it.
    0 if nothing of the past is larger than `rounding` times the present; -1 if there is nothing at lag 0 either.
    """
    strongest = strongest_past(profile)
    if not strongest > rounding * profile[0]:
        return 0 if profile[0] > 0 else -1
    return last_above(profile, fraction * strongest)


def last_above(profile: np.ndarray, level: float) -> int:
    """Return the last lag at which a profile is at least `level`; -1 if there is none."""
    above = np.nonzero(profile >= level)[0]
    return int(above[-1]) if len(above) else -1


def first_below(profile: np.ndarray, fraction: float) -> float:
    """Return the first lag k >= 2 under `fraction` of the largest past value, after one that is not; or infinity."""
    above = profile >= fraction * strongest_past(profile)
    reached = np.nonzero(above[1:])[0]
    if not len(reached):
        return math.inf
    begin = 1 + int(reached[0])
    below = np.nonzero(~above[begin:])[0]
    return float(begin + below[0]) if len(below) else math.inf


def returns_at(profile: np.ndarray, fraction: float) -> float:
    """Return the lag from which on a profile is there again after a gap; infinity if there is no gap.

    There: at least `fraction` of the largest past value. In a gap it falls under a tenth of that: a profile that
    wavers around the line has none. Of several gaps it is the last one.
    """
    level = fraction * strongest_past(profile)
    first, last = first_below(profile, fraction), last_above(profile, level)
    if not first < last:
        return math.inf
    gap = np.nonzero(profile[int(first) : last] < GAP * level)[0]
    if not len(gap):
        return math.inf
    after = int(first) + int(gap[-1]) + 1
    return float(after + np.nonzero(profile[after:] >= level)[0][0])


def gaps(profile: np.ndarray, fraction: float) -> int:
    """Return how many gaps a profile has: lags at which it is under a tenth of what it is before and after them."""
    level = fraction * strongest_past(profile)
    there = 1 + np.nonzero(profile[1:] >= level)[0]
    between = [profile[before + 1 : after] for before, after in pairwise(there)]
    return sum(bool((part < GAP * level).any()) for part in between)


def explodes_at(profile: np.ndarray, times: float) -> float:
    """Return the lag from which on a profile stays above `times` its start; infinity if it does not.

    Its start is its value at lag 0, or the first above 0. A rise that comes back is transient growth, not an explosion:
    most of the last tenth of the lags must lie above. NaN counts as above. A zero, as of a step at which all units are
    off, is no return.
    """
    positive = np.nonzero(profile > 0)[0]
    if not len(positive):
        return math.inf
    level = times * profile[int(positive[0])]
    begin = int(np.nonzero((profile > 0) & (profile <= level))[0][-1]) + 1
    tail = profile[-max(1, len(profile) // 10) :]
    explodes = begin <= len(profile) - len(tail) and np.mean(~(tail <= level)) > 0.5
    return float(begin) if explodes else math.inf


def receptive_field(profiles: np.ndarray, smallest: float) -> float:
    """Return one more than the last lag at which any sample, the last axis, is not exactly 0; infinity if none is.

    The edge must be sharp: a profile that falls smoothly below `smallest` times its largest underflows to 0 in the end.
    It must be seen: a sample that is felt as far back as it goes, to where it becomes NaN, says only "at least". So do
    samples that end before the next lag would be felt, if the last one is followed by as wide a gap as those before:
    a layer that reads the states 8, 16, 24, ... steps back has one after each.
    """
    strongest = np.nanmax(profiles, axis=-1)
    felt = np.nonzero(strongest > 0)[0]
    if not len(felt) or felt[-1] == len(strongest) - 1:
        return math.inf
    last = felt[-1]
    seen_to_end = (profiles[last] > 0) & ~np.isnan(profiles[last + 1])
    if not seen_to_end.any():
        return math.inf
    lags_after = int((~np.isnan(profiles[last + 1 :, seen_to_end])).sum(0).max())
    if lags_after < np.diff(felt, prepend=-1).max():
        return math.inf
    return float(last + 1) if strongest[last] > smallest * strongest.max() else math.inf


def typical(profiles: np.ndarray) -> np.ndarray:
    """Return the median over samples, the last axis: sizes differ by orders of magnitude, or are 0 or infinite.

    The mean if no earlier lag is felt by half of the samples, as where each reads the largest of its inputs. Samples
    are NaN at lags that they do not have.
    """
    with np.errstate(over="ignore"):
        median = np.nanmedian(profiles, axis=-1)
        return median if np.any(median[1:] != 0) else np.nanmean(profiles, axis=-1)
