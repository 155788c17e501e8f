import base64
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from specimens import bare, horizon_of, landscape_of, made, orbits_of

from mnemoscope.errors import MnemoscopeError
from mnemoscope.finding import Finding
from mnemoscope.report import all_charts, write_figures, write_panels
from mnemoscope.report._chart import Axis, Chart, HeatMap, Line, Points
from mnemoscope.report._charts import charts_of
from mnemoscope.report._downsampling import block_means, even_indices, random_indices
from mnemoscope.report._interactive import pack_array, plotly_chart
from mnemoscope.report._palette import DARK, LIGHT

BOTH = {"LSTM": bare("LSTM"), "RelRNN": bare("RelRNN")}


def unpacked(body):
    values = np.frombuffer(base64.b64decode(body["bdata"]), f"<{body['dtype']}")
    return values.reshape([int(n) for n in body["shape"].split(", ")]) if "shape" in body else values


@given(arrays(np.float64, array_shapes(max_dims=2, max_side=6), elements=st.floats(allow_subnormal=False)))
def test_arrays_survive_packing(values):
    back = unpacked(pack_array(values))
    assert back.shape == values.shape
    np.testing.assert_allclose(back, values, rtol=1e-6)


def test_tiny_gradients_survive_packing():
    assert unpacked(pack_array(np.array([1.0, 1e-200])))[1] == 1e-200


@given(st.integers(1, 5000), st.integers(2, 300))
def test_downsampling_keeps_both_ends(size, most):
    kept = even_indices(size, most)
    assert len(kept) <= max(2, most)
    assert kept[0] == 0
    assert kept[-1] == size - 1
    assert (np.diff(kept) > 0).all()
    assert len(random_indices(size, most)) == min(size, most)


@given(st.integers(1, 60), st.integers(1, 60), st.integers(2, 20))
def test_block_means_keep_the_total(rows, columns, most):
    z = np.random.default_rng(0).random((rows, columns))
    means, first_rows, first_columns = block_means(z, most)
    assert means.shape == (len(first_rows), len(first_columns))
    assert max(means.shape) <= most
    heights = np.diff([*first_rows, rows])
    widths = np.diff([*first_columns, columns])
    assert (means * np.outer(heights, widths)).sum() == pytest.approx(z.sum())


def test_many_points_are_drawn_by_webgl_and_downsampled():
    (chart,) = charts_of({"a": made(attractors=orbits_of(300, 200))}, "attractors")
    (trace,) = plotly_chart(chart)["data"]
    assert trace["type"] == "scattergl"
    assert len(unpacked(trace["x"])) == 20_000
    assert len(unpacked(plotly_chart(chart, 0.25)["data"][0]["x"])) == 5_000
    assert trace["marker"]["size"] == 2


def test_many_points_in_one_spot_are_a_large_dot():
    still = Points("fixed points", np.repeat([0.0, 1.0], 1000), np.repeat([0.3, 0.31], 1000))
    (trace,) = plotly_chart(Chart("orbits", "Orbits", Axis("x"), Axis("y"), (still,)))["data"]
    assert trace["marker"]["size"] == 7


def test_a_plane_has_contours_and_a_surface():
    (chart,) = charts_of({"a": made(landscape=landscape_of())}, "landscape")
    drawn = plotly_chart(chart)
    assert drawn["data"][0]["type"] == "contour"
    assert drawn["surface"][0]["type"] == "surface"
    np.testing.assert_allclose(unpacked(drawn["surface"][0]["z"])[0, 0], 3, rtol=1e-6)


def test_log_axes_show_all_but_sixteen_orders_of_magnitude():
    falling = Finding("horizon", "", "estimated", series={"input_gradient": 10.0 ** -np.arange(40)})
    (chart,) = charts_of({"a": made(horizon=falling)}, "horizon")
    low, high = plotly_chart(chart)["layout"]["yaxis"]["range"]
    assert high == pytest.approx(1 + 0.05 * 16)  # ten times the largest of the past, and a margin
    assert low == pytest.approx(1 - 16 - 0.05 * 16)


