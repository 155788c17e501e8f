import numpy as np
import pytest
from specimens import bare, horizon_of, made, measured, orbits_of

from mnemoscope.finding import Finding
from mnemoscope.report._chart import Axis, Bars, Chart, HeatMap, Line, Marker, Plane, Points, format_number
from mnemoscope.report._charts import CHARTS, charts_of, scopes_of
from mnemoscope.report._charts.generic import generic
from mnemoscope.report._view import views

MODELS = {"LSTM": measured, "RelRNN": measured}


def _sizes(mark):
    match mark:
        case Line() | Points():
            return len(mark.x), len(mark.y)
        case Bars():
            return len(mark.labels), len(mark.values)
        case HeatMap() | Plane():
            return (len(mark.y), len(mark.x)), mark.z.shape


@pytest.mark.parametrize("make", [measured, bare])
@pytest.mark.parametrize("models", [("LSTM",), ("RelRNN",), ("LSTM", "RelRNN")])
def test_every_scope_is_drawn_by_its_own_function(make, models):
    examinations = {model: make(model) for model in models}
    drawn = set()
    for scope in scopes_of(examinations):
        shown = views(examinations, scope)
        charts = CHARTS[scope](shown) if shown else []  # raises where a series is not as its scope describes it
        assert [c.key for c in charts if c.marks] == [c.key for c in charts_of(examinations, scope)]
        for chart in charts:
            drawn.add(scope)
            for mark in chart.marks:
                one, other = _sizes(mark)
                assert one == other, chart.key
    assert drawn == {scope for e in examinations.values() for scope, f in e.findings.items() if f.has_result}


def test_models_are_overlaid_in_one_chart_each_in_its_own_color():
    examinations = {"a": made("a", horizon=horizon_of(5)), "b": made("b", horizon=horizon_of(20))}
    (chart,) = charts_of(examinations, "horizon")
    assert [(mark.name, mark.style.color) for mark in chart.marks] == [("a: by inputs", 0), ("b: by inputs", 1)]


def test_gradients_are_relative_to_the_largest_of_the_past_and_keep_their_band():
    (chart,) = charts_of({"a": made(horizon=horizon_of(10))}, "horizon")
    (line,) = chart.marks
    assert line.y[1] == pytest.approx(1)
    assert line.y[11] == pytest.approx(0.01)
    np.testing.assert_allclose(line.low, line.y / 2)
    np.testing.assert_allclose(line.high, line.y * 2)


def test_needs_are_marked_if_known():
    known = made(horizon=horizon_of())
    known.about["needs"] = "33"
    (chart,) = charts_of({"a": known}, "horizon")
    assert ("x", 33.0, "the task needs 33") in [(m.axis, m.at, m.text) for m in chart.markers]
    (chart,) = charts_of({"a": made(horizon=horizon_of())}, "horizon")
    assert all(marker.axis == "y" for marker in chart.markers)


def test_orbits_keep_every_point_over_its_value():
    finding = orbits_of(50, 20)
    (chart,) = charts_of({"a": made(attractors=finding)}, "attractors")
    (cloud,) = chart.marks
    assert isinstance(cloud, Points)
    assert len(cloud.x) == 1000
    at = cloud.x == finding.series["values"][7]
    np.testing.assert_array_equal(np.sort(cloud.y[at]), np.sort(finding.series["orbits"][7].flatten()))


def test_an_unknown_scope_is_drawn_generically():
    series = {"curve": np.arange(5.0), "few": np.ones((2, 5)), "many": np.ones((30, 9)), "one": np.array(3.0)}
    new = Finding("novel_scope", "New.", "estimated", series=series)
    charts = charts_of({"a": made(novel_scope=new)}, "novel_scope")
    kinds = {chart.title: type(chart.marks[0]).__name__ for chart in charts}
    assert kinds == {"curve": "Line", "few": "Line", "many": "HeatMap"}


def test_a_number_that_no_drawing_can_use_falls_back_to_generic_charts():
    finding = Finding(
        "recurrence",
        "It is recurrent.",
        "estimated",
        figures={"sequence": np.inf, "step": 2.0},
        series={"gradient_by_step": np.ones(4), "gradient_by_sequence": np.ones(3)},
    )
    assert charts_of({"a": made(recurrence=finding)}, "recurrence")


