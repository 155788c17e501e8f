"""Charts as SVG, PNG and PDF files, by matplotlib."""

from __future__ import annotations

import io
import math
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import numpy as np

from mnemoscope.errors import MnemoscopeError
from mnemoscope.files import make_folder, safe_name, visible, write_atomic
from mnemoscope.report._chart import (
    SHARE_RANGE,
    Axis,
    Bars,
    Chart,
    HeatMap,
    Labels,
    Line,
    Mark,
    Marker,
    Panels,
    Picture,
    Plane,
    Points,
)
from mnemoscope.report._log_axis import log_ticks, tick_label
from mnemoscope.report._palette import COLOR_SCALE, LIGHT, MATPLOTLIB_DASHES, MATPLOTLIB_SYMBOLS, cycle
from mnemoscope.report._panels import panel_charts

if TYPE_CHECKING:
    from matplotlib.figure import Figure  # loaded when something is drawn

PANEL = (7, 4.2)  # inches
SMALL_PANEL = (3.6, 2.7)  # in a grid of them
DPI = 160
FEWER_DPI = (120, 90)  # of a picture that would be large otherwise
LARGE_BYTES = 200_000
FORMATS = (".png", ".svg", ".pdf")
AXES_SHARE = 0.7  # of a figure, across and down, that axes with a color bar take, about
MANY_NAMES = 6  # in a legend that lies inside its axes
LEGEND_SIZE, TITLE_SIZE = 8, 12  # points, of a legend and of the title above several charts
LETTER = 0.55  # of its size is how wide a letter is, about
BESIDE_NAME = 5.5  # times its size is what a legend has beside each name: the line, and space
MANY_POINTS = 1000  # a larger cloud is drawn with smaller dots


def write_figures(charts: Iterable[Chart], folder: str | Path, formats: Sequence[str]) -> list[Path]:
    """Write one file per chart and format ("png", "svg" or "pdf"), named after the chart's key."""
    figures = ((safe_name(chart.key), draw_figure([chart])) for chart in charts)
    return _save_all(figures, make_folder(Path(folder)), formats)


def write_numbered_figures(charts: Iterable[Chart | Panels], folder: Path, formats: Sequence[str]) -> list[Path]:
    """Write one file per chart and format: figure-1.png, figure-1.svg, figure-2.png, ..."""
    drawn = (draw_grid(chart) if isinstance(chart, Panels) else draw_figure([chart]) for chart in charts)
    return _save_all(((f"figure-{number}", figure) for number, figure in enumerate(drawn, 1)), folder, formats)


def write_panels(charts: Sequence[Chart], path: str | Path) -> None:
    """Write charts side by side into one file; its suffix is the format: .png, .svg or .pdf."""
    _save(draw_figure(charts), Path(path))


def _save_all(figures: Iterable[tuple[str, Figure]], folder: Path, formats: Sequence[str]) -> list[Path]:
    """Write figures by their names, one file per format."""
    paths = []
    for name, figure in figures:
        for suffix in formats:
            path = folder / f"{name}.{suffix}"
            _save(figure, path)
            paths.append(path)
    return paths


def _save(figure: Figure, path: Path) -> None:
    """Write a figure; a picture of more than LARGE_BYTES with fewer dots."""
    from matplotlib import rc_context

    if path.suffix not in FORMATS:
        raise MnemoscopeError(f"a figure is written as {', '.join(FORMATS)}; got {path.name}")

    # The same figure has the same bytes: no date, and no random names of its parts.
    metadata = {"Date": None} if path.suffix == ".svg" else {}
    for dpi in (DPI, *FEWER_DPI):
        content = io.BytesIO()
        with rc_context({"svg.hashsalt": "mnemoscope"}):
            figure.savefig(content, format=path.suffix[1:], dpi=dpi, metadata=metadata)
        if path.suffix != ".png" or content.tell() <= LARGE_BYTES:
            break
    write_atomic(path, content.getvalue())


def draw_figure(charts: Sequence[Chart]) -> Figure:
    """Return a matplotlib figure with the charts side by side."""
    from matplotlib.figure import Figure

    if not isinstance(charts, Sequence) or not all(isinstance(chart, Chart) for chart in charts):
        raise MnemoscopeError(f"draw_figure takes a list of charts, as all_charts gives; got {_kinds(charts)}")
    if not charts:
        raise MnemoscopeError("draw_figure got no charts; it needs one at least")
    width, height = PANEL
    figure = Figure(figsize=(width * len(charts), height), layout="constrained")
    for axes, chart in zip(figure.subplots(1, len(charts), squeeze=False)[0], charts, strict=True):
        _draw_chart(figure, axes, chart)
    return figure


