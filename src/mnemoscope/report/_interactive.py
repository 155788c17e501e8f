"""Charts as plotly's JSON, for the page. A color is an index into the palette: the page fills in its theme's."""

from __future__ import annotations

import base64
import io
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from mnemoscope.files import visible
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
    Picture,
    Plane,
    Points,
)
from mnemoscope.report._color_range import without_outliers
from mnemoscope.report._downsampling import (
    MAX_CLOUD_POINTS,
    MAX_HEAT_CELLS,
    MAX_LINE_POINTS,
    block_means,
    even_indices,
    random_indices,
)
from mnemoscope.report._log_axis import log_ticks, tick_label
from mnemoscope.report._palette import COLOR_SCALE, PLOTLY_DASHES, PLOTLY_SYMBOLS, cycle

Json = dict[str, Any]
MANY_POINTS = 1000  # a larger cloud is drawn by the graphics card, with smaller dots
LABEL_HEIGHT = 16  # pixels of the row of a label
LABEL_GAP = 3  # pixels between a label and its level line
ZERO_WIDTH_SPACE = "\u200b"
CLOUD_CELLS = 500  # across a chart: points in the same cell look like one


def plotly_chart(chart: Chart, detail: float = 1.0) -> Json:
    """Return what the page's script needs to draw a chart; `detail` below 1 keeps less of the data."""
    layout: Json = {
        "xaxis": _axis(chart, "x"),
        "yaxis": _axis(chart, "y"),
        "shapes": [_marker_line(marker) for marker in chart.markers],
        "annotations": [_marker_label(marker, chart) for marker in chart.markers],
        "showlegend": chart.has_legend,
    }
    if any(isinstance(mark, Bars) for mark in chart.marks):
        layout["barmode"] = "group"
    surfaces = [_surface(mark, detail) for mark in chart.marks if isinstance(mark, Plane)]
    return {
        "key": chart.key,
        "data": [trace for mark in chart.marks for trace in _traces(mark, detail)],
        "layout": layout,
        "logs": {name: _log_axis(chart, name) for name in "xy"},
        "linear": {name: _linear_axis(chart, name) for name in "xy"},
        "surface": surfaces or None,
    }


def pack_array(values: np.ndarray) -> Json:
    """Return an array as plotly reads it fastest: its bytes in base64."""
    values = np.ascontiguousarray(values)
    dtype = _smallest_dtype(values)
    packed = {"dtype": dtype, "bdata": base64.b64encode(values.astype(f"<{dtype}").tobytes()).decode()}
    if values.ndim > 1:
        packed["shape"] = ", ".join(map(str, values.shape))
    return packed


def _smallest_dtype(values: np.ndarray) -> str:
    """The smallest of plotly's dtypes that holds the values: integers exactly, others to float32's precision."""
    magnitudes = np.abs(values[np.isfinite(values) & (values != 0)])
    largest = magnitudes.max(initial=0)
    is_integer = values.dtype.kind in "iub" or bool(np.isfinite(values).all() and (values == np.round(values)).all())
    if is_integer and largest < 2**15:
        return "i2"
    if is_integer and largest < 2**31:
        return "i4"
    if magnitudes.size and (largest > 1e38 or magnitudes.min() < 1e-37):
        return "f8"
    return "f4"


def _axis(chart: Chart, name: str) -> Json:
    axis: Axis = getattr(chart, name)
    described: Json = {"title": {"text": _escape(axis.title)}, "automargin": True}
    if axis.hidden:
        described["visible"] = False
    if any(_has_labels(mark, name) for mark in chart.marks):
        described["type"] = "category"
    elif axis.log:
        described |= {"type": "log", **(_log_axis(chart, name) or {})}
    elif axis.share or axis.extent:
        described |= _linear_axis(chart, name)
    if name == "y" and chart.equal_axes:
        described |= {"scaleanchor": "x", "scaleratio": 1}
    if any(isinstance(mark, Picture) for mark in chart.marks):
        described |= {"visible": False}
    if name == "y" and any(isinstance(mark, HeatMap | Picture) for mark in chart.marks):
        described["autorange"] = "reversed"  # row 0 at the top, as in a matrix
    return described


def _has_labels(mark: Mark, axis: str) -> bool:
    if isinstance(mark, HeatMap):
        return bool(getattr(mark, f"{axis}_labels"))
    return axis == "x" and isinstance(mark, Bars)


def _linear_axis(chart: Chart, name: str) -> Json:
    """The range of an axis while it is linear: 0 to 1 for shares, else what is drawn."""
    axis: Axis = getattr(chart, name)
    if axis.share:
        return {"range": list(SHARE_RANGE)}
    return {"autorange": True} if axis.extent is None else {"range": list(axis.extent.padded)}


