"""Charts as plotly's JSON, for the page. Colours are places in a palette: the page fills in those of its theme."""

from __future__ import annotations

import base64
import math
from typing import Any

import numpy as np

from mnemoscope.report._chart import Axis, Bars, Chart, Heat, Line, Marker, Plane, Points, lowest_shown
from mnemoscope.report._downsampling import CELLS, CLOUD, LINE, blocks, some_places, thin_places
from mnemoscope.report._palette import DASHES, SCALE, SYMBOLS, turn

Json = dict[str, Any]
MANY = 1000  # points beyond which a cloud is drawn by the graphics card


def for_page(chart: Chart, detail: float = 1.0) -> Json:
    """What the page's script needs to draw a chart; `detail` below 1 keeps less of the data."""
    layout: Json = {"xaxis": _axis(chart, "x"), "yaxis": _axis(chart, "y")}
    layout["shapes"] = [_rule(marker) for marker in chart.markers]
    layout["annotations"] = [_words(marker, chart) for marker in chart.markers]
    if any(isinstance(mark, Bars) for mark in chart.marks):
        layout["barmode"] = "group"
    layout["showlegend"] = len({mark.name for mark in chart.marks}) > 1
    data = [trace for mark in chart.marks for trace in _traces(mark, detail)]
    planes = [_surface(mark, detail) for mark in chart.marks if isinstance(mark, Plane)]
    logs = {name: _log(chart, name) for name in "xy"}
    return {"key": chart.key, "data": data, "layout": layout, "logs": logs, "surface": planes or None}


def packed(values: np.ndarray) -> Json:
    """An array as plotly reads it fastest: its bytes in base64."""
    values = np.ascontiguousarray(values)
    kind = _kind(values)
    body = {"dtype": kind, "bdata": base64.b64encode(values.astype(f"<{kind}").tobytes()).decode()}
    return body if values.ndim == 1 else {**body, "shape": ", ".join(map(str, values.shape))}


def _kind(values: np.ndarray) -> str:
    """Four bytes a number unless they cannot hold it."""
    size = np.abs(values[np.isfinite(values) & (values != 0)]) if values.size else values
    whole = values.dtype.kind in "iub" or bool(np.isfinite(values).all() and (values == np.round(values)).all())
    if whole and (not size.size or size.max() < 2**31):
        return "i2" if not size.size or size.max() < 2**15 else "i4"
    return "f8" if size.size and (size.max() > 1e38 or size.min() < 1e-37) else "f4"


def _axis(chart: Chart, name: str) -> Json:
    axis: Axis = getattr(chart, name)
    described: Json = {"title": {"text": _plain(axis.title)}, "automargin": True}
    if any(isinstance(mark, Bars) for mark in chart.marks) and name == "x":
        described["type"] = "category"
    elif axis.log:
        described |= {"type": "log", **(_log(chart, name) or {})}
    if name == "y" and any(isinstance(mark, Heat) for mark in chart.marks):
        described["autorange"] = "reversed"  # time runs down, as in a matrix
    return described


def _log(chart: Chart, name: str) -> Json | None:
    """A logarithmic axis's ends, as powers of ten, and its ticks, where the reader may switch to one."""
    axis: Axis = getattr(chart, name)
    drawn = [getattr(mark, name) for mark in chart.marks if isinstance(mark, Line | Points)]
    ends = lowest_shown(drawn) if axis.switch else None
    if ends is None:
        return None
    low, high = (math.log10(end) for end in ends)
    marked = [math.log10(m.at) for m in chart.markers if m.axis == name and m.at > 0 and low - 3 <= math.log10(m.at)]
    low, high = min([low, *marked]), max([high, *marked])
    pad = max(0.05 * (high - low), 0.05)
    return {"range": [low - pad, high + pad], **_ticks(low - pad, high + pad)}


def _ticks(low: float, high: float) -> Json:
    """Powers of ten, at most eight of them; 1, 2 and 5 times them where there are few."""
    powers = range(math.floor(low), math.ceil(high) + 1)
    every = max(1, math.ceil((high - low) / 8))
    steps = (1,) if high - low > 2.5 else (1, 2, 5) if high - low > 0.6 else range(1, 10)
    values = [step * 10.0**power for power in powers if power % every == 0 for step in steps]
    shown = [value for value in values if low <= math.log10(value) <= high]
    return {"tickmode": "array", "tickvals": shown, "ticktext": list(map(_tick, shown))}


def _tick(value: float) -> str:
    power = round(math.log10(value))
    plain = -3 <= math.log10(value) < 4
    return f"{value:g}" if plain or not math.isclose(value, 10.0**power) else f"10<sup>{power}</sup>"


def _rule(marker: Marker) -> Json:
    other = "y" if marker.axis == "x" else "x"
    ends = {f"{marker.axis}0": marker.at, f"{marker.axis}1": marker.at, f"{other}0": 0, f"{other}1": 1}
    return {"type": "line", f"{other}ref": "paper", **ends, "line": {"width": 1.5, "dash": "dot"}}


