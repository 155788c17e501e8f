"""A chart as data: what is drawn, not how. One description serves the page (plotly) and the figures (matplotlib)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from mnemoscope.report._log_axis import log_range

SHARE_RANGE = (-0.02, 1.02)  # of an axis of shares: a line at 0 or 1 stays visible
LARGEST_DRAWN = 1e300  # of a value: beyond it the arithmetic of axes overflows
LABEL_ROOM = 0.1  # of the height of a chart: what a label takes
MAX_SYMBOLS = 40  # a longer line is drawn without a symbol at each point
WORDS_FOR_BARS = 12  # bars that a summary spells out


@dataclass(frozen=True)
class Extent:
    """What an axis must show: from `low` to `high`; while it is logarithmic from `positive`, unless that is None."""

    low: float
    high: float
    positive: float | None = None

    @property
    def padded(self) -> tuple[float, float]:
        """The ends of a linear axis, with some room beyond."""
        padding = 0.04 * (self.high - self.low) or 0.5
        return self.low - padding, self.high + padding


@dataclass(frozen=True)
class Axis:
    """An axis: its title, whether it starts out logarithmic, and whether the reader may switch."""

    title: str
    log: bool = False
    switch: bool = False
    share: bool = False  # True if it shows shares of a whole: it then runs from 0 to 1
    hidden: bool = False  # True if it has no meaning, as in the drawing of a graph
    extent: Extent | None = None  # of several charts side by side; else what the chart itself needs


@dataclass(frozen=True)
class Style:
    """How the marks of one thing look: an index into the palette and one into the list of dashes."""

    color: int = 0
    dash: int = 0


@dataclass(frozen=True, eq=False)
class Line:
    """y over x, both (N,), with a band from `low` to `high` where it is known.

    `seeds` are those that it is the median over; empty if they are not known, or if it is of none.
    """

    name: str
    x: np.ndarray
    y: np.ndarray
    low: np.ndarray | None = None
    high: np.ndarray | None = None
    style: Style = Style()
    seeds: tuple[int, ...] = ()

    @property
    def has_symbols(self) -> bool:
        """True if each point is marked: of a short line without gaps."""
        return len(self.x) <= MAX_SYMBOLS and not np.isnan(np.asarray(self.x, dtype=float)).any()

    def __post_init__(self) -> None:
        count = (len(self.x),)
        _check_arrays(self, x=count, y=count, low=count, high=count)


@dataclass(frozen=True, eq=False)
class Points:
    """A cloud of points, x and y (N,). N may be in the thousands."""

    name: str
    x: np.ndarray
    y: np.ndarray
    style: Style = Style()

    def __post_init__(self) -> None:
        _check_arrays(self, x=(len(self.x),), y=(len(self.x),))


@dataclass(frozen=True, eq=False)
class Bars:
    """One bar per label, with an error bar from `low` to `high` where both are known."""

    name: str
    labels: tuple[str, ...]
    values: np.ndarray
    style: Style = Style()
    low: np.ndarray | None = None
    high: np.ndarray | None = None

    @property
    def errors(self) -> np.ndarray | None:
        """(2, labels): how far the error bars reach down and up; None if there are none."""
        if self.low is None or self.high is None:
            return None
        return np.stack([self.values - self.low, self.high - self.values]).clip(0.0)

    def __post_init__(self) -> None:
        count = (len(self.labels),)
        _check_arrays(self, values=count, low=count, high=count)


@dataclass(frozen=True, eq=False)
class HeatMap:
    """z (rows, columns) as colors, over y (rows,) and x (columns,). Row 0 is at the top.

    Where columns and rows are not numbers, or not at even distances, they have labels. `color_range` is the range of z
    that the colors span; that of z itself if it is None.
    """

    name: str
    x: np.ndarray
    y: np.ndarray
    z: np.ndarray
    x_labels: tuple[str, ...] = ()
    y_labels: tuple[str, ...] = ()
    color_range: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        _check_grid(self)


@dataclass(frozen=True, eq=False)
class Plane:
    """z (rows, columns) over a plane, as contours and as a surface, with a path (P, 2) drawn on it.

    `color_range` is the range of z that the colors span; that of z itself if it is None.
    """

    name: str
    x: np.ndarray
    y: np.ndarray
    z: np.ndarray
    path: np.ndarray | None = None
    color_range: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        _check_grid(self)
        if self.path is not None:
            _check_arrays(self, path=(len(self.path), 2))


@dataclass(frozen=True, eq=False)
class Picture:
    """Pixels (rows, columns, 4) uint8: red, green, blue, opacity. Row 0 is at the top.

    `labels` are written at the pixels `x` and `y` (labels,), centered.
    """

    name: str
    pixels: np.ndarray
    x: np.ndarray
    y: np.ndarray
    labels: tuple[str, ...]

    def __post_init__(self) -> None:
        _check_arrays(self, x=(len(self.labels),), y=(len(self.labels),))
        if self.pixels.ndim != 3 or self.pixels.shape[2] != 4 or self.pixels.dtype != np.uint8 or not self.pixels.size:
            raise ValueError(f"{self.name}: {self.pixels.dtype} {list(self.pixels.shape)} are not pixels")


@dataclass(frozen=True, eq=False)
class Labels:
    """Words at points x and y (N,), centered: the names of a graph's nodes."""

    name: str
    x: np.ndarray
    y: np.ndarray
    labels: tuple[str, ...]

    def __post_init__(self) -> None:
        _check_arrays(self, x=(len(self.labels),), y=(len(self.labels),))


