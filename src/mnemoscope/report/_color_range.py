"""Colors of several models: on one scale, so that they can be compared, or on scales of their own, which is said."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

NARROW = 10  # how many times a plane's own range one color scale may span


def common_range(costs: Sequence[np.ndarray]) -> tuple[float, float] | None:
    """The range of all planes together; None if there are not several, or one spans less than a tenth of it."""
    finite = [cost[np.isfinite(cost)] for cost in costs]
    if len(finite) < 2 or not all(values.size for values in finite):
        return None
    low = float(min(values.min() for values in finite))
    high = float(max(values.max() for values in finite))
    narrowest = min(float(np.ptp(values)) for values in finite)
    return (low, high) if 0 < high - low <= NARROW * narrowest else None


def remark_on_colors(models: int, color_range: tuple[float, float] | None) -> str:
    """Return what the titles of several models' charts say of their colors; nothing for one model."""
    if models < 2:
        return ""
    return " (colors on a scale of its own)" if color_range is None else " (one color scale for all models)"


def without_outliers(z: np.ndarray) -> np.ndarray:
    """Return sizes cut off at their 99 % quantile, if a few very large ones would leave all others dark."""
    known = z[np.isfinite(z)]
    if not known.size or known.min() < 0:
        return z
    top = float(np.quantile(known, 0.99))
    return np.minimum(z, top) if known.max() > 2 * top > 0 else z
