"""The numbers in the charts of each scope: which series, which axis, which order."""

import numpy as np
import pytest
from specimens import made

from mnemoscope.finding import Finding
from mnemoscope.report._chart import Axis, Bars, Chart, HeatMap, Line, Marker, Plane, Points
from mnemoscope.report._charts import charts_of, scopes_of
from mnemoscope.report._interactive import plotly_chart
from mnemoscope.report._palette import LIGHT

same = np.testing.assert_array_equal


def charts(scope, series, figures=None, labels=None, certified=(), models=1, spread=None):
    """The charts of a scope by key, of `models` models with the same finding."""
    finding = Finding(
        scope,
        "S.",
        "estimated",
        figures=figures or {},
        certified=certified,
        series=series,
        labels=labels or {},
        spread=spread or {},
    )
    examinations = {f"m{i}": made(**{scope: finding}) for i in range(models)}
    return {chart.key: chart for chart in charts_of(examinations, scope)}


def described(markers):
    return [(marker.axis, marker.at, marker.text) for marker in markers]


def test_horizon_is_relative_to_the_largest_of_the_past_of_inputs_and_states_each():
    series = {"input_gradient": np.array([8.0, 2.0, 4.0]), "state_gradient": np.array([0.0, 10.0, 1.0])}
    chart = charts("horizon", series)["horizon-gradient"]
    inputs, states = chart.marks
    assert (inputs.name, states.name) == ("by inputs", "by states")
    same(inputs.y, [2, 0.5, 1])
    same(states.y, [0, 1, 0.1])
    same(inputs.x, [0, 1, 2])
    assert described(chart.markers) == [("y", 0.01, "1 %: counted as gone")]


@pytest.mark.parametrize(("scope", "figure"), [("horizon", "fraction"), ("truncation", "error")])
def test_charts_mark_the_level_that_was_asked_for(scope, figure):
    series = {"input_gradient": np.array([2.0, 4.0]), "output_error": np.array([1.0, 0.1]), "window": np.array([1, 2])}
    chart = next(iter(charts(scope, series, {figure: 0.05}).values()))
    assert [(at, text[:4]) for _, at, text in described(chart.markers)] == [(0.05, "5 %:")]
    assert [marker.left for marker in chart.markers] == [scope == "truncation"]  # away from where the curves are low


def test_horizon_band_holds_the_middle_half():
    spread = {"input_gradient": np.array([[2.0, 1.0], [8.0, 3.0]])}
    (line,) = charts("horizon", {"input_gradient": np.array([2.0, 4.0])}, spread=spread)["horizon-gradient"].marks
    same(line.low, [0.5, 0.25])
    same(line.high, [2, 0.75])


def test_recurrence_marks_the_output_and_its_own_sequence():
    series = {"gradient_by_step": np.array([0.0, 1.0, 0.5]), "gradient_by_sequence": np.array([0.1, 1.0])}
    found = charts("recurrence", series, {"step": 2, "sequence": 1})
    steps, sequences = found["recurrence-steps"], found["recurrence-sequences"]
    same(steps.marks[0].y, [0, 1, 0.5])
    assert described(steps.markers) == [("x", 2.0, "the output looked at")]
    assert sequences.marks[0].labels == ("0", "1 (its own)")
    same(sequences.marks[0].values, [0.1, 1.0])


def test_truncation_draws_errors_and_bounds_over_the_window():
    names = ("output_error", "gradient_error", "bptt_error", "output_bound", "gradient_bound")
    series = {name: np.full(2, float(i + 1)) for i, name in enumerate(names)} | {"window": np.array([4, 8])}
    chart = charts("truncation", series)["truncation-error"]
    assert [(line.name, line.y[0], line.style.dash) for line in chart.marks] == [
        ("outputs, worst sequence", 1.0, 0),
        ("gradients, last k inputs alone", 2.0, 1),
        ("gradients, backpropagation in chunks", 3.0, 2),
        ("outputs, proved bound", 4.0, 3),
        ("gradients, proved bound", 5.0, 4),
    ]
    same(chart.marks[0].x, [4, 8])


def test_stability_draws_norms_over_steps_and_sorted_ratios():
    series = {"step": np.array([5, 6]), "jacobian_norm": np.array([0.5, 2.0]), "ratio": np.array([0.9, 0.1, 0.5])}
    found = charts("stability", series, {"lambda": 0.7}, certified=("lambda",))
    (cloud,) = found["stability-jacobian"].marks
    assert isinstance(cloud, Points)
    same(cloud.x, [5, 6])
    same(cloud.y, [0.5, 2.0])
    assert described(found["stability-jacobian"].markers) == [
        ("y", 1.0, "1: distances are kept"),
        ("y", 0.7, "certified: m0"),
    ]
    (ratios,) = found["stability-ratio"].marks
    same(ratios.x, [0, 0.5, 1])
    same(ratios.y, [0.1, 0.5, 0.9])
    assert "stability-ratio" not in charts("stability", series | {"ratio": np.array([0.9])}, {"lambda": 0.7})