def _log_axis(chart: Chart, name: str) -> Json | None:
    """Range (as powers of ten) and ticks of an axis while it is logarithmic; None if the reader cannot make it so."""
    axis: Axis = getattr(chart, name)
    ends = chart.log_ends(name) if axis.switch or axis.log else None
    if ends is None:
        return None
    low, high = (math.log10(end) for end in ends)

    # Markers belong into the picture, unless they are more than three orders of magnitude below all else.
    positions = [math.log10(marker.at) for marker in chart.markers if marker.axis == name and marker.at > 0]
    near = [position for position in positions if position >= low - 3]
    low, high = min([low, *near]), max([high, *near])

    padding = max(0.05 * (high - low), 0.05)
    ticks = log_ticks(low - padding, high + padding)
    return {
        "range": [low - padding, high + padding],
        "tickmode": "array",
        "tickvals": ticks,
        "ticktext": [tick_label(value, "10<sup>{}</sup>") for value in ticks],
    }


def _marker_line(marker: Marker) -> Json:
    other = "y" if marker.axis == "x" else "x"
    ends = {f"{marker.axis}0": marker.at, f"{marker.axis}1": marker.at, f"{other}0": 0, f"{other}1": 1}
    return {"type": "line", f"{other}ref": "paper", **ends, "line": {"width": 1.5, "dash": "dot"}}


def _marker_label(marker: Marker, chart: Chart) -> Json:
    axis: Axis = getattr(chart, marker.axis)
    at = marker.at
    if axis.log and marker.at > 0:
        at = math.log10(marker.at)  # plotly places annotations on a log axis by their power of ten
    label: Json = {"text": _escape(marker.text), "showarrow": False, "font": {"size": 12}}
    if marker.axis == "x":  # above the chart, where it hides no line; one row for each
        row = [other for other in chart.markers if other.axis == "x"].index(marker)
        above = {"y": 1, "yref": "paper", "yanchor": "bottom", "yshift": LABEL_HEIGHT * row}
        return label | above | {"x": at, "xanchor": _anchor_within(chart, marker.at)}
    end, horizontal, vertical = chart.level_label(marker)
    gap = -LABEL_GAP if vertical == "top" else LABEL_GAP
    return label | {"y": at, "x": end, "xref": "paper", "xanchor": horizontal, "yanchor": vertical, "yshift": gap}


def _anchor_within(chart: Chart, at: float) -> str:
    """Which part of a label stands at x = `at`, so that it ends within the chart."""
    drawn = [mark.x for mark in chart.marks if isinstance(mark, Line | Points)]
    x = np.concatenate([*drawn, [at]]).astype(float)
    x = x[np.isfinite(x) & ((x > 0) | (not chart.x.log))]
    ends = np.log([x.min(), x.max(), at]) if chart.x.log else np.array([x.min(), x.max(), at])
    low, high, here = ends
    if here > low + 0.75 * (high - low):
        return "right"
    return "left" if here < low + 0.25 * (high - low) else "center"


def _traces(mark: Mark, detail: float) -> list[Json]:
    match mark:
        case Line():
            return _line(mark, detail)
        case Points():
            return [_cloud(mark, detail)]
        case Bars():
            return [_bars(mark)]
        case HeatMap():
            z, rows, columns = block_means(mark.z, int(MAX_HEAT_CELLS * detail))
            grid = _grid(mark, "heatmap", z, mark.x[columns], mark.y[rows])
            if mark.x_labels:
                grid["x"] = _categories([mark.x_labels[column] for column in columns])
            if mark.y_labels:
                grid["y"] = _categories([mark.y_labels[row] for row in rows])
            return [grid]
        case Plane():
            return _contours(mark, detail)
        case Picture():
            return _picture(mark)
        case Labels():
            return [_labels(mark)]


def _line(mark: Line, detail: float) -> list[Json]:
    """The line, with the two edges of its band before it; the band is filled between them."""
    kept = even_indices(len(mark.x), int(MAX_LINE_POINTS * detail))
    x = pack_array(mark.x[kept])
    meta = {"color": mark.style.color}
    line: Json = {
        "type": "scatter",
        "mode": "lines+markers" if mark.has_symbols else "lines",
        "x": x,
        "y": pack_array(mark.y[kept]),
        "line": {"width": 2.2, "dash": cycle(PLOTLY_DASHES, mark.style.dash)},
        "marker": {"symbol": cycle(PLOTLY_SYMBOLS, mark.style.dash), "size": 7},
        "meta": meta,
        **_named(mark.name),
    }
    if mark.low is None or mark.high is None:
        return [line]
    group = {"legendgroup": _escape(mark.name)}  # a click in the legend hides the band too
    edge = {"type": "scatter", "mode": "lines", "x": x, "line": {"width": 0}, "hoverinfo": "skip", "showlegend": False}
    low = {**edge, **group, "y": pack_array(mark.low[kept]), "meta": meta}
    high = {**edge, **group, "y": pack_array(mark.high[kept]), "fill": "tonexty", "meta": {**meta, "band": True}}
    return [low, high, line | group]