def _check_grid(mark: HeatMap | Plane) -> None:
    rows, columns = len(mark.y), len(mark.x)
    if not rows or not columns:
        raise ValueError(f"{mark.name}: a grid of {rows} by {columns} values cannot be drawn")
    _check_arrays(mark, x=(columns,), y=(rows,), z=(rows, columns))


def _check_arrays(mark: Mark, **shapes: tuple[int, ...]) -> None:
    """Refuse arrays of other shapes: findings may come from a file. What no chart can show becomes NaN."""
    for name, shape in shapes.items():
        values = getattr(mark, name)
        if values is None:
            continue
        if values.shape != shape or values.dtype.kind not in "fiub":
            raise ValueError(f"{mark.name}: {name} is {values.dtype} {list(values.shape)}, not {list(shape)}")
        if values.dtype.kind == "f" and values.size:
            values = values.astype(float)
            object.__setattr__(mark, name, np.where(np.abs(values) > LARGEST_DRAWN, np.nan, values))


Mark = Line | Points | Bars | HeatMap | Plane | Picture | Labels


@dataclass(frozen=True)
class Marker:
    """A line across the chart with a label: upright at x = `at`, or level at y = `at`."""

    axis: str  # "x" or "y"
    at: float
    text: str
    left: bool = False  # True if the label of a level line belongs to its left end


class LabelPosition(NamedTuple):
    """Where the label of a level marker is written."""

    end: int  # of the line: 0 left, 1 right
    horizontal: str  # which edge of the label is at that end
    vertical: str  # which edge of the label touches the line


@dataclass(frozen=True, eq=False)
class Chart:
    """Marks over two axes. `key` is unique on a page: links and files use it.

    With `equal_axes` a unit is as long across as it is down, so that a circle is round. Without `legend` something else
    says which line is which. Of several models on the page `one_of_several` says that only one has marks here.
    """

    key: str
    title: str
    x: Axis
    y: Axis
    marks: tuple[Mark, ...]
    markers: tuple[Marker, ...] = field(default=())
    equal_axes: bool = False
    legend: bool = True
    one_of_several: bool = False

    @property
    def has_legend(self) -> bool:
        """True if the names of its marks are shown: there are several, or the only one could be another model's."""
        several = len({mark.name for mark in self.marks}) > 1
        return self.legend and (several or self.one_of_several)

    @property
    def summary(self) -> str:
        """What the chart shows, in words, for readers who cannot see it."""
        sentences = [f"{self.title}: {self.y.title} against {self.x.title}."]
        sentences += [_mark_in_words(mark) for mark in self.marks]
        sentences += [f"Marked at {format_number(marker.at)}: {marker.text}." for marker in self.markers]
        return " ".join(sentences)

    def log_ends(self, name: str) -> tuple[float, float] | None:
        """Return the ends of the axis "x" or "y" while it is logarithmic; None if nothing on it is positive."""
        extent = getattr(self, name).extent
        drawn = values_along(self.marks, name)
        if extent is not None and extent.positive is not None:
            drawn.append(np.array([extent.positive, extent.high]))
        return log_range(drawn)

    def level_label(self, level: Marker) -> LabelPosition:
        """Return where the label of a level marker is written: above the line, on the right unless it says otherwise.

        In a figure an upright marker has its label at the top right, inside. Beside one, this is written on the left,
        below the line if the chart goes on there.
        """
        upright = any(marker.axis == "x" for marker in self.markers)
        if upright and self._has_room_below(level):
            return LabelPosition(0, "left", "top")
        if upright or level.left:
            return LabelPosition(0, "left", "bottom")
        return LabelPosition(1, "right", "bottom")

    def _has_room_below(self, level: Marker) -> bool:
        """Whether a label fits between a level on a logarithmic axis and the axis below it."""
        ends = self.log_ends("y") if self.y.log and level.at > 0 else None
        return ends is None or math.log(level.at / ends[0]) >= LABEL_ROOM * math.log(ends[1] / ends[0])