def _kinds(given: Any) -> str:
    """The types of a list's items, or the type of anything else."""
    if not isinstance(given, list | tuple):
        return type(given).__name__
    return ", ".join(dict.fromkeys(type(one).__name__ for one in given))


def draw_grid(panels: Panels) -> Figure:
    """Return a matplotlib figure with the charts of panels in their grid."""
    from matplotlib.figure import Figure

    charts = panel_charts(panels)
    columns = min(panels.columns, len(charts))
    rows = -(-len(charts) // columns)
    width, height = SMALL_PANEL
    title = wrap(_escape(panels.title), int(72 * width * columns / (LETTER * TITLE_SIZE)))
    names_across = _names_across(width * columns, panels.legend, 6)
    lines = len(title) + -(-len(panels.legend) // names_across)  # above the charts and below them
    figure = Figure(figsize=(width * columns, height * rows + 0.2 * max(2, lines)), layout="constrained")
    figure.suptitle("\n".join(title), fontsize=TITLE_SIZE)
    grid = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes, chart in zip(grid, charts, strict=False):
        _draw_chart(figure, axes, chart)
    for axes in grid[len(charts) :]:
        axes.set_visible(False)
    if panels.legend:
        drawn = {
            label: handle
            for axes in grid[: len(charts)]
            for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
        }
        look = {"frameon": False, "fontsize": LEGEND_SIZE}
        figure.legend(drawn.values(), drawn, loc="outside lower center", ncols=names_across, **look)
    return figure


def _names_across(inches: float, names: Collection[str], most: int) -> int:
    """Return how many names of a legend fit beside each other."""
    widest = LEGEND_SIZE * (BESIDE_NAME + LETTER * max(map(len, names), default=0))
    return max(1, min(most, int(72 * inches / widest)))


def _draw_chart(figure: Any, axes: Any, chart: Chart) -> None:
    axes.set_title(_escape(chart.title), loc="left", fontsize=11)
    for number, mark in enumerate(chart.marks):
        _draw_mark(figure, axes, mark, number, len(chart.marks))
    for marker in chart.markers:
        _draw_marker(axes, marker, chart)
    _set_axis(axes, "x", chart)
    _set_axis(axes, "y", chart)
    if chart.equal_axes:
        axes.set_aspect("equal", adjustable="datalim")
    axes.spines[["top", "right"]].set_visible(False)
    if chart.has_legend:
        # The drawing of a graph has no empty corner, and the names of many lines fit into none.
        names = axes.get_legend_handles_labels()[1]
        inches = figure.get_size_inches()[0] / axes.get_gridspec().ncols
        below: dict[str, Any] = {}
        if chart.x.hidden:
            below = {"loc": "upper center", "bbox_to_anchor": (0.5, 0), "ncols": _names_across(inches, names, 5)}
        elif len(names) > MANY_NAMES:
            below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.2), "ncols": _names_across(inches, names, 2)}
        axes.legend(frameon=False, fontsize=LEGEND_SIZE, **below)


def _draw_mark(figure: Any, axes: Any, mark: Mark, number: int, count: int) -> None:
    """Draw mark `number` of `count`."""
    match mark:
        case Line():
            _draw_line(axes, mark)
        case Points():
            _draw_points(axes, mark)
        case Bars():
            _draw_bars(axes, mark, number, count)
        case HeatMap():
            low, high = mark.color_range or (None, None)
            colors = {"cmap": COLOR_SCALE.lower(), "vmin": low, "vmax": high}
            drawn = axes.pcolormesh(mark.x, mark.y, mark.z, shading="nearest", rasterized=True, **colors)
            axes.invert_yaxis()  # row 0 at the top, as in a matrix
            if mark.x_labels:
                is_short = max(map(len, mark.x_labels)) <= 2  # as single characters: they need not lean
                look = {} if is_short else {"rotation": 45, "ha": "right"}
                size = _label_size(axes, 0, len(mark.x))
                axes.set_xticks(mark.x, [_escape(label) for label in mark.x_labels], fontsize=size, **look)
            if mark.y_labels:
                size = _label_size(axes, 1, len(mark.y))
                axes.set_yticks(mark.y, [_escape(label) for label in mark.y_labels], fontsize=size)
            figure.colorbar(drawn, ax=axes)
        case Labels():
            for x, y, label in zip(mark.x, mark.y, mark.labels, strict=True):
                axes.text(x, y, _escape(label), ha="center", va="center", fontsize=8)
        case Picture():
            axes.imshow(mark.pixels)
            axes.set_axis_off()
            for x, y, label in zip(mark.x, mark.y, mark.labels, strict=True):
                axes.text(x, y, _escape(label), ha="center", va="center", fontsize=5)
        case Plane():
            levels = 20 if mark.color_range is None else np.linspace(*mark.color_range, 21)
            drawn = axes.contourf(mark.x, mark.y, mark.z, levels, cmap=COLOR_SCALE.lower())
            figure.colorbar(drawn, ax=axes)
            if mark.path is not None:
                axes.plot(mark.path[:, 0], mark.path[:, 1], ".-", color=LIGHT[1], linewidth=1)


