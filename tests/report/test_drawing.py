"""The same chart drawn by plotly and by matplotlib: directions, bands, thresholds, ranges."""

import base64

import numpy as np
import pytest

from mnemoscope.report._chart import Axis, Bars, Chart, HeatMap, Line, Marker, Plane, Points, Style
from mnemoscope.report._downsampling import block_means, even_indices
from mnemoscope.report._figures import draw_figure
from mnemoscope.report._interactive import pack_array, plotly_chart
from mnemoscope.report._palette import (
    LIGHT,
    MATPLOTLIB_DASHES,
    MATPLOTLIB_SYMBOLS,
    PLOTLY_DASHES,
    PLOTLY_SYMBOLS,
    cycle,
)


def chart(*marks, x=None, y=None, markers=()):
    return Chart("k", "Title", x or Axis("x"), y or Axis("y"), marks, tuple(markers))


def values(packed):
    array = np.frombuffer(base64.b64decode(packed["bdata"]), f"<{packed['dtype']}")
    return (
        array.reshape([int(n) for n in packed["shape"].split(", ")]).tolist() if "shape" in packed else array.tolist()
    )


def axes_of(drawn):
    return draw_figure([drawn]).axes[0]


HEAT = HeatMap("h", np.array([10.0, 20.0, 30.0]), np.array([1.0, 2.0]), np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]))
BAND = Line("l", np.arange(3.0), np.full(3, 5.0), low=np.full(3, 4.0), high=np.full(3, 7.0), style=Style(1, 2))


def test_heat_map_has_row_0_at_the_top_and_columns_across_in_plotly():
    drawn = plotly_chart(chart(HEAT))
    (trace,) = drawn["data"]
    assert values(trace["z"]) == HEAT.z.tolist()
    assert values(trace["x"]) == HEAT.x.tolist()
    assert values(trace["y"]) == HEAT.y.tolist()
    assert drawn["layout"]["yaxis"]["autorange"] == "reversed"
    assert "autorange" not in drawn["layout"]["xaxis"]


def test_heat_map_has_row_0_at_the_top_and_columns_across_in_matplotlib():
    axes = axes_of(chart(HEAT))
    (mesh,) = axes.collections
    np.testing.assert_array_equal(mesh.get_array(), HEAT.z)
    low, high = axes.get_ylim()
    assert low > high
    assert axes.get_xlim()[0] < axes.get_xlim()[1]


@pytest.mark.parametrize(("largest", "limited"), [(2.0, False), (2.1, True)])
def test_color_scale_of_a_heat_map_ends_at_the_99th_percentile_if_a_few_values_are_over_twice_it(largest, limited):
    z = np.ones((20, 20))
    z[10:] = 0.5
    z[0, 0] = largest  # 1 of 400: the 99th percentile is 1
    (trace,) = plotly_chart(chart(HeatMap("h", np.arange(20.0), np.arange(20.0), z)))["data"]
    assert (trace.get("zmin"), trace.get("zmax")) == ((0.0, 1.0) if limited else (None, None))


def test_color_scale_keeps_its_ends_for_negative_values():
    z = np.ones((20, 20))
    z[0, 0], z[1, 1] = 100, -1
    (trace,) = plotly_chart(chart(HeatMap("h", np.arange(20.0), np.arange(20.0), z)))["data"]
    assert "zmax" not in trace


def test_band_is_filled_between_low_and_high_before_the_line_in_plotly():
    low, high, line = plotly_chart(chart(BAND))["data"]
    assert [values(trace["y"])[0] for trace in (low, high, line)] == [4, 7, 5]
    assert [trace.get("fill") for trace in (low, high, line)] == [None, "tonexty", None]
    assert [trace["meta"] for trace in (low, high, line)] == [{"color": 1}, {"color": 1, "band": True}, {"color": 1}]
    assert {trace["legendgroup"] for trace in (low, high, line)} == {"l"}


def test_band_is_filled_between_low_and_high_in_matplotlib():
    axes = axes_of(chart(BAND))
    (band,) = axes.collections
    corners = band.get_paths()[0].vertices[:, 1]
    assert (corners.min(), corners.max()) == (4, 7)
    assert axes.lines[0].get_ydata().tolist() == [5, 5, 5]


