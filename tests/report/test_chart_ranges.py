"""What a chart leaves out: markers that are nowhere, and values that a logarithmic axis cannot show."""

from __future__ import annotations

import numpy as np

from mnemoscope.report import Marker
from mnemoscope.report._chart import finite_markers, log_range


def test_markers_at_nan_and_infinity_are_dropped():
    kept, *others = (Marker("y", at, "") for at in (0.0, np.nan, np.inf))
    assert finite_markers([kept, *others]) == (kept,)


def test_log_range_is_positive_and_at_most_sixteen_orders_of_magnitude():
    assert log_range([np.array([0.0, -1.0, np.nan]), np.array([3.0, 0.5, np.inf])]) == (0.5, 3.0)
    assert log_range([np.array([1.0, 1e-16])]) == (1e-16, 1.0)
    assert log_range([np.array([1.0, 1e-17])]) == (1e-16, 1.0)
    assert log_range([np.zeros(3)]) is None
    assert log_range([]) is None
