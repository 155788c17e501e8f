"""Charts as JSON and back: drawn again, on a page or as a figure, without what they were made from."""

from __future__ import annotations

import base64
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from mnemoscope.errors import MnemoscopeError
from mnemoscope.report._chart import (
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
    Style,
)
from mnemoscope.report._downsampling import block_means, even_indices, random_indices
from mnemoscope.report._seed_line import Curve, SeedLine

DIGITS = 5  # significant, of a stored value: more than a picture shows
MAX_POINTS = 1500  # of a stored line
MAX_SEED_POINTS = 400  # of the stored curve of a seed
MAX_CLOUD = 4000  # of a stored cloud
MAX_PIXEL_BYTES = 1 << 24  # of a stored picture
MAX_CELLS = 100  # rows or columns of a stored heat map or plane

_STORED = (Line, SeedLine, Points, Bars, HeatMap, Plane, Picture, Labels)
_KINDS: dict[str, type[Mark]] = {kind.__name__: kind for kind in _STORED}


def charts_to_json(charts: Sequence[Chart | Panels]) -> list[dict[str, Any]]:
    """Return charts for JSON; long lines, large clouds and fine grids are thinned out."""
    return [_panels_to_json(chart) if isinstance(chart, Panels) else _chart_to_json(chart) for chart in charts]


def charts_from_json(content: Any, where: str) -> list[Chart | Panels]:
    """Return the charts in JSON data; anything wrong raises a one-line error that begins with `where`."""
    try:
        return [_panels_from_json(chart) if "panels" in chart else _chart_from_json(chart) for chart in content]
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, zlib.error) as error:
        raise MnemoscopeError(f"{where} is not a list of charts: {' '.join(str(error).split())}") from error


def _panels_to_json(panels: Panels) -> dict[str, Any]:
    plain = {name: getattr(panels, name) for name in ("key", "title", "columns", "share_x", "share_y")}
    return {**plain, "panels": [_chart_to_json(chart) for chart in panels.charts]}


def _panels_from_json(content: Mapping[str, Any]) -> Panels:
    charts = tuple(_chart_from_json(chart) for chart in content["panels"])
    share_x, share_y = bool(content["share_x"]), bool(content["share_y"])
    return Panels(str(content["key"]), str(content["title"]), charts, int(content["columns"]), share_x, share_y)


def _chart_to_json(chart: Chart) -> dict[str, Any]:
    plain = {"key": chart.key, "title": chart.title, "x": _axis_to_json(chart.x), "y": _axis_to_json(chart.y)}
    marks = [{"kind": type(mark).__name__, **_mark_to_json(_thinned(mark))} for mark in chart.marks]
    markers = [vars(marker) for marker in chart.markers]
    return {**plain, "marks": marks, "markers": markers, "equal_axes": chart.equal_axes}


def _axis_to_json(axis: Axis) -> dict[str, Any]:
    return {name: value for name, value in vars(axis).items() if name == "title" or value}


def _chart_from_json(content: Mapping[str, Any]) -> Chart:
    axes = {name: Axis(**content[name]) for name in "xy"}
    marks = tuple(_mark_from_json(mark) for mark in content["marks"])
    markers = tuple(Marker(**marker) for marker in content["markers"])
    key, title = str(content["key"]), str(content["title"])
    return Chart(key, title, axes["x"], axes["y"], marks, markers, bool(content["equal_axes"]))


def _thinned(mark: Mark) -> Mark:
    """The mark with no more points than are worth keeping."""
    match mark:
        case SeedLine():
            return SeedLine(mark.name, {seed: _thinned_curve(*one) for seed, one in mark.curves.items()}, mark.style)
        case Line():
            kept = even_indices(len(mark.x), MAX_POINTS)
            low, high = (None if edge is None else edge[kept] for edge in (mark.low, mark.high))
            return Line(mark.name, mark.x[kept], mark.y[kept], low, high, mark.style, mark.seeds)
        case Points():
            kept = random_indices(len(mark.x), MAX_CLOUD)
            return Points(mark.name, mark.x[kept], mark.y[kept], mark.style)
        case HeatMap():
            z, rows, columns = block_means(mark.z, MAX_CELLS)
            x_labels = tuple(mark.x_labels[i] for i in columns) if mark.x_labels else ()
            y_labels = tuple(mark.y_labels[i] for i in rows) if mark.y_labels else ()
            return HeatMap(mark.name, mark.x[columns], mark.y[rows], z, x_labels, y_labels)
        case Plane():
            z, rows, columns = block_means(mark.z, MAX_CELLS)
            return Plane(mark.name, mark.x[columns], mark.y[rows], z, mark.path, mark.color_range)
        case Bars() | Picture() | Labels():
            return mark