def test_colors_dashes_and_symbols_are_the_same_in_both():
    lengths = map(len, (PLOTLY_DASHES, MATPLOTLIB_DASHES, PLOTLY_SYMBOLS, MATPLOTLIB_SYMBOLS))
    assert len(set(lengths)) == 1
    (line,) = axes_of(chart(Line("l", np.arange(3.0), np.arange(3.0), style=Style(8, 9)))).lines
    assert (line.get_color(), line.get_linestyle(), line.get_marker()) == (LIGHT[1], "-.", "^")
    (trace,) = plotly_chart(chart(Line("l", np.arange(3.0), np.arange(3.0), style=Style(8, 9))))["data"]
    assert trace["meta"]["color"] % len(LIGHT) == 1
    assert (trace["line"]["dash"], trace["marker"]["symbol"]) == ("dashdot", "triangle-up")
    assert [cycle("abc", i) for i in (0, 2, 3)] == ["a", "c", "a"]


@pytest.mark.parametrize(("points", "mode", "symbol"), [(40, "lines+markers", "o"), (41, "lines", "None")])
def test_short_lines_have_symbols(points, mode, symbol):
    line = Line("l", np.arange(float(points)), np.arange(float(points)))
    assert plotly_chart(chart(line))["data"][0]["mode"] == mode
    assert axes_of(chart(line)).lines[0].get_marker() == symbol


