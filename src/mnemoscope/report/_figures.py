"""Charts as SVG and PNG files, by matplotlib."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mnemoscope.files import write_whole
from mnemoscope.report._chart import Axis, Bars, Chart, Heat, Line, Plane, Points, lowest_shown
from mnemoscope.report._palette import LIGHT, SCALE, turn

FORMATS = ("svg", "png")
_DASHES = ("-", "--", ":", "-.", (0, (8, 3)), (0, (8, 3, 1, 3)))
_SYMBOLS = ("o", "D", "s", "^", "x", "+")


def write_figures(charts: Iterable[Chart], folder: Path, formats: Sequence[str]) -> list[Path]:
    """One file a chart and format, named after the chart's key."""
    paths = []
    folder.mkdir(parents=True, exist_ok=True)
    for chart in charts:
        figure = draw(chart)
        for suffix in formats:
            content = io.BytesIO()
            figure.savefig(content, format=suffix, dpi=160)
            paths.append(folder / f"{chart.key}.{suffix}")
            write_whole(paths[-1], content.getvalue())
    return paths


def draw(chart: Chart) -> Any:
    """A chart as a matplotlib figure."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.subplots()
    axes.set_title(_plain(chart.title), loc="left", fontsize=11)
    for number, mark in enumerate(chart.marks):
        _mark(figure, axes, mark, number, len(chart.marks))
    for marker in chart.markers:
        _rule(axes, marker.axis, marker.at, _plain(marker.text), chart.written_at)
    _scale(axes, "x", chart.x, chart)
    _scale(axes, "y", chart.y, chart)
    axes.spines[["top", "right"]].set_visible(False)
    if len({mark.name for mark in chart.marks}) > 1:
        axes.legend(frameon=False, fontsize=8)
    return figure


def _mark(figure: Any, axes: Any, mark: Line | Points | Bars | Heat | Plane, number: int, of: int) -> None:
    match mark:
        case Line():
            _line(axes, mark)
        case Points():
            look = {"color": turn(LIGHT, mark.style.colour), "marker": _SYMBOLS[mark.style.dash % len(_SYMBOLS)]}
            size = 1 if len(mark.x) > 1000 else 16
            axes.scatter(mark.x, mark.y, s=size, alpha=0.6, label=_plain(mark.name), rasterized=True, **look)
        case Bars():
            width = 0.8 / of
            places = np.arange(len(mark.labels)) + (number - (of - 1) / 2) * width
            axes.bar(places, mark.values, width, label=_plain(mark.name), color=turn(LIGHT, mark.style.colour))
            labels = list(map(_plain, mark.labels))
            axes.set_xticks(np.arange(len(labels)), labels, rotation=45, ha="right", fontsize=7)
        case Heat():
            drawn = axes.pcolormesh(mark.x, mark.y, mark.z, cmap=SCALE.lower(), shading="nearest", rasterized=True)
            axes.invert_yaxis()
            figure.colorbar(drawn, ax=axes)
        case Plane():
            drawn = axes.contourf(mark.x, mark.y, mark.z, 20, cmap=SCALE.lower())
            figure.colorbar(drawn, ax=axes)
            if mark.path is not None:
                axes.plot(mark.path[:, 0], mark.path[:, 1], ".-", color=LIGHT[1], linewidth=1)


def _line(axes: Any, mark: Line) -> None:
    colour = turn(LIGHT, mark.style.colour)
    look: dict[str, Any] = {"color": colour, "linestyle": _DASHES[mark.style.dash % len(_DASHES)]}
    if len(mark.x) <= 40:
        look |= {"marker": _SYMBOLS[mark.style.dash % len(_SYMBOLS)], "markersize": 4}
    axes.plot(mark.x, mark.y, label=_plain(mark.name), **look)
    if mark.low is not None and mark.high is not None:
        axes.fill_between(mark.x, mark.low, mark.high, color=colour, alpha=0.18, linewidth=0)


def _rule(axes: Any, axis: str, at: float, text: str, written_at: tuple[int, str, str]) -> None:
    line: dict[str, Any] = {"color": "0.45", "linestyle": ":", "linewidth": 1}
    if axis == "x":
        axes.axvline(at, **line)
        axes.annotate(text, (at, 1), xycoords=("data", "axes fraction"), rotation=90, ha="right", va="top", fontsize=8)
    else:
        axes.axhline(at, **line)
        end, side, edge = written_at
        axes.annotate(text, (end, at), xycoords=("axes fraction", "data"), ha=side, va=edge, fontsize=8)


def _scale(axes: Any, name: str, axis: Axis, chart: Chart) -> None:
    getattr(axes, f"set_{name}label")(_plain(axis.title))
    drawn = [getattr(mark, name) for mark in chart.marks if isinstance(mark, Line | Points)]
    ends = lowest_shown(drawn)
    if ends is None or not axis.log:
        return
    marked = [marker.at for marker in chart.markers if marker.axis == name and marker.at > 0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of a range whose ends are the same
        getattr(axes, f"set_{name}scale")("log")
        getattr(axes, f"set_{name}lim")(min([ends[0] * 0.8, *marked]), max([ends[1] * 1.25, *marked]))


def _plain(text: str) -> str:
    return text.replace("$", r"\$")  # a name is not a formula