def test_findings_of_another_version_fall_back_to_generic_charts():
    old = Finding("stability", "Old.", "estimated", series={"norms": np.arange(4.0)})
    (chart,) = charts_of({"a": made(stability=old)}, "stability")
    assert chart.title == "norms"


def test_findings_without_a_result_have_no_chart():
    failed = Finding("horizon", "horizon failed: no.", "failed", "no")
    assert charts_of({"a": made(horizon=failed)}, "horizon") == []
    assert generic([]) == []


def test_keys_are_unique_on_a_page():
    examinations = {name: bare(name) for name in ("LSTM", "RelRNN")}
    keys = [chart.key for scope in scopes_of(examinations) for chart in charts_of(examinations, scope)]
    assert len(keys) == len(set(keys)) > 12


def test_summary_of_a_horizon_chart():
    (chart,) = charts_of({"a": made(horizon=horizon_of(10))}, "horizon")
    assert isinstance(chart, Chart)
    assert "from 1.585 at 0 to" in chart.summary  # relative to lag 1
    assert "Marked at 0.01: 1 %" in chart.summary


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (12.0, "12"),
        (-3.0, "-3"),
        (0.05594, "0.05594"),
        (0.055944, "0.05594"),
        (0.001, "0.001"),
        (0.000999, "9.99e-4"),
        (999.94, "999.9"),
        (1000.0, "1,000"),
        (1234.5, "1,234"),
        (1235.5, "1,236"),
        (99999.4, "99,999"),
        (100000.0, "1e5"),
        (2.5e7, "2.5e7"),
        (-123456.0, "-1.23e5"),
        (1e-9, "1e-9"),
        (float("inf"), "∞"),
        (-float("inf"), "-∞"),
        (float("nan"), "not known"),
    ],
)
def test_numbers_as_people_write_them(value, text):
    assert format_number(value) == text


def test_a_bound_far_above_does_not_hide_what_was_measured():
    lengths, measured = np.array([4.0, 8.0, 16.0]), np.array([2.0, 2.0, 4.0])
    slopes = Finding(
        "smoothness",
        "Smooth.",
        "estimated",
        series={"lengths": lengths, "cost_slope": measured, "promised": np.array([5.0, 5e3, 5e90])},
    )
    (chart,) = charts_of({"a": made(smoothness=slopes)}, "smoothness")
    cost, bound = chart.marks
    np.testing.assert_allclose(cost.y, [1, 1, 2])
    np.testing.assert_array_equal(bound.y, [1, 1e3, np.nan])
    assert bound.name == "allowed by Theorem 1 (beyond the chart)"


def test_marker_labels_do_not_overlap():
    axes, level, upright = (Axis("x"), Axis("y")), Marker("y", 0.01, "gone"), Marker("x", 9.0, "needed")
    left = Marker("y", 0.01, "gone", left=True)
    assert Chart("a", "A", *axes, (), (level,)).level_label(level) == (1, "right", "bottom")
    assert Chart("a", "A", *axes, (), (left,)).level_label(left) == (0, "left", "bottom")
    assert Chart("b", "B", *axes, (), (level, upright)).level_label(level) == (0, "left", "top")


@pytest.mark.parametrize(("lowest", "edge"), [(1e-4, "top"), (0.009, "bottom"), (0.1, "bottom")])
def test_the_label_of_a_level_at_the_foot_of_a_chart_stands_above_its_line(lowest, edge):
    markers = Marker("y", 0.01, "gone"), Marker("x", 9.0, "needed")
    falling = Line("a", np.arange(2.0), np.array([1.0, lowest]))
    assert Chart("c", "C", Axis("x"), Axis("y", log=True), (falling,), markers).level_label(markers[0]).vertical == edge


def test_a_line_of_one_model_is_named_where_the_page_has_others():
    signal = Finding("signal", "S.", "estimated", series={"activation_variance": np.arange(1.0, 5.0)})
    (alone,) = charts_of({"a": made(signal=signal)}, "signal")
    (beside,) = charts_of({"a": made(signal=signal), "b": made(horizon=horizon_of(10))}, "signal")
    assert [mark.name for mark in alone.marks] == [mark.name for mark in beside.marks] == ["a"]
    assert not alone.has_legend
    assert beside.has_legend