def _words(marker: Marker, chart: Chart) -> Json:
    axis: Axis = getattr(chart, marker.axis)
    at = math.log10(marker.at) if axis.log and marker.at > 0 else marker.at  # annotations count in powers of ten
    place: Json = {"x": at, "y": 1, "yref": "paper", "xanchor": "right", "yanchor": "top", "textangle": -90}
    if marker.axis == "y":
        end, side, edge = chart.written_at
        place = {"y": at, "x": end, "xref": "paper", "xanchor": side, "yanchor": edge}
    return {"text": _plain(marker.text), "showarrow": False, "font": {"size": 12}, **place}


def _traces(mark: Line | Points | Bars | Heat | Plane, detail: float) -> list[Json]:
    match mark:
        case Line():
            return _line(mark, detail)
        case Points():
            return [_cloud(mark, detail)]
        case Bars():
            bar = {"type": "bar", "x": list(map(_plain, mark.labels)), "y": packed(mark.values)}
            return [{**bar, **_named(mark.name), "meta": {"colour": mark.style.colour}}]
        case Heat():
            z, rows, columns = blocks(mark.z, int(CELLS * detail))
            return [_grid(mark, "heatmap", z, mark.x[columns], mark.y[rows])]
        case Plane():
            return _contours(mark, detail)


def _line(mark: Line, detail: float) -> list[Json]:
    kept = thin_places(len(mark.x), int(LINE * detail))
    x = packed(mark.x[kept])
    meta = {"colour": mark.style.colour}
    line: Json = {"type": "scatter", "mode": "lines" if len(kept) > 40 else "lines+markers", "x": x}
    line |= {"y": packed(mark.y[kept]), "line": {"width": 2.2, "dash": turn(DASHES, mark.style.dash)}, "meta": meta}
    line |= {"marker": {"symbol": turn(SYMBOLS, mark.style.dash), "size": 7}, **_named(mark.name)}
    if mark.low is None or mark.high is None:
        return [line]
    edge = {"type": "scatter", "mode": "lines", "x": x, "line": {"width": 0}, "hoverinfo": "skip", "showlegend": False}
    edge["legendgroup"] = line["legendgroup"] = _plain(mark.name)
    low = {**edge, "y": packed(mark.low[kept]), "meta": meta}
    high = {**edge, "y": packed(mark.high[kept]), "fill": "tonexty", "meta": {**meta, "band": True}}
    return [low, high, line]


def _cloud(mark: Points, detail: float) -> Json:
    kept = some_places(len(mark.x), int(CLOUD * detail))
    many, apart = len(kept) > MANY, _places(mark) > MANY
    dot: Json = {"symbol": turn(SYMBOLS, mark.style.dash)}
    dot |= {"size": 2, "opacity": 0.55} if apart else {"size": 7, "opacity": 0.75}
    trace = {"type": "scattergl" if many else "scatter", "mode": "markers", "marker": dot, **_named(mark.name)}
    where = {"x": packed(mark.x[kept]), "y": packed(mark.y[kept])}
    return {**trace, **where, "meta": {"colour": mark.style.colour}}


def _places(mark: Points) -> int:
    """How many of a cloud's points can be told apart in a chart: orbits that end in a fixed point are one dot."""
    known = np.stack([mark.x, mark.y])[:, np.isfinite(mark.x) & np.isfinite(mark.y)]
    if not known.size:
        return 0
    extent = np.ptp(known, axis=1, keepdims=True)
    return np.unique(np.round(500 * known / np.where(extent > 0, extent, 1.0)), axis=1).shape[1]


def _grid(mark: Heat | Plane, kind: str, z: np.ndarray, x: np.ndarray, y: np.ndarray) -> Json:
    bar = {"thickness": 12, "outlinewidth": 0}
    grid: Json = {"type": kind, "x": packed(x), "y": packed(y), "z": packed(z), "colorscale": SCALE, "colorbar": bar}
    known = z[np.isfinite(z)]
    usual = float(np.quantile(known, 0.99)) if known.size else 0.0
    if kind == "heatmap" and known.size and known.min() >= 0 and known.max() > 2 * usual > 0:
        grid |= {"zmin": 0.0, "zmax": usual}  # a few very large values would leave all others dark
    return {**grid, **_named(mark.name), "showlegend": False}


def _contours(mark: Plane, detail: float) -> list[Json]:
    z, rows, columns = blocks(mark.z, int(CELLS * detail))
    contour: Json = _grid(mark, "contour", z, mark.x[columns], mark.y[rows])
    contour |= {"ncontours": 24, "line": {"width": 0.7, "color": "rgba(255,255,255,0.35)"}}
    return [contour, *([] if mark.path is None else [_path(mark.path)])]


def _path(path: np.ndarray) -> Json:
    walk = {"type": "scatter", "mode": "lines+markers", "x": packed(path[:, 0]), "y": packed(path[:, 1])}
    return {**walk, **_named("path of training"), "showlegend": False, "meta": {"colour": 1}}


def _surface(mark: Plane, detail: float) -> Json:
    z, rows, columns = blocks(mark.z, int(CELLS * detail))
    return _grid(mark, "surface", z, mark.x[columns], mark.y[rows])


def _named(name: str) -> Json:
    return {"name": _plain(name), "hoverlabel": {"namelength": 40}}


def _plain(text: str) -> str:
    """Words as plotly shows them: it takes some tags for its own, so that none may come from a name."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