def test_ticks_of_a_log_axis_lie_in_its_range():
    for chart in all_charts(BOTH):
        for name, log in plotly_chart(chart)["logs"].items():
            if log is not None:
                inside = [log["range"][0] <= np.log10(v) <= log["range"][1] for v in log["tickvals"]]
                assert all(inside), (chart.key, name)
                assert 1 <= len(inside) <= 19, (chart.key, name)


def test_names_are_escaped_in_a_chart():
    name = "<b>x</b><a href='javascript:alert(1)'>"
    (chart,) = charts_of({name: made(horizon=horizon_of()), "b": made(horizon=horizon_of())}, "horizon")
    traces = plotly_chart(chart)["data"]
    assert all("<" not in trace.get("name", "") for trace in traces)


def test_figures_are_whole_files_in_both_formats(tmp_path):
    odd = {"$x_1$ & <b>": bare("LSTM"), "RelRNN": bare("RelRNN")}
    kinds = {type(chart.marks[0]): chart for chart in all_charts(odd)}
    charts = list(kinds.values())  # drawing is slow: one of lines, points, bars, a heat map and a plane
    assert len(charts) == 5
    paths = write_figures(charts, tmp_path / "figures", ("svg", "png"))
    assert len(paths) == 2 * len(charts)
    for path in paths:
        if path.suffix == ".svg":
            assert ET.parse(path).getroot().tag.endswith("svg")
        else:
            assert path.read_bytes().startswith(b"\x89PNG")
    assert not list((tmp_path / "figures").glob(".*"))


def _linear(color):
    c = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def _contrast(one, other):
    light = sorted(float(_linear(c) @ [0.2126, 0.7152, 0.0722]) for c in (one, other))
    return (light[1] + 0.05) / (light[0] + 0.05)


@pytest.mark.parametrize(("palette", "ground"), [(LIGHT, "#ffffff"), (DARK, "#14171b")])
def test_colors_have_contrast_to_the_background(palette, ground):
    assert min(_contrast(color, ground) for color in palette) >= 3  # WCAG 2.1, 1.4.11


# Simulation of dichromats in linear RGB (Machado, Oliveira and Fernandes 2009, severity 1).
EYES = {
    "trichromat": np.eye(3),
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
}


@pytest.mark.parametrize("palette", [LIGHT, DARK])
@pytest.mark.parametrize("eye", EYES)
def test_readers_can_tell_all_colors_apart(palette, eye):
    seen = [np.clip(np.array(EYES[eye]) @ _linear(color), 0, 1) ** (1 / 2.2) for color in palette]
    distances = [np.linalg.norm(a - b) for i, a in enumerate(seen) for b in seen[:i]]
    assert min(distances) > 0.15


def test_a_map_has_a_row_and_a_column_for_each_of_equal_labels():
    steps = np.arange(4.0)
    attention = HeatMap("attention", steps, steps, np.eye(4), tuple("eats"), tuple("to&t"))
    (grid,) = plotly_chart(Chart("c", "C", Axis("x"), Axis("y"), (attention,)))["data"]
    assert grid["x"] == ["e", "a", "t", "s"]
    assert [label.replace("\u200b", "") for label in grid["y"]] == ["t", "o", "&amp;", "t"]
    assert len(set(grid["y"])) == 4


def test_figures_take_a_path_in_words_and_refuse_other_formats(tmp_path):
    charts = [Chart("line", "Line", Axis("x"), Axis("y"), (Line("l", np.arange(3.0), np.arange(3.0)),))]
    assert write_figures(charts, str(tmp_path), ["svg"]) == [tmp_path / "line.svg"]
    write_panels(charts, f"{tmp_path}/both.pdf")
    for formats in ("png", ["gif"], ["PNG"]):
        with pytest.raises(MnemoscopeError, match=r"a figure is written as \.png, \.svg, \.pdf; got line"):
            write_figures(charts, tmp_path, formats)
    with pytest.raises(MnemoscopeError, match="got both"):
        write_panels(charts, tmp_path / "both")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["both.pdf", "line.svg"]