def _thinned_curve(x: np.ndarray, y: np.ndarray) -> Curve:
    kept = even_indices(len(x), MAX_SEED_POINTS)
    return x[kept], y[kept]


def _mark_to_json(mark: Mark) -> dict[str, Any]:
    if isinstance(mark, SeedLine):
        curves = {str(seed): [_numbers(x), _numbers(y)] for seed, (x, y) in mark.curves.items()}
        return {"name": mark.name, "curves": curves, "style": [mark.style.color, mark.style.dash]}
    content: dict[str, Any] = {}
    for known in fields(mark):
        value = getattr(mark, known.name)
        if known.name == "pixels":
            value = {"shape": list(value.shape), "bytes": base64.b64encode(zlib.compress(value.tobytes(), 9)).decode()}
        elif isinstance(value, np.ndarray):
            value = _numbers(value)
        elif isinstance(value, Style):
            value = [value.color, value.dash]
        if value is not None and value != ():
            content[known.name] = list(value) if isinstance(value, tuple) else value
    return content


def _numbers(values: np.ndarray) -> list[Any]:
    """An array as nested lists of rounded numbers, None for what is NaN or infinite."""
    if values.ndim > 1:
        return [_numbers(row) for row in values]
    return [_rounded(float(value)) if np.isfinite(value) else None for value in values]


def _rounded(value: float) -> float | int:
    short = float(f"{value:.{DIGITS}g}")
    return int(short) if short == int(short) and abs(short) < 1e15 else short


def _mark_from_json(content: Mapping[str, Any]) -> Mark:
    kind = _KINDS[content["kind"]]
    if kind is SeedLine:
        return _seed_line_from_json(content)
    values: dict[str, Any] = {}
    for known in fields(kind):
        if known.name not in content:
            continue
        value = content[known.name]
        if known.name == "style":
            value = Style(*(int(number) for number in value))
        elif known.name.endswith("labels"):
            value = tuple(map(str, value))
        elif known.name == "color_range":
            value = (float(value[0]), float(value[1]))
        elif known.name == "pixels":
            value = _pixels(value)
        elif known.name == "name":
            value = str(value)
        elif known.name == "seeds":
            value = tuple(map(int, value))
        else:
            value = np.array(value, dtype=float)  # None becomes NaN
        values[known.name] = value
    return kind(**values)


def _seed_line_from_json(content: Mapping[str, Any]) -> SeedLine:
    curves = {}
    for seed, (x, y) in content["curves"].items():
        curve = np.array(x, dtype=float), np.array(y, dtype=float)  # None becomes NaN
        if curve[0].ndim != 1 or curve[0].shape != curve[1].shape:
            raise ValueError(f"seed {seed}: x and y must be lists of as many numbers")
        curves[int(seed)] = curve
    return SeedLine(str(content["name"]), curves, Style(*(int(number) for number in content["style"])))


def _pixels(content: Mapping[str, Any]) -> np.ndarray:
    """Pixels that were packed; not more of them than there may be."""
    shape = [int(size) for size in content["shape"]]
    size = math.prod(shape)
    if not 0 < size <= MAX_PIXEL_BYTES:
        raise ValueError(f"a picture of {shape} cannot be drawn")
    unpacked = zlib.decompressobj().decompress(base64.b64decode(content["bytes"], validate=True), size + 1)
    return np.frombuffer(unpacked, dtype=np.uint8).reshape(shape)