def _label_size(axes: Any, dimension: int, count: int) -> float:
    """The font size, in points, at which so many labels along an axis do not overlap; never too small to read."""
    rows, columns = axes.get_gridspec().get_geometry()
    points = 72 * AXES_SHARE * axes.figure.get_size_inches()[dimension] / (columns, rows)[dimension]
    return float(min(10.0, max(4.0, 0.85 * points / count)))


def _draw_line(axes: Any, mark: Line) -> None:
    color = cycle(LIGHT, mark.style.color)
    look: dict[str, Any] = {"color": color, "linestyle": cycle(MATPLOTLIB_DASHES, mark.style.dash)}
    if mark.has_symbols:
        look |= {"marker": cycle(MATPLOTLIB_SYMBOLS, mark.style.dash), "markersize": 4}
    axes.plot(mark.x, mark.y, label=_escape(mark.name), **look)
    if mark.low is not None and mark.high is not None:
        axes.fill_between(mark.x, mark.low, mark.high, color=color, alpha=0.18, linewidth=0)


def _draw_points(axes: Any, mark: Points) -> None:
    axes.scatter(
        mark.x,
        mark.y,
        s=1 if len(mark.x) > MANY_POINTS else 16,
        alpha=0.6,
        color=cycle(LIGHT, mark.style.color),
        marker=cycle(MATPLOTLIB_SYMBOLS, mark.style.dash),
        label=_escape(mark.name),
        rasterized=True,
    )


def _draw_bars(axes: Any, mark: Bars, number: int, count: int) -> None:
    """Draw the bars of several marks side by side over each label."""
    width = 0.8 / count
    centers = np.arange(len(mark.labels)) + (number - (count - 1) / 2) * width
    look = {"color": cycle(LIGHT, mark.style.color), "ecolor": "0.25", "capsize": 4}
    axes.bar(centers, mark.values, width, yerr=mark.errors, label=_escape(mark.name), **look)
    labels = [_escape(label) for label in mark.labels]
    axes.set_xticks(np.arange(len(labels)), labels, rotation=45, ha="right", fontsize=7)


def _draw_marker(axes: Any, marker: Marker, chart: Chart) -> None:
    line: dict[str, Any] = {"color": "0.45", "linestyle": ":", "linewidth": 1}
    text = _escape(marker.text)
    ground = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 1}  # a curve below stays out of it
    if marker.axis == "x":
        axes.axvline(marker.at, **line)
        label: dict[str, Any] = {"xycoords": ("data", "axes fraction"), "rotation": 90, "ha": "right", "va": "top"}
        axes.annotate(text, (marker.at, 1), fontsize=8, bbox=ground, **label)
    else:
        axes.axhline(marker.at, **line)
        end, horizontal, vertical = chart.level_label(marker)
        label = {"xycoords": ("axes fraction", "data"), "ha": horizontal, "va": vertical}
        axes.annotate(text, (end, marker.at), fontsize=8, bbox=ground, **label)


def _set_axis(axes: Any, name: str, chart: Chart) -> None:
    axis: Axis = getattr(chart, name)
    getattr(axes, f"set_{name}label")(_escape(axis.title))
    ends = chart.log_ends(name)
    if axis.share and not axis.log:
        getattr(axes, f"set_{name}lim")(*SHARE_RANGE)
    elif axis.extent is not None and not axis.log:
        getattr(axes, f"set_{name}lim")(*axis.extent.padded)
    if axis.hidden:
        getattr(axes, f"{name}axis").set_visible(False)
        axes.spines[["left" if name == "y" else "bottom"]].set_visible(False)
    if not axis.log or ends is None:
        return
    markers = [marker.at for marker in chart.markers if marker.axis == name and marker.at > 0]
    low = min([ends[0] * 0.8, *markers])
    high = max([ends[1] * 1.25, *markers])
    getattr(axes, f"set_{name}scale")("log")
    getattr(axes, f"set_{name}lim")(low, high)

    # The same ticks as on the page: matplotlib's would be labeled 2 x 10^0.
    ticks = log_ticks(math.log10(low), math.log10(high))
    getattr(axes, f"set_{name}ticks")(ticks, [tick_label(value, "$10^{{{}}}$") for value in ticks])
    getattr(axes, f"{name}axis").minorticks_off()


def _escape(text: str) -> str:
    """Escape the dollar sign, for a name is not a formula, and characters that no font has."""
    return visible(text).replace("$", r"\$")
