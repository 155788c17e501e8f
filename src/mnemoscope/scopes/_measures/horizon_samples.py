"""The horizon of every sequence seen from each of its end steps, and the one that they have in common."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from mnemoscope.scopes._measures import decay
from mnemoscope.scopes._measures.gradients import JacobianNorms
from mnemoscope.scopes._measures.rounding import rounding
from mnemoscope.scopes._measures.windows import widened


def profiles(norms: JacobianNorms) -> list[np.ndarray]:
    """Return the profile of every sequence seen from each of its end steps, as far back as it goes."""
    return [column[: end + 1] for column, end in zip(norms.frobenius.T, norms.ends.flat, strict=True)]


def horizons(norms: JacobianNorms, fraction: float, dtype: torch.dtype) -> np.ndarray:
    """Return the horizon of every sequence seen from each of its end steps, (end steps, B); NaN for silent ones."""
    found = [float(decay.horizon(profile, fraction, rounding(dtype))) for profile in profiles(norms)]
    return np.where(norms.silent, np.nan, found).reshape(norms.ends.shape)


def median_of_sequences(single: np.ndarray) -> np.ndarray:
    """Return medians (B,) over the end steps, of those that depend on an input; -1 where none does."""
    medians = [np.median(known) if len(known) else -1.0 for known in (each[~np.isnan(each)] for each in single.T)]
    return np.array(medians)


def where_it_ends(norms: JacobianNorms, fraction: float, dtype: torch.dtype) -> dict[str, float]:
    """Return `horizon`, `first_below` and `returns_at` of the typical profile, or of the samples where it hides them.

    A layer that updates some units at every 16th step alone is felt at other lags from each output step. At each such
    lag the median is zero, and the typical profile ends long before that of any sample.
    """
    typical = decay.typical(norms.frobenius)
    found = {
        "horizon": float(decay.horizon(typical, fraction, rounding(dtype))),
        "first_below": decay.first_below(typical, fraction),
        "returns_at": decay.returns_at(typical, fraction),
    }
    single = horizons(norms, fraction, dtype)
    if not found["horizon"] < np.quantile(single[_is_complete(norms, single)], 0.05, method="nearest"):
        return found

    def middle(measure: Callable[[np.ndarray, float], float]) -> float:
        each = [measure(profile, fraction) for profile in profiles(norms)]
        return float(np.quantile(each, 0.5, method="nearest"))

    reach = float(np.quantile(single[_is_complete(norms, single)], 0.5, method="nearest"))
    return {"horizon": reach, "first_below": middle(decay.first_below), "returns_at": middle(decay.returns_at)}


def horizon_range(norms: JacobianNorms, single: np.ndarray, horizon: float) -> np.ndarray:
    """Return the 5 % and 95 % quantiles of the samples' horizons, widened to hold the horizon itself."""
    return widened(single[_is_complete(norms, single)], horizon)


def _is_complete(norms: JacobianNorms, single: np.ndarray) -> np.ndarray:
    """Return which samples (end steps, B) say how far they reach.

    One whose gradient reaches the first step from an early end says only "at least".
    """
    known = ~np.isnan(single)
    longest = norms.ends[known].max(initial=-1)
    return (single < norms.ends) | ((norms.ends == longest) & known)