@dataclass(frozen=True, eq=False)
class Panels:
    """Charts in a grid of `columns`, each with its own title: one figure. Shared axes span the same range in all.

    Lines and points of one name look the same in all charts; the names stand above them, once.
    """

    key: str
    title: str
    charts: tuple[Chart, ...]
    columns: int = 3
    share_x: bool = True
    share_y: bool = True

    def __post_init__(self) -> None:
        if not self.charts or self.columns < 1:
            raise ValueError(f"{self.key}: panels need at least one chart and one column")

    @property
    def legend(self) -> dict[str, int]:
        """The color of each line and cloud by its name; empty where charts need their own, as a map's do."""
        marks = [mark for chart in self.charts for mark in chart.marks]
        if not all(isinstance(mark, Line | Points) for mark in marks):
            return {}
        colors = {mark.name: mark.style.color for mark in marks if isinstance(mark, Line | Points)}
        same = all(colors[mark.name] == mark.style.color for mark in marks if isinstance(mark, Line | Points))
        distinct = len(set(colors.values())) == len(colors)
        return colors if same and distinct and len(colors) > 1 else {}

    @property
    def summary(self) -> str:
        """What the panels show, in words."""
        return " ".join([f"{self.title}.", *(chart.summary for chart in self.charts)])


def values_along(marks: Iterable[Mark], name: str) -> list[np.ndarray]:
    """Return what lines, with their bands, and points have on the axis "x" or "y"."""
    found = []
    for mark in marks:
        if isinstance(mark, Line | Points):
            found.append(getattr(mark, name))
        if isinstance(mark, Line) and name == "y":
            found += [edge for edge in (mark.low, mark.high) if edge is not None]
    return found


def finite_markers(markers: Iterable[Marker]) -> tuple[Marker, ...]:
    """Return the markers without those at a NaN or infinite position."""
    return tuple(marker for marker in markers if math.isfinite(marker.at))


def format_number(value: float) -> str:
    """Return a number as people write it: 4 significant digits, or powers of ten where it is large or small."""
    if math.isnan(value):
        return "not known"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    if value and (abs(value) >= 1e5 or abs(value) < 1e-3):
        mantissa, exponent = f"{value:.2e}".split("e")
        return f"{float(mantissa):g}e{int(exponent)}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def _mark_in_words(mark: Mark) -> str:
    match mark:
        case Line(name, x, y):
            return f"{name}: {_ends_in_words(x, y)}."
        case Points(name, _, y):
            return f"{name}: {len(y)} points, {_range_in_words(y)}."
        case Bars(name, labels, values):
            bars = [f"{label} {format_number(float(value))}" for label, value in zip(labels, values, strict=True)]
            if mark.low is not None and mark.high is not None:
                ends = zip(map(format_number, mark.low.tolist()), map(format_number, mark.high.tolist()), strict=True)
                bars = [f"{bar} ({low} to {high})" for bar, (low, high) in zip(bars, ends, strict=True)]
            return f"{name}: {', '.join(bars[:WORDS_FOR_BARS])}."
        case HeatMap(name=name, z=z) | Plane(name=name, z=z):
            return f"{name}: {z.shape[0]} by {z.shape[1]} values, {_range_in_words(z)}."
        case Picture(name=name, labels=labels) | Labels(name=name, labels=labels):
            return f"{name}: {', '.join(labels)}."


def _ends_in_words(x: np.ndarray, y: np.ndarray) -> str:
    known = np.flatnonzero(np.isfinite(y))
    if not len(known):
        return "no values"
    start, end = (f"{format_number(float(y[i]))} at {format_number(float(x[i]))}" for i in (known[0], known[-1]))
    return f"from {start} to {end}, {_range_in_words(y)}"


def _range_in_words(values: np.ndarray) -> str:
    known = values[np.isfinite(values)]
    if not known.size:
        return "none known"
    return f"between {format_number(float(known.min()))} and {format_number(float(known.max()))}"