def test_a_factor_in_another_norm_is_not_drawn_beside_spectral_norms():
    series = {"step": np.array([5]), "jacobian_norm": np.array([2.0]), "ratio": np.array([0.6, 0.5])}
    labels = {"norm": "weighted infinity norm"}
    found = charts("stability", series, {"lambda": 0.7}, labels, certified=("lambda",))
    assert described(found["stability-jacobian"].markers) == [("y", 1.0, "1: distances are kept")]
    assert ("y", 0.7, "certified: m0") in described(found["stability-ratio"].markers)


def test_an_estimated_stretch_is_not_marked_as_certified():
    series = {"step": np.array([5, 6]), "jacobian_norm": np.array([0.5, 2.0])}
    chart = charts("stability", series, {"lambda": 0.7})["stability-jacobian"]
    assert described(chart.markers) == [("y", 1.0, "1: distances are kept")]


def test_lyapunov_counts_exponents_from_one_and_follows_the_largest():
    running = np.array([[0.4, -1.0], [0.2, -2.0]])  # (moments, exponents), largest first
    series = {"exponents": np.array([0.1, -3.0]), "running": running, "running_steps": np.array([10, 20])}
    found = charts("lyapunov", series)
    (spectrum,) = found["lyapunov-spectrum"].marks
    same(spectrum.x, [1, 2])
    same(spectrum.y, [0.1, -3.0])
    (largest,) = found["lyapunov-running"].marks
    same(largest.x, [10, 20])
    same(largest.y, [0.4, 0.2])


def test_signal_has_a_line_per_layer_and_marks_the_preserving_gain():
    series = {"activation_variance": np.array([[1.0, 2.0], [3.0, 4.0]]), "weight_gain": np.array([0.5, 1.5])}
    found = charts("signal", series, {"preserving_gain": 1.25}, {"weights": ["W", "V"]})
    first, second = found["signal-activation-variance"].marks
    assert (first.name, second.name) == ("layer 1", "layer 2")
    same(first.y, [1, 2])
    same(second.y, [3, 4])
    (bars,) = found["signal-weights"].marks
    assert bars.labels == ("W", "V")
    same(bars.values, [0.5, 1.5])
    assert described(found["signal-weights"].markers) == [("y", 1.25, "keeps the variance")]
    (unnamed,) = charts("signal", {"weight_gain": np.array([0.5, 1.5])})["signal-weights"].marks
    assert unnamed.labels == ("0", "1")


def test_attention_map_has_the_attending_step_down_and_the_attended_state_across():
    weights = np.array([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.3, 0.7, 0.0]])  # row t: what step t attends to
    found = charts("attention", {"attention": weights, "lag": np.arange(3.0)})
    chart = found["attention-map-0"]
    (heat,) = chart.marks
    assert (chart.x.title, chart.y.title) == ("state made at step", "attending step")
    same(heat.z, [[np.nan] * 3, [1, np.nan, np.nan], [0.3, 0.7, np.nan]])
    same(heat.x, [0, 1, 2])
    same(heat.y, [0, 1, 2])
    same(found["attention-lag"].marks[0].y, [0, 1, 2])


def test_paths_map_has_hops_down_and_lags_across():
    share = np.array([[1.0, 0.5, 0.2], [0.0, 0.5, 0.8]])  # (hops, lags)
    found = charts("paths", {"share": share, "depth": np.array([0, 1, 2]), "gradient": np.array([1.0, 0.5, 0.1])})
    chart = found["paths-hops-0"]
    (heat,) = chart.marks
    assert (chart.x.title, chart.y.title) == ("steps back (lag)", "hops")
    same(heat.z, share)
    same(heat.x, [0, 1, 2])
    same(heat.y, [0, 1])
    same(found["paths-depth"].marks[0].y, [0, 1, 2])


def test_smoothness_is_relative_to_the_shortest_sequence():
    series = {"lengths": np.array([4, 8]), "cost_slope": np.array([2.0, 6.0]), "gradient_slope": np.array([0.0, 5.0])}
    cost, gradient = charts("smoothness", series)["smoothness-slopes"].marks
    same(cost.y, [1, 3])
    same(gradient.y, [0, 5])  # nothing to be relative to
    same(cost.x, [4, 8])


