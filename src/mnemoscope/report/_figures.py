"""Charts as SVG, PNG and PDF files, by matplotlib."""

from __future__ import annotations

import hashlib
import io
import math
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import numpy as np

from mnemoscope.errors import MnemoscopeError
from mnemoscope.files import make_folder, safe_name, to_json, visible, write_atomic
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
from mnemoscope.report._chart_file import charts_to_json
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
LEGEND: dict[str, Any] = {"frameon": False, "fontsize": LEGEND_SIZE}
LEGEND_LINE = 1.6 * LEGEND_SIZE  # points that a line of a legend takes
LETTER = 0.55  # of its size is how wide a letter is, about
BESIDE_NAME = 5.5  # times its size is what a legend has beside each name: the line, and space
LOG_PADDING = 0.05  # of a logarithmic axis, beyond what is drawn
LEAST_LOG_PADDING = 0.1  # in powers of ten
LABEL_GAP = 3  # points between a label and its level line: the symbols on it stay visible
MANY_POINTS = 1000  # a larger cloud is drawn with smaller dots


def write_figures(charts: Iterable[Chart], folder: str | Path, formats: Sequence[str]) -> list[Path]:
    """Write one file per chart and format ("png", "svg" or "pdf"), named after the chart's key."""
    figures = ((safe_name(chart.key), draw_figure([chart])) for chart in charts)
    return _save_all(figures, make_folder(Path(folder)), formats)


def write_numbered_figures(charts: Iterable[Chart | Panels], folder: Path, formats: Sequence[str]) -> list[Path]:
    """Write one file per chart and format: figure-1.png, figure-1.svg, figure-2.png, ..."""
    drawn = (draw_grid(chart) if isinstance(chart, Panels) else draw_figure([chart]) for chart in charts)
    return _save_all(((f"figure-{number}", figure) for number, figure in enumerate(drawn, 1)), folder, formats)


