"""One scope's findings of several models, side by side, ready to be drawn over each other."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mnemoscope.finding import Examination, Finding
from mnemoscope.report._chart import Line, Marker, Style

BOUND_FACTOR = 1e6  # a bound larger than the largest measured value by this factor is not drawn


@dataclass(frozen=True)
class View:
    """One model's finding, as a chart sees it."""

    name: str
    index: int  # of the model among all on the page
    finding: Finding
    needs: float | None  # how many steps back its task needs
    alone: bool  # True if it is the only model on the page

    def label(self, kind: str = "") -> str:
        """Return the name of a line in the legend: the model, or what is drawn of it, or both."""
        if not kind:
            return self.name
        return kind if self.alone else f"{self.name}: {kind}"

    def style(self, kind: int | None = None) -> Style:
        """Return the style of a line. Colors tell models apart, dashes tell what is drawn of each.

        Where there is only one model, or only one kind of line, color and dash both tell the other.
        """
        if kind is None:
            return Style(self.index, self.index)
        return Style(kind, kind) if self.alone else Style(self.index, kind)

    def line(
        self, key: str, kind: str = "", number: int | None = None, *, x: str = "", scale: float = 1.0, start: int = 0
    ) -> Iterator[Line]:
        """Yield the series `key` as a line with its spread as a band; nothing if the finding has no such series.

        `x` names the series that it is drawn against; by default the numbers from `start` on.
        """
        y = self.finding.series.get(key)
        if y is None or y.ndim != 1 or not y.size:
            return
        at = self.finding.series[x] if x else np.arange(start, start + len(y))
        y = y.astype(float)
        low, high = _band(y, self.finding.spread.get(key))
        yield Line(
            self.label(kind),
            at.astype(float),
            y * scale,
            None if low is None else low * scale,
            None if high is None else high * scale,
            self.style(number),
        )


def views(examinations: Mapping[str, Examination], scope: str) -> list[View]:
    """Return the views of a scope's findings that can be drawn, one per model."""
    alone = len(examinations) == 1
    return [
        View(name, index, examination.findings[scope], needs_of(examination), alone)
        for index, (name, examination) in enumerate(examinations.items())
        if scope in examination.findings and examination.findings[scope].has_result
    ]


def lines_of(shown: Sequence[View], key: str, *, x: str = "", start: int = 0) -> tuple[Line, ...]:
    """Return the series `key` of every model that has it, one line each."""
    return tuple(line for view in shown for line in view.line(key, x=x, start=start))


def lines_by_kind(
    shown: Sequence[View], kinds: Sequence[tuple[str, str]], *, x: str = "", first: int = 0
) -> tuple[Line, ...]:
    """Return several series of every model, model by model. `kinds` pairs each series with its words in the legend.

    `first` is the number of the first kind among all those of the chart: it decides the dashes.
    """
    numbered = list(enumerate(kinds, first))
    return tuple(
        line for view in shown for number, (key, kind) in numbered for line in view.line(key, kind, number, x=x)
    )


def needs_of(examination: Examination) -> float | None:
    """Return how many steps back the task needs, or None if that is not known."""
    try:
        needs = float(examination.about["needs"])
    except (KeyError, ValueError):
        return None
    return needs if 0 <= needs < math.inf else None


def need_markers(shown: Sequence[View]) -> list[Marker]:
    """Return an upright marker at each task's need, smallest first."""
    needs = sorted({view.needs for view in shown if view.needs is not None})
    return [Marker("x", need, f"the task needs {need:g}") for need in needs]


def _band(y: np.ndarray, spread: np.ndarray | None) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Return the low and the high edge (N,) of the band around y (N,).

    A spread (2, N) is the lower and the upper quartile; one of (N,) is a deviation on both sides.
    """
    if spread is None:
        return None, None
    spread = spread.astype(float)
    if spread.shape == (2, *y.shape):
        return spread[0], spread[1]
    if spread.shape == y.shape:
        return y - spread, y + spread
    return None, None


def with_bounds(measured: Iterable[Line], bounds: Iterable[Line]) -> tuple[Line, ...]:
    """Return the measured lines and the bounds on them, without the parts of bounds that are too far above.

    A bound may be a hundred orders of magnitude up, where it would flatten everything measured.
    """
    lines = tuple(measured)
    values = np.concatenate([line.y for line in lines]) if lines else np.empty(0)
    top = BOUND_FACTOR * np.max(values[np.isfinite(values)], initial=0.0)
    if not top > 0:
        return (*lines, *bounds)
    return (*lines, *(_cut_above(bound, top) for bound in bounds))


def _cut_above(bound: Line, top: float) -> Line:
    beyond = ~(bound.y <= top)
    if not beyond.any():
        return bound
    return replace(bound, name=f"{bound.name} (beyond the chart)", y=np.where(beyond, np.nan, bound.y))