def test_entropy_draws_the_change_and_both_bounds_in_order():
    series = {name: np.full(2, i) for i, name in enumerate(("change", "hadamard", "log_norm"))}
    lines = charts("entropy", {**series, "steps": np.array([3, 5])})["entropy-change"].marks
    assert [(line.name, line.y[0]) for line in lines] == [
        ("measured", 0),
        ("Hadamard's bound", 1),
        ("bound by the norm", 2),
    ]
    same(lines[0].x, [3, 5])


def test_eigenvalues_have_the_real_part_across():
    series = {"values": np.zeros(1), "orbits": np.zeros((1, 1, 1)), "eigenvalues": np.array([[[0.5, -0.25]]])}
    circle, points = charts("attractors", series)["attractors-eigenvalues"].marks
    same(points.x, [0.5])
    same(points.y, [-0.25])
    np.testing.assert_allclose(circle.x**2 + circle.y**2, 1)
    assert (circle.style.color, points.style.color) == (len(LIGHT) - 1, 0)  # it belongs to no model


def test_unit_circle_of_eigenvalues_is_round():
    series = {"values": np.zeros(1), "orbits": np.zeros((1, 1, 1)), "eigenvalues": np.array([[[0.5, -0.25]]])}
    found = charts("attractors", series)
    assert {key for key, chart in found.items() if chart.equal_axes} == {"attractors-eigenvalues"}


def test_orbits_of_outputs_under_several_constants():
    orbits = np.arange(2 * 3 * 1 * 2.0).reshape(2, 3, 1, 2)  # (constants, values, starts, steps)
    series = {"values": np.array([0.0, 0.5, 1.0]), "orbits": orbits, "outputs": np.stack([orbits, -orbits], -1)}
    labels = {"x": "s", "y": "unit 3 of the state", "outputs": ["output 0", "output 5"]}
    found = charts("attractors", series, labels=labels)
    states, last = found["attractors-orbits"], found["attractors-output-1"]
    assert (states.x.title, states.y.title) == ("s", "unit 3 of the state")
    assert [mark.name for mark in states.marks] == ["input 0", "input 1"]
    assert (last.y.title, last.title) == ("output 5", "Where output 5 ends up")
    same(last.marks[1].x, [0, 0, 0.5, 0.5, 1, 1])
    same(last.marks[1].y, [-6, -7, -8, -9, -10, -11])


def test_titles_that_differ_between_models_are_not_used():
    series = {"x": np.arange(3.0), "cost": np.arange(3.0)}
    findings = [Finding("landscape", "S.", "estimated", series=series, labels={"x": title}) for title in "ab"]
    (chart,) = charts_of({f"m{i}": made(landscape=f) for i, f in enumerate(findings)}, "landscape")
    assert chart.x.title == "first direction"
    assert charts("landscape", series, labels={"x": "s"})["landscape-line"].x.title == "s"


def test_mean_loss_gradient_has_a_chart_of_its_own():
    series = {"input_gradient": np.ones(2), "mean_loss_gradient": np.array([4.0, 2.0])}
    chart = charts("horizon", series, spread={"mean_loss_gradient": np.array([[3.0, 1], [5, 3]])})["horizon-mean-loss"]
    (line,) = chart.marks
    same(line.y, [4, 2])
    same(line.low, [3, 1])


def test_axes_of_shares():
    ratio = {"step": np.zeros(1), "jacobian_norm": np.ones(1), "ratio": np.array([0.5, 0.25])}
    assert charts("stability", ratio, {"lambda": 0.5})["stability-ratio"].x.share
    signals = {"saturated": np.zeros((1, 3)), "activation_variance": np.ones((1, 3))}
    found = charts("signal", signals)
    assert found["signal-saturated"].y.share
    assert not found["signal-activation-variance"].y.share


@pytest.mark.parametrize(
    ("scale", "color_range", "words"),
    [
        (10.0, (0.0, 50.0), "one color scale for all models"),  # the narrower spans a tenth of the scale
        (10.5, None, "colors on a scale of its own"),
    ],
)
def test_planes_of_several_models_share_one_color_scale_or_say_that_they_do_not(scale, color_range, words):
    cost = np.arange(6.0).reshape(2, 3)
    examinations = {}
    for name, factor in (("a", 1.0), ("b", scale)):
        series = {"x": np.arange(3.0), "y": np.arange(2.0), "cost": factor * cost}
        examinations[name] = made(landscape=Finding("landscape", "S.", "estimated", series=series))
    planes = [chart for chart in charts_of(examinations, "landscape") if chart.key.startswith("landscape-plane")]
    assert [chart.title for chart in planes] == [f"The cost around {name} ({words})" for name in "ab"]
    assert [chart.marks[0].color_range for chart in planes] == [color_range] * 2