@pytest.mark.parametrize(("points", "kind", "size"), [(1000, "scatter", 7), (1001, "scattergl", 2)])
def test_clouds_of_more_than_a_thousand_points_have_small_dots(points, kind, size):
    cloud = Points("p", np.linspace(0, 1, points), np.linspace(0, 1, points) ** 2)
    (trace,) = plotly_chart(chart(cloud))["data"]
    spread = Points("p", np.arange(float(points)) % 37, np.arange(float(points)) // 37)
    assert trace["type"] == kind
    assert plotly_chart(chart(spread))["data"][0]["marker"]["size"] == size


def test_long_lines_keep_every_nth_point_and_both_ends():
    (trace,) = plotly_chart(chart(Line("l", np.arange(2999.0), np.arange(2999.0))))["data"]
    x = values(trace["x"])
    assert len(x) == 1500
    assert x == values(trace["y"])
    assert (x[0], x[-1]) == (0, 2998)
    assert even_indices(10, 4).tolist() == [0, 3, 6, 9]


def test_block_means_average_rows_and_columns():
    means, rows, columns = block_means(np.arange(8.0).reshape(2, 4), 2)
    assert means.tolist() == [[0.5, 2.5], [4.5, 6.5]]
    assert rows.tolist() == [0, 1]
    assert columns.tolist() == [0, 2]


def test_bars_of_two_models_stand_side_by_side():
    labels = ("a", "b")
    both = chart(Bars("m", labels, np.array([1.0, 2.0])), Bars("n", labels, np.array([3.0, 4.0]), Style(1, 1)))
    bars = axes_of(both).patches
    assert [bar.get_height() for bar in bars] == [1, 2, 3, 4]
    centers = [bar.get_x() + bar.get_width() / 2 for bar in bars]
    np.testing.assert_allclose(centers, [-0.2, 0.8, 0.2, 1.2])
    drawn = plotly_chart(both)
    assert drawn["layout"]["barmode"] == "group"
    assert [values(trace["y"]) for trace in drawn["data"]] == [[1, 2], [3, 4]]


def test_bars_have_error_bars_where_their_ends_are_known():
    plain = Bars("m", ("a", "b"), np.array([1.0, 2.0]))
    assert plain.errors is None
    assert "error_y" not in plotly_chart(chart(plain))["data"][0]
    with_ends = chart(Bars("m", ("a", "b"), np.array([1.0, 2.0]), low=np.array([0.5, 1.5]), high=np.array([1.25, 2.0])))
    (lines,) = axes_of(with_ends).collections
    assert [segment[:, 1].tolist() for segment in lines.get_segments()] == [[0.5, 1.25], [1.5, 2.0]]
    drawn = plotly_chart(with_ends)["data"][0]["error_y"]
    assert (values(drawn["array"]), values(drawn["arrayminus"])) == ([0.25, 0], [0.5, 0.5])
    assert with_ends.summary.endswith("m: a 1 (0.5 to 1.25), b 2 (1.5 to 2).")


def test_a_plane_has_its_path_with_the_first_direction_across():
    path = np.array([[1.0, 10.0], [2.0, 20.0]])
    plane = Plane("p", np.arange(3.0), np.arange(2.0), np.arange(6.0).reshape(2, 3), path)
    contour, path = plotly_chart(chart(plane))["data"]
    assert values(contour["z"]) == plane.z.tolist()
    assert (values(path["x"]), values(path["y"])) == ([1, 2], [10, 20])
    (line,) = axes_of(chart(plane)).lines
    assert (line.get_xdata().tolist(), line.get_ydata().tolist()) == ([1, 2], [10, 20])


def test_color_range_of_a_plane_in_plotly_and_in_matplotlib():
    plane = Plane("p", np.arange(3.0), np.arange(2.0), np.arange(6.0).reshape(2, 3), color_range=(-10.0, 30.0))
    drawn = plotly_chart(chart(plane))
    (contour,), (surface,) = drawn["data"], drawn["surface"]
    assert (contour["zmin"], contour["zmax"]) == (-10, 30)
    assert (surface["cmin"], surface["cmax"]) == (-10, 30)
    (filled,) = axes_of(chart(plane)).collections
    assert filled.get_clim() == (-10, 30)
    own = plotly_chart(chart(Plane("p", plane.x, plane.y, plane.z)))["data"][0]
    assert "zmin" not in own


def test_color_range_of_a_heat_map_in_plotly_and_in_matplotlib():
    z = np.arange(6.0).reshape(2, 3)
    given = HeatMap("h", np.arange(3.0), np.arange(2.0), z, color_range=(-10.0, 30.0))
    (drawn,) = plotly_chart(chart(given))["data"]
    assert (drawn["zmin"], drawn["zmax"]) == (-10, 30)
    assert axes_of(chart(given)).collections[0].get_clim() == (-10, 30)


def test_equal_axes_make_a_circle_round_in_plotly_and_in_matplotlib():
    angle = np.linspace(0, 6.3, 100)
    circle = Line("c", np.cos(angle), np.sin(angle))
    equal = Chart("k", "Title", Axis("x"), Axis("y"), (circle,), equal_axes=True)
    layout = plotly_chart(equal)["layout"]
    assert (layout["yaxis"]["scaleanchor"], layout["yaxis"]["scaleratio"]) == ("x", 1)
    assert axes_of(equal).get_aspect() == 1
    assert "scaleanchor" not in plotly_chart(chart(circle))["layout"]["yaxis"]
    assert axes_of(chart(circle)).get_aspect() == "auto"


@pytest.mark.parametrize("name", ["x", "y"])
def test_axis_of_shares_runs_from_0_to_1_in_plotly_and_in_matplotlib(name):
    line = Line("l", np.array([0.2, 0.4]), np.array([0.2, 0.4]))
    shares = chart(line, **{name: Axis("share", switch=True, share=True)})
    drawn = plotly_chart(shares)
    assert drawn["layout"][f"{name}axis"]["range"] == pytest.approx([0, 1], abs=0.03)
    assert drawn["linear"][name]["range"] == pytest.approx([0, 1], abs=0.03)  # after a look at the logarithmic axis
    assert getattr(axes_of(shares), f"get_{name}lim")() == pytest.approx((0, 1), abs=0.03)
    other = "y" if name == "x" else "x"
    assert drawn["linear"][other] == {"autorange": True}
    assert "range" not in drawn["layout"][f"{other}axis"]


LOG = Axis("y", log=True, switch=True)


@pytest.mark.parametrize(
    ("at", "low", "high"),
    [
        (10.0, 0.0, 2.0),  # inside
        (1000.0, 0.0, 3.0),
        (1e-3, -3.0, 2.0),  # three orders of magnitude below: just in
        (0.9e-3, 0.0, 2.0),
        (0.0, 0.0, 2.0),
    ],
)
def test_range_of_a_log_axis_holds_the_markers_that_are_near(at, low, high):
    line = Line("l", np.array([1.0, 2.0]), np.array([1.0, 100.0]))
    log = plotly_chart(chart(line, y=LOG, markers=[Marker("y", at, "m")]))["logs"]["y"]
    padding = 0.05 * (high - low)
    assert log["range"] == pytest.approx([low - padding, high + padding])


def test_ticks_between_powers_of_ten_are_written_as_these():
    line = Line("l", np.array([1.0, 2.0]), np.array([4e-5, 3e-3]))
    ticks = ["5 × 10<sup>-5</sup>", "10<sup>-4</sup>", "2 × 10<sup>-4</sup>", "5 × 10<sup>-4</sup>", "0.001", "0.002"]
    assert plotly_chart(chart(line, y=LOG))["logs"]["y"]["ticktext"] == ticks


@pytest.mark.parametrize(
    ("top", "ticks"),
    [
        (3.0, ["0.9", "1", "2", "3"]),
        (100.0, ["1", "2", "5", "10", "20", "50", "100"]),
        (1e4, ["1", "10", "100", "1000", "10<sup>4</sup>"]),
        (1e16, ["1", "1000", "10<sup>6</sup>", "10<sup>9</sup>", "10<sup>12</sup>", "10<sup>15</sup>"]),
    ],
)
def test_ticks_of_a_log_axis(top, ticks):
    line = Line("l", np.array([1.0, 2.0]), np.array([1.0, top]))
    assert plotly_chart(chart(line, y=LOG))["logs"]["y"]["ticktext"] == ticks


def test_markers_are_upright_at_x_and_level_at_y():
    markers = [Marker("x", 3.0, "upright"), Marker("y", 0.01, "level")]
    line = Line("l", np.array([1.0, 2.0]), np.array([1e-4, 100.0]))
    layout = plotly_chart(chart(line, y=LOG, markers=markers))["layout"]
    upright, level = layout["shapes"]
    assert [upright[key] for key in ("x0", "x1", "y0", "y1", "yref")] == [3, 3, 0, 1, "paper"]
    assert [level[key] for key in ("y0", "y1", "x0", "x1", "xref")] == [0.01, 0.01, 0, 1, "paper"]
    first, second = layout["annotations"]
    assert (first["x"], first["y"], first["yanchor"], first["text"]) == (3, 1, "bottom", "upright")  # above all lines
    assert (second["y"], second["x"], second["xanchor"], second["yanchor"]) == (-2, 0, "left", "top")
    assert second["yshift"] < 0  # a gap below the line
    _, vertical, horizontal = axes_of(chart(line, y=LOG, markers=markers)).lines
    assert list(vertical.get_xdata()) == [3, 3]
    assert list(horizontal.get_ydata()) == [0.01, 0.01]


@pytest.mark.parametrize(
    ("log", "at", "anchor"),
    [(False, 10, "left"), (False, 40, "center"), (False, 90, "right"), (True, 10, "center"), (True, 2, "left")],
)
def test_the_label_of_an_upright_marker_ends_within_the_chart(log, at, anchor):
    line = Line("l", np.arange(1.0, 101.0), np.arange(100.0))
    markers = [Marker("x", 50.0, "first"), Marker("x", float(at), "second")]
    _, second = plotly_chart(chart(line, x=Axis("x", log=log), markers=markers))["layout"]["annotations"]
    assert second["xanchor"] == anchor
    assert second["yshift"] == 16  # above the first one's


def test_a_legend_is_shown_for_more_than_one_name():
    one, two = Line("a", np.arange(2.0), np.arange(2.0)), Line("b", np.arange(2.0), np.arange(2.0))
    assert [plotly_chart(chart(*marks))["layout"]["showlegend"] for marks in ((one,), (one, two))] == [False, True]
    assert [axes_of(chart(*marks)).get_legend() is not None for marks in ((one,), (one, two))] == [False, True]


@pytest.mark.parametrize(
    ("array", "dtype"),
    [
        ([0.0, 32767.0], "i2"),
        ([0.0, 32768.0], "i4"),
        ([0.0, 2.0**31], "f4"),
        ([0.5], "f4"),
        ([1e39], "f8"),
        ([1e-38], "f8"),
        ([np.nan, 1.0], "f4"),
        ([], "i2"),
    ],
)
def test_arrays_are_packed_in_the_smallest_type_that_holds_them(array, dtype):
    assert pack_array(np.array(array))["dtype"] == dtype


def test_heat_map_with_labels_has_them_on_both_axes():
    heat = HeatMap("h", np.arange(3), np.arange(2), HEAT.z, x_labels=("2", "<5>", "LSTM"), y_labels=("a", "b"))
    drawn = plotly_chart(chart(heat))
    assert drawn["data"][0]["x"] == ["2", "&lt;5&gt;", "LSTM"]
    assert drawn["data"][0]["y"] == ["a", "b"]
    assert [drawn["layout"][axis]["type"] for axis in ("xaxis", "yaxis")] == ["category", "category"]
    axes = axes_of(chart(heat))
    assert [label.get_text() for label in axes.get_xticklabels()] == ["2", "<5>", "LSTM"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a", "b"]
    assert "type" not in plotly_chart(chart(HEAT))["layout"]["xaxis"]