def figures_hash(charts: Sequence[Chart | Panels]) -> str:
    """Return what changes with the charts, with the code that draws them, and with the version of matplotlib."""
    from matplotlib import __version__

    code = [path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py"))]
    parts = [to_json(charts_to_json(charts)), *code, __version__.encode()]
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()


def write_panels(charts: Sequence[Chart], path: str | Path) -> None:
    """Write charts side by side into one file; its suffix is the format: .png, .svg or .pdf."""
    figure = draw_figure(charts)
    _fix_layout(figure)
    _save(figure, Path(path))


def _save_all(figures: Iterable[tuple[str, Figure]], folder: Path, formats: Sequence[str]) -> list[Path]:
    """Write figures by their names, one file per format."""
    paths = []
    for name, figure in figures:
        _fix_layout(figure)
        for suffix in formats:
            path = folder / f"{name}.{suffix}"
            _save(figure, path)
            paths.append(path)
    return paths


def _fix_layout(figure: Figure) -> None:
    """Lay a figure out for good: each file would move it by less than a pixel, so that it depended on the others."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")


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
    else:
        content = _with_few_colors(content)
    write_atomic(path, content.getvalue())


def _with_few_colors(png: io.BytesIO) -> io.BytesIO:
    """Return a picture with 256 colors, which takes a third of the bytes."""
    from PIL import Image  # comes with matplotlib

    content = io.BytesIO()
    Image.open(png).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(content, "png", optimize=True)
    return content


def draw_figure(charts: Sequence[Chart]) -> Figure:
    """Return a matplotlib figure with the charts side by side."""
    from matplotlib.figure import Figure

    if not isinstance(charts, Sequence) or not all(isinstance(chart, Chart) for chart in charts):
        raise MnemoscopeError(f"draw_figure takes a list of charts, as all_charts gives; got {_kinds(charts)}")
    if not charts:
        raise MnemoscopeError("draw_figure got no charts; it needs one at least")
    width, height = PANEL
    figure = Figure(figsize=(width * len(charts), height), layout="constrained")
    drawn = list(zip(figure.subplots(1, len(charts), squeeze=False)[0], charts, strict=True))
    for axes, chart in drawn:
        _draw_chart(figure, axes, chart)
    _place_legends(figure, drawn)
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
    placed = list(zip(grid, charts, strict=False))
    for axes, chart in placed:
        _draw_chart(figure, axes, chart)
    for axes in grid[len(charts) :]:
        axes.set_visible(False)
    _place_legends(figure, placed)
    if panels.legend:
        drawn = {
            label: handle
            for axes in grid[: len(charts)]
            for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
        }
        figure.legend(drawn.values(), drawn, loc="outside lower center", ncols=names_across, **LEGEND)
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


def _place_legends(figure: Any, drawn: Sequence[tuple[Any, Chart]]) -> None:
    """Give axes their legends: inside, in a free corner, or below where one of the row has none; the figure grows then.

    The drawing of a graph has no free corner, and the names of many lines fit into none.
    """
    inside: list[tuple[Any, Chart]] = []
    below: list[tuple[Any, Chart]] = []
    for axes, chart in drawn:
        if chart.has_legend:
            crowded = chart.x.hidden or len(axes.get_legend_handles_labels()[1]) > MANY_NAMES
            (below if crowded else inside).append((axes, chart))
    if not inside and not below:
        return
    for axes, _ in inside:
        axes.legend(**LEGEND)
    figure.draw_without_rendering()  # the layout says where legends and labels lie
    moved = {_row(axes) for axes, _ in inside if _hides_something(axes)}  # beside each other all look alike
    below += [(axes, chart) for axes, chart in inside if _row(axes) in moved]
    lines: dict[int, int] = {}  # of the longest legend below each row of axes
    for axes, chart in below:
        count = _legend_below(figure, axes, chart)
        if not chart.x.hidden:  # the drawing of a graph can be smaller
            lines[_row(axes)] = max(lines.get(_row(axes), 0), count)
    width, height = figure.get_size_inches()
    figure.set_size_inches(width, height + sum(LEGEND_LINE * count for count in lines.values()) / 72)


def _row(axes: Any) -> int:
    """The row of the grid that axes are in."""
    return int(axes.get_subplotspec().rowspan.start)


def _hides_something(axes: Any) -> bool:
    """Whether the legend of axes lies on a line, a band, a point or a bar; lines that mark a place do not count."""
    from matplotlib.collections import PathCollection

    box = axes.get_legend().get_window_extent()
    named = set(axes.get_legend_handles_labels()[0])
    lines = [line for line in axes.lines if line in named]
    paths = [line.get_path().transformed(line.get_transform()) for line in lines]
    covered = any(path.intersects_bbox(box, filled=False) for path in paths)
    for collection in axes.collections:
        if isinstance(collection, PathCollection):  # points
            where = collection.get_offset_transform().transform(collection.get_offsets())
            covered |= box.count_contains(where) > 0
        else:
            bands = [path.transformed(collection.get_transform()) for path in collection.get_paths()]
            covered |= any(path.intersects_bbox(box) for path in bands)
    return covered or any(box.overlaps(patch.get_window_extent()) for patch in axes.patches)


def _legend_below(figure: Any, axes: Any, chart: Chart) -> int:
    """Set the legend of axes below what they have below them; return how many lines it takes."""
    from matplotlib.transforms import ScaledTranslation

    names = axes.get_legend_handles_labels()[1]
    inches = figure.get_size_inches()[0] / axes.get_gridspec().ncols
    across = _names_across(inches, names, 5 if chart.x.hidden else 2)
    labels = axes.xaxis.get_tightbbox()
    depth = 0 if chart.x.hidden or labels is None else axes.bbox.y0 - labels.y0
    under = ScaledTranslation(0, -depth / figure.dpi, figure.dpi_scale_trans)
    where = {"loc": "upper center", "bbox_to_anchor": (0.5, 0), "bbox_transform": axes.transAxes + under}
    axes.legend(**LEGEND, **where, ncols=across)
    return -(-len(names) // across)


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
        gap = -LABEL_GAP if vertical == "top" else LABEL_GAP
        label = {"xycoords": ("axes fraction", "data"), "ha": horizontal, "va": vertical}
        label |= {"xytext": (0, gap), "textcoords": "offset points"}
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
    low, high = math.log10(min([ends[0], *markers])), math.log10(max([ends[1], *markers]))
    padding = max(LOG_PADDING * (high - low), LEAST_LOG_PADDING)  # or symbols at the ends would be cut in half
    low, high = max(low - padding, -300), min(high + padding, 300)
    getattr(axes, f"set_{name}scale")("log")
    getattr(axes, f"set_{name}lim")(10**low, 10**high)

    # The same ticks as on the page: matplotlib's would be labeled 2 x 10^0.
    ticks = log_ticks(low, high)
    getattr(axes, f"set_{name}ticks")(ticks, [tick_label(value, "$10^{{{}}}$") for value in ticks])
    getattr(axes, f"{name}axis").minorticks_off()


def _escape(text: str) -> str:
    """Escape the dollar sign, for a name is not a formula, and characters that no font has."""
    return visible(text).replace("$", r"\$")
