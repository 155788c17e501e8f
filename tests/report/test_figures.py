"""Figures by matplotlib: what lies where, and that the same chart has the same bytes."""

import numpy as np
import pytest
from PIL import Image

from mnemoscope.files import make_folder
from mnemoscope.report import _figures
from mnemoscope.report._chart import Axis, Bars, Chart, HeatMap, Line, Marker, Panels, Points, Style
from mnemoscope.report._figures import (
    PANEL,
    SMALL_PANEL,
    draw_figure,
    draw_grid,
    write_figures,
    write_numbered_figures,
    write_panels,
)

LOG = Axis("y", log=True)


def chart(*marks, y=None, markers=()):
    return Chart("k", "Title", Axis("x"), y or Axis("y"), marks, tuple(markers))


@pytest.mark.parametrize("count", [3, 20, 60])
def test_labels_of_a_heat_map_do_not_overlap_in_matplotlib(count):
    letters = tuple("abcdefghij"[i % 10] for i in range(count))
    at = np.arange(float(count))
    axes = draw_figure([chart(HeatMap("h", at, at, np.ones((count, count)), letters, letters))]).axes[0]
    axes.figure.canvas.draw()
    box, inch = axes.get_window_extent(), axes.figure.dpi
    for axis, length in ((axes.xaxis, box.width), (axes.yaxis, box.height)):
        sizes = [label.get_fontsize() for label in axis.get_ticklabels()]
        assert 4 <= min(sizes) <= max(sizes) <= 1.1 * 72 * length / inch / count


def test_log_axis_of_a_figure_holds_its_line_and_its_markers():
    line = Line("l", np.array([1.0, 2.0]), np.array([1.0, 100.0]))
    (axes,) = draw_figure(
        [chart(line, y=LOG, markers=[Marker("y", 0.01, "m"), Marker("x", 500.0, "not on this axis")])]
    ).axes
    assert axes.get_yscale() == "log"
    np.testing.assert_allclose(np.log10(axes.get_ylim()), [-2.2, 2.2])
    assert axes.get_xscale() == "linear"
    assert axes.get_yticks().tolist() == [0.01, 0.1, 1, 10, 100]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["0.01", "0.1", "1", "10", "100"]


def test_symbols_at_the_ends_of_a_log_axis_of_a_figure_are_whole():
    """However many powers of ten it spans, also those on a marker at its end, and beside its label."""
    points = Points("p", np.arange(3.0), np.array([1.0, 1e8, 1.0]))
    figure = draw_figure([chart(points, y=LOG, markers=[Marker("y", 1.0, "equal")])])
    figure.draw_without_rendering()
    (axes,) = figure.axes
    height, radius = axes.get_window_extent().height, 3 / 72 * figure.dpi
    up = axes.transAxes.inverted().transform(axes.transData.transform([(0.0, 1.0), (0.0, 1e8)]))[:, 1] * height
    assert up[0] > radius
    assert up[1] < height - radius
    (label,) = axes.texts
    assert label.get_window_extent().y0 > axes.transData.transform((0.0, 1.0))[1] + 0.5 * radius


def test_several_charts_are_panels_from_left_to_right():
    line = Line("l", np.arange(2.0), np.arange(2.0))
    charts = [Chart(name, name, Axis("x"), Axis("y"), (line,)) for name in ("first", "second")]
    left, right = draw_figure(charts).axes
    assert (left.get_title(loc="left"), right.get_title(loc="left")) == ("first", "second")
    assert left.get_position().x0 < right.get_position().x0


@pytest.mark.parametrize(("count", "below"), [(6, False), (7, True)])
def test_a_legend_of_many_lines_lies_below_its_axes(count, below):
    lines = tuple(Line(f"line {number}", np.arange(3.0), np.arange(3.0) * number) for number in range(count))
    figure = draw_figure([Chart("many", "Many", Axis("x"), Axis("y"), lines)])
    figure.draw_without_rendering()
    (axes,) = figure.axes
    assert bool(axes.get_legend().get_window_extent().y1 < axes.get_window_extent().y0) is below


def legend_box(axes):
    return axes.get_legend().get_window_extent()


@pytest.mark.parametrize("kind", ["lines", "points", "bands", "bars"])
def test_a_legend_without_a_free_corner_lies_below_its_axes(kind):
    """Not over what the chart shows, nor over the labels of its axis."""
    x = np.linspace(0.0, 1.0, 60)
    everywhere = [Line(f"line {n}", x, (np.arange(60) + n) % 2, style=Style(n, n)) for n in range(2)]
    marks = {
        "lines": everywhere,
        "points": [Points(f"points {n}", np.tile(x, 60), np.repeat(x, 60)) for n in range(2)],
        "bands": [Line(f"band {n}", x, 0 * x + n, 0 * x, 0 * x + 1) for n in range(2)],
        "bars": [Bars(f"bars {n}", ("a long label", "another", "more"), np.ones(3)) for n in range(2)],
    }[kind]
    figure = draw_figure([chart(*marks)])
    figure.draw_without_rendering()
    (axes,) = figure.axes
    assert legend_box(axes).y1 <= axes.xaxis.get_tightbbox().y0 + 1
    assert legend_box(axes).y0 >= 0
    # The room for it is not the chart's.
    assert axes.get_window_extent().height > 0.6 * PANEL[1] * figure.dpi


