"""Findings of several models side by side: labels, styles, bands, bounds."""

import numpy as np
import pytest
from specimens import made

from mnemoscope.finding import Finding
from mnemoscope.report._chart import Line, Marker, Style
from mnemoscope.report._view import View, lines_by_kind, lines_of, need_markers, views, with_bounds


def view(index=0, alone=True, needs=None, spread=None, **series):
    finding = Finding("s", "S.", "estimated", series=series, spread=spread or {})
    return View(f"m{index}", index, finding, needs, alone)


@pytest.mark.parametrize(
    ("alone", "kind", "label"),
    [(True, "", "m2"), (True, "cost", "cost"), (False, "", "m2"), (False, "cost", "m2: cost")],
)
def test_labels_name_the_model_the_kind_or_both(alone, kind, label):
    assert view(2, alone).label(kind) == label


@pytest.mark.parametrize(
    ("alone", "kind", "style"),
    [(True, None, Style(2, 2)), (False, None, Style(2, 2)), (True, 4, Style(4, 4)), (False, 4, Style(2, 4))],
)
def test_colors_tell_models_apart_and_dashes_tell_kinds(alone, kind, style):
    assert view(2, alone).style(kind) == style


@pytest.mark.parametrize(
    ("spread", "low", "high"),
    [
        ([[1.0, 2.0, 3.0], [7.0, 8.0, 9.0]], [2, 4, 6], [14, 16, 18]),  # quartiles: lower, upper
        ([1.0, 2.0, 3.0], [8, 6, 4], [12, 14, 16]),  # a deviation on both sides of 5
        ([[1.0], [2.0]], None, None),
    ],
)
def test_band_is_the_quartiles_or_the_deviation(spread, low, high):
    shown = view(y=np.full(3, 5.0), spread={"y": np.array(spread)})
    (line,) = shown.line("y", scale=2.0)
    np.testing.assert_array_equal(line.y, [10, 10, 10])
    for edge, wanted in ((line.low, low), (line.high, high)):
        if wanted is None:
            assert edge is None
        else:
            np.testing.assert_array_equal(edge, wanted)


def test_lines_are_drawn_against_numbers_from_start_or_another_series():
    shown = view(y=np.array([3.0, 4.0]), at=np.array([10, 20]))
    assert [line.x.tolist() for line in (*shown.line("y"), *shown.line("y", start=1), *shown.line("y", x="at"))] == [
        [0, 1],
        [1, 2],
        [10, 20],
    ]
    assert list(shown.line("missing")) == []


def test_lines_come_model_by_model_and_kind_by_kind():
    shown = [view(0, False, a=np.ones(2), b=np.ones(2)), view(1, False, b=np.ones(2))]
    kinds = (("a", "first"), ("b", "second"))
    lines = lines_by_kind(shown, kinds, first=3)
    assert [(line.name, line.style) for line in lines] == [
        ("m0: first", Style(0, 3)),
        ("m0: second", Style(0, 4)),
        ("m1: second", Style(1, 4)),
    ]
    assert [line.name for line in lines_of(shown, "b")] == ["m0", "m1"]


def test_need_markers_are_sorted_and_each_need_has_one():
    shown = [view(needs=needs) for needs in (30.0, 8.0, None, 30.0, 2.5)]
    assert need_markers(shown) == [
        Marker("x", 2.5, "the task needs 2.5"),
        Marker("x", 8.0, "the task needs 8"),
        Marker("x", 30.0, "the task needs 30"),
    ]


def test_views_keep_the_models_order_and_skip_what_has_no_result():
    found = Finding("horizon", "H.", "estimated")
    failed = Finding("horizon", "H.", "failed")
    examinations = {"c": made(horizon=found), "b": made(horizon=failed), "a": made(horizon=found), "d": made()}
    shown = views(examinations, "horizon")
    assert [(one.name, one.index, one.alone) for one in shown] == [("c", 0, False), ("a", 2, False)]


def test_bounds_are_cut_above_a_million_times_the_largest_measured_value():
    x = np.arange(4.0)
    measured = Line("m", x, np.array([1.0, 2.0, np.nan, 1.0]))
    bound = Line("b", x, np.array([1.0, 2e6, 2.1e6, np.nan]))
    shown = with_bounds([measured], [bound])
    assert [line.name for line in shown] == ["m", "b (beyond the chart)"]
    np.testing.assert_array_equal(shown[1].y, [1.0, 2e6, np.nan, np.nan])
    within = Line("b", x, np.full(4, 2e6))
    assert with_bounds([measured], [within])[1] is within
    assert with_bounds([], [bound]) == (bound,)