@pytest.mark.parametrize(
    ("factor", "color_range", "words"),
    [
        (8.0, (1.0, 48.0), "one color scale for all models"),
        (9.0, None, "colors on a scale of its own"),  # it would span 53, more than ten times 5
    ],
)
def test_attention_maps_of_several_models_share_one_color_scale_or_say_that_they_do_not(factor, color_range, words):
    attention = np.arange(1.0, 7.0).reshape(2, 3)
    examinations = {}
    for name, scale in (("a", 1.0), ("b", factor)):
        series = {"attention": scale * attention, "received": np.ones(3)}
        examinations[name] = made(attention=Finding("attention", "S.", "estimated", series=series))
    maps = [chart for chart in charts_of(examinations, "attention") if chart.key.startswith("attention-map")]
    assert [chart.title for chart in maps] == [f"Where {name} looks ({words})" for name in "ab"]
    assert [chart.marks[0].color_range for chart in maps] == [color_range] * 2
    drawn = [plotly_chart(chart)["data"][0] for chart in maps]
    assert [(trace.get("zmin"), trace.get("zmax")) for trace in drawn] == [color_range or (None, None)] * 2


def test_shares_of_paths_are_colored_from_0_to_1():
    found = charts("paths", {"share": np.full((2, 3), 0.4), "gradient": np.ones(3), "depth": np.ones(3)})
    assert found["paths-hops-0"].marks[0].color_range == (0.0, 1.0)


def test_plane_of_one_model_has_its_own_range_and_no_remark():
    series = {"x": np.arange(3.0), "y": np.arange(2.0), "cost": np.arange(6.0).reshape(2, 3)}
    chart = charts("landscape", series)["landscape-plane-0"]
    assert (chart.title, chart.marks[0].color_range) == ("The cost around m0", None)


def test_landscape_has_the_first_direction_across_and_the_second_down():
    series = {"x": np.arange(3.0), "y": np.arange(2.0), "cost": np.arange(6.0).reshape(2, 3), "path": np.ones((4, 2))}
    chart = charts("landscape", series)["landscape-plane-0"]
    (plane,) = chart.marks
    assert isinstance(plane, Plane)
    assert (chart.x.title, chart.y.title) == ("first direction", "second direction")
    assert plane.z.shape == (len(plane.y), len(plane.x)) == (2, 3)
    same(plane.path, np.ones((4, 2)))
    line = {"x": np.arange(3.0), "cost": np.arange(3.0), "held_out": np.full(3, 7.0)}
    here, others = charts("landscape", line)["landscape-line"].marks
    assert (here.name, others.name) == ("on these sequences", "on others")
    same(others.y, [7, 7, 7])


def test_singular_values_are_counted_from_one():
    (line,) = charts("separation", {"singular_values": np.array([1.0, 0.1])})["separation-spectrum"].marks
    same(line.x, [1, 2])


@pytest.mark.parametrize(("rows", "kind"), [(8, Line), (9, HeatMap)])
def test_generic_matrices_are_lines_up_to_eight_rows_then_heat_maps(rows, kind):
    z = np.arange(rows * 3.0).reshape(rows, 3)
    (chart,) = charts("novel", {"z": z}).values()
    assert isinstance(chart.marks[0], kind)
    drawn = chart.marks[0].z if kind is HeatMap else np.stack([line.y for line in chart.marks])
    same(drawn, z)


def test_scopes_come_in_the_order_of_a_page_with_learning_last():
    def finding(scope):
        return Finding(scope, "S.", "estimated")

    names = ("learning", "novel", "signal", "horizon")
    assert scopes_of({"a": made(**{name: finding(name) for name in names})}) == [
        "horizon",
        "signal",
        "novel",
        "learning",
    ]


def test_summary_of_a_chart_in_words():
    x = np.arange(4.0)
    marks = (
        Line("l", x, np.array([np.nan, 2.0, 1.0, np.nan])),
        Line("e", x, np.full(4, np.nan)),
        Points("p", x, np.array([3.0, 1.0, np.inf, 2.0])),
        Bars("b", ("u", "v"), np.array([0.5, 2.0])),
        HeatMap("h", x, x[:2], np.arange(8.0).reshape(2, 4)),
    )
    chart = Chart("k", "Title", Axis("across"), Axis("up"), marks, (Marker("y", 0.01, "gone"),))
    assert chart.summary == (
        "Title: up against across. l: from 2 at 1 to 1 at 2, between 1 and 2. e: no values. "
        "p: 4 points, between 1 and 3. b: u 0.5, v 2. h: 2 by 4 values, between 0 and 7. Marked at 0.01: gone."
    )
