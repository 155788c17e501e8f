"""What a chart leaves out: markers that are nowhere, and values that a logarithmic axis cannot show."""

from __future__ import annotations

import numpy as np

from mnemoscope.report import Axis, Chart, Line, Marker, Points
from mnemoscope.report._chart import finite_markers
from mnemoscope.report._log_axis import log_range


def test_markers_at_nan_and_infinity_are_dropped():
    kept, *others = (Marker("y", at, "") for at in (0.0, np.nan, np.inf))
    assert finite_markers([kept, *others]) == (kept,)


def test_log_range_is_positive_and_at_most_sixteen_orders_of_magnitude():
    assert log_range([np.array([0.0, -1.0, np.nan]), np.array([3.0, 0.5, np.inf])]) == (0.5, 3.0)
    assert log_range([np.array([1.0, 1e-16])]) == (1e-16, 1.0)
    assert log_range([np.array([1.0, 1e-17])]) == (1e-16, 1.0)
    assert log_range([np.zeros(3)]) is None
    assert log_range([]) is None


def test_a_logarithmic_axis_shows_the_whole_of_a_band():
    x = np.array([1.0, 2.0])
    line = Line("a", x, np.array([1.0, 2.0]), low=np.array([0.01, 0.0]), high=np.array([5.0, 300.0]))
    chart = Chart("c", "C", Axis("x"), Axis("y", log=True), (line, Points("b", x, x)))
    assert chart.log_ends("y") == (0.01, 300.0)
    assert chart.log_ends("x") == (1.0, 2.0)