def _cloud(mark: Points, detail: float) -> Json:
    kept = random_indices(len(mark.x), int(MAX_CLOUD_POINTS * detail))
    dense = _distinct_points(mark) > MANY_POINTS
    dot = {"size": 2, "opacity": 0.55} if dense else {"size": 7, "opacity": 0.75}
    return {
        "type": "scattergl" if len(kept) > MANY_POINTS else "scatter",
        "mode": "markers",
        "x": pack_array(mark.x[kept]),
        "y": pack_array(mark.y[kept]),
        "marker": {"symbol": cycle(PLOTLY_SYMBOLS, mark.style.dash), **dot},
        "meta": {"color": mark.style.color},
        **_named(mark.name),
    }


def _distinct_points(mark: Points) -> int:
    """How many of a cloud's points look different in a chart: orbits that end in a fixed point are one dot."""
    known = np.stack([mark.x, mark.y])[:, np.isfinite(mark.x) & np.isfinite(mark.y)]
    if not known.size:
        return 0
    extent = np.ptp(known, axis=1, keepdims=True)
    cells = np.round(CLOUD_CELLS * known / np.where(extent > 0, extent, 1.0))
    return np.unique(cells, axis=1).shape[1]


def _bars(mark: Bars) -> Json:
    labels = [_escape(label) for label in mark.labels]
    look: Json = {"meta": {"color": mark.style.color}, **_named(mark.name)}
    if mark.errors is not None:
        down, up = map(pack_array, mark.errors)
        look["error_y"] = {"type": "data", "symmetric": False, "array": up, "arrayminus": down, "color": "#888"}
    return {"type": "bar", "x": labels, "y": pack_array(mark.values), **look}


def _grid(mark: HeatMap | Plane, kind: str, z: np.ndarray, x: np.ndarray, y: np.ndarray) -> Json:
    grid: Json = {
        "type": kind,
        "x": pack_array(x),
        "y": pack_array(y),
        "z": pack_array(z),
        "colorscale": COLOR_SCALE,
        "colorbar": {"thickness": 12, "outlinewidth": 0},
        "showlegend": False,
        **_named(mark.name),
    }
    color_range = mark.color_range
    if color_range is None and kind == "heatmap":
        # A few very large sizes would leave all others dark: the scale then ends below them.
        shown = without_outliers(z)
        color_range = None if shown is z else (0.0, float(np.nanmax(shown)))
    if color_range is not None:
        limits = ("cmin", "cmax") if kind == "surface" else ("zmin", "zmax")
        grid |= dict(zip(limits, color_range, strict=True))
    return grid


def _categories(labels: Sequence[str]) -> list[str]:
    """Labels as plotly's categories: equal ones, as letters of a text, have zero-width spaces, or they would be one."""
    seen: Counter[str] = Counter()
    found = []
    for label in labels:
        found.append(_escape(label) + ZERO_WIDTH_SPACE * seen[label])
        seen[label] += 1
    return found


def _picture(mark: Picture) -> list[Json]:
    """The pixels as a PNG, and the labels over it."""
    source = f"data:image/png;base64,{base64.b64encode(png(mark.pixels)).decode()}"
    image = {"type": "image", "source": source, "hoverinfo": "skip", **_named(mark.name)}
    return [image, _labels(mark)]


def _labels(mark: Picture | Labels) -> Json:
    return {
        "type": "scatter",
        "mode": "text",
        "x": pack_array(mark.x),
        "y": pack_array(mark.y),
        "text": [_escape(label) for label in mark.labels],
        "hoverinfo": "skip",
        "showlegend": False,
        **_named(mark.name),
    }


def png(pixels: np.ndarray) -> bytes:
    """Return pixels (rows, columns, 4) as the content of a PNG file."""
    from matplotlib.image import imsave

    content = io.BytesIO()
    imsave(content, pixels, format="png")
    return content.getvalue()


def _contours(mark: Plane, detail: float) -> list[Json]:
    z, rows, columns = block_means(mark.z, int(MAX_HEAT_CELLS * detail))
    contour = _grid(mark, "contour", z, mark.x[columns], mark.y[rows])
    contour |= {"ncontours": 24, "line": {"width": 0.7, "color": "rgba(255,255,255,0.35)"}}
    if mark.path is None:
        return [contour]
    path = {
        "type": "scatter",
        "mode": "lines+markers",
        "x": pack_array(mark.path[:, 0]),
        "y": pack_array(mark.path[:, 1]),
        "showlegend": False,
        "meta": {"color": 1},
        **_named("path of training"),
    }
    return [contour, path]


def _surface(mark: Plane, detail: float) -> Json:
    z, rows, columns = block_means(mark.z, int(MAX_HEAT_CELLS * detail))
    return _grid(mark, "surface", z, mark.x[columns], mark.y[rows])


def _named(name: str) -> Json:
    return {"name": _escape(name), "hoverlabel": {"namelength": 40}}


def _escape(text: str) -> str:
    """Escape what plotly would read as tags of its own, so that no name can bring any, and what cannot be shown."""
    return visible(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