def test_legends_of_panels_hide_nothing_and_take_nothing_from_their_axes():
    """Names that say different things in each panel: every panel has a legend of its own."""
    x = np.linspace(0.0, 1.0, 60)

    def panel(title, count):
        return chart(*(Line(f"{title} {n}", x, np.sin(30 * x + n), style=Style(n, n)) for n in range(count)))

    figure = draw_grid(Panels("p", "P", (panel("a", 2), panel("b", 9), panel("c", 2), panel("d", 2)), columns=2))
    figure.draw_without_rendering()
    for axes in figure.axes:
        assert legend_box(axes).y1 <= axes.xaxis.get_tightbbox().y0 + 1
        assert axes.get_window_extent().height > 0.5 * SMALL_PANEL[1] * figure.dpi
    first, second = figure.axes[0], figure.axes[2]
    assert legend_box(first).y0 > second.get_window_extent().y1


def test_titles_and_legends_are_as_wide_as_their_figure():
    """Also of panels that are one, and of the drawing of a graph."""
    names = [f"after {number}0,000 updates" for number in range(1, 9)]
    lines = tuple(Line(name, np.arange(3.0), np.arange(3.0), style=Style(at, 0)) for at, name in enumerate(names))
    title = "Gradient of a later loss by an input, on held-out text"
    grid = draw_grid(Panels("p", title, (Chart("c", "LSTM", Axis("i"), Axis("norm"), lines),)))
    hidden = Axis("", hidden=True)
    graph = draw_figure([Chart("graph", "Graph", hidden, hidden, lines)])
    for figure in (grid, graph):
        figure.draw_without_rendering()
        (axes,) = figure.axes
        (legend,) = (*figure.legends, *filter(None, [axes.get_legend()]))
        boxes = [artist.get_window_extent() for artist in (legend, *filter(None, [figure._suptitle]))]
        assert all(figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1 for box in boxes)
        assert axes.get_window_extent().height > 0.3 * figure.bbox.height  # the room for both is not the chart's


def test_a_figure_has_the_same_bytes_whichever_others_are_written(tmp_path):
    """After the .svg of the same figure, the axes of its .png lay elsewhere by less than a pixel."""
    points = Points("p", np.arange(2000.0) % 50, np.arange(2000.0) % 39, Style(0, 0))
    lines = (Line(f"{2 * n}", np.arange(3.0), np.arange(3.0) * 1e4 + n, style=Style(n, n)) for n in range(2))
    heat = HeatMap("h", np.arange(3.0), np.arange(2.0), np.arange(6.0).reshape(2, 3))
    charts = [chart(points), chart(*lines), Panels("p", "P", (chart(heat), chart(points)), share_y=False)]
    for formats in (["png"], ["svg", "png"], ["pdf", "svg", "png"]):
        folder = make_folder(tmp_path / "-".join(formats))
        write_numbered_figures(charts, folder, formats)
    for figure in ("figure-1", "figure-2", "figure-3"):
        assert len({path.read_bytes() for path in tmp_path.glob(f"*/{figure}.png")}) == 1
        assert len({path.read_bytes() for path in tmp_path.glob(f"*/{figure}.svg")}) == 1
    write_figures(charts[:1], tmp_path, ["png"])
    write_panels(charts[:1], tmp_path / "panels.png")
    assert (tmp_path / "k.png").read_bytes() == (tmp_path / "panels.png").read_bytes()


def test_a_picture_that_fewer_pixels_do_not_make_small_has_fewer_colors(tmp_path, monkeypatch):
    """Its lines keep theirs, as nearly as 256 colors allow."""
    lines = [Line(f"{i}", np.arange(50.0), np.random.default_rng(i).random(50) + i, style=Style(i)) for i in range(7)]
    (plain,) = write_figures([chart(*lines)], make_folder(tmp_path / "plain"), ["png"])
    monkeypatch.setattr(_figures, "LARGE_BYTES", 1000)
    (small,) = write_figures([chart(*lines)], make_folder(tmp_path / "small"), ["png"])
    assert small.stat().st_size < plain.stat().st_size / 3
    with Image.open(small) as found, Image.open(plain) as before:
        assert found.size[0] == PANEL[0] * 90
        shrunk = np.asarray(before.convert("RGB").resize(found.size), dtype=float)
        assert np.abs(np.asarray(found.convert("RGB"), dtype=float) - shrunk).mean() < 5
