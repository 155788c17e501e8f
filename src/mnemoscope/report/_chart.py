"""A chart as data: what is drawn, not how. One description serves the page (plotly) and the figures (matplotlib)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class Axis:
    """An axis: its title, whether it starts out logarithmic, and whether the reader may switch."""

    title: str
    log: bool = False
    switch: bool = False


@dataclass(frozen=True)
class Style:
    """How marks of one thing look: places in the palette and in the list of dashes."""

    colour: int = 0
    dash: int = 0


@dataclass(frozen=True, eq=False)
class Line:
    """y over x, both (N,), with a band from `low` to `high` where it is known."""

    name: str
    x: np.ndarray
    y: np.ndarray
    low: np.ndarray | None = None
    high: np.ndarray | None = None
    style: Style = Style()


@dataclass(frozen=True, eq=False)
class Points:
    """A cloud of points, x and y (N,): thousands of them are welcome."""

    name: str
    x: np.ndarray
    y: np.ndarray
    style: Style = Style()


@dataclass(frozen=True, eq=False)
class Bars:
    """One bar a label."""

    name: str
    labels: tuple[str, ...]
    values: np.ndarray
    style: Style = Style()


@dataclass(frozen=True, eq=False)
class Heat:
    """z (rows, columns) as colours, over y (rows,) and x (columns,)."""

    name: str
    x: np.ndarray
    y: np.ndarray
    z: np.ndarray


@dataclass(frozen=True, eq=False)
class Plane:
    """z (rows, columns) over a plane, as contours and as a surface, with a path (P, 2) drawn on it."""

    name: str
    x: np.ndarray
    y: np.ndarray
    z: np.ndarray
    path: np.ndarray | None = None


Mark = Line | Points | Bars | Heat | Plane


@dataclass(frozen=True)
class Marker:
    """A line across the chart with words on it, at a place on the x or the y axis."""

    axis: str
    at: float
    text: str


@dataclass(frozen=True, eq=False)
class Chart:
    """Marks over two axes. `key` is unique on a page: charts are linked by it."""

    key: str
    title: str
    x: Axis
    y: Axis
    marks: tuple[Mark, ...]
    markers: tuple[Marker, ...] = field(default=())

    @property
    def summary(self) -> str:
        """What the chart shows, in words, for those who cannot see it."""
        said = [f"{self.title}: {self.y.title} against {self.x.title}.", *map(_in_words, self.marks)]
        return " ".join([*said, *(f"Marked at {figure(m.at)}: {m.text}." for m in self.markers)])

    @property
    def written_at(self) -> tuple[int, str, str]:
        """At which end of a level line its words stand, and by which of their edges.

        Above it on the right; where an upright line's words may be, on the left, below what begins above the line.
        """
        return (0, "left", "top") if any(marker.axis == "x" for marker in self.markers) else (1, "right", "bottom")


def markers(*given: Marker | None) -> tuple[Marker, ...]:
    """Those that have a place to be."""
    return tuple(marker for marker in given if marker is not None and math.isfinite(marker.at))


def lowest_shown(lines: Iterable[np.ndarray]) -> tuple[float, float] | None:
    """The range of a logarithmic axis: all positive values, but no more than sixteen orders of magnitude of them."""
    positive = [values[np.isfinite(values) & (values > 0)] for values in lines]
    found = np.concatenate(positive) if positive else np.empty(0)
    if not len(found):
        return None
    top = float(found.max())
    return max(float(found.min()), top * 1e-16, 1e-300), top


def figure(value: float) -> str:
    """A number as people write it."""
    if math.isnan(value):
        return "not known"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    if value and (abs(value) >= 1e5 or abs(value) < 1e-3):
        mantissa, exponent = f"{value:.2e}".split("e")
        return f"{float(mantissa):g}e{int(exponent)}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _in_words(mark: Mark) -> str:
    match mark:
        case Line(name, x, y):
            return f"{name}: {_course(x, y)}."
        case Points(name, _, y):
            return f"{name}: {len(y)} points, {_extent(y)}."
        case Bars(name, labels, values):
            pairs = [f"{label} {figure(float(v))}" for label, v in zip(labels, values, strict=True)][:12]
            return f"{name}: {', '.join(pairs)}."
        case Heat(name, _, _, z) | Plane(name, _, _, z):
            return f"{name}: {z.shape[0]} by {z.shape[1]} values, {_extent(z)}."


def _course(x: np.ndarray, y: np.ndarray) -> str:
    known = np.flatnonzero(np.isfinite(y))
    if not len(known):
        return "no values"
    first, last = known[0], known[-1]
    ends = f"{figure(float(y[first]))} at {figure(float(x[first]))}"
    return f"from {ends} to {figure(float(y[last]))} at {figure(float(x[last]))}, {_extent(y)}"


def _extent(values: np.ndarray) -> str:
    known = values[np.isfinite(values)]
    return f"between {figure(float(known.min()))} and {figure(float(known.max()))}" if known.size else "none known"
