"""The same scope's findings of several models, side by side, ready to be drawn over each other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mnemoscope.finding import Examination, Finding
from mnemoscope.report._chart import Line, Marker, Style

SIGHT = 1e6  # times what was measured, beyond which a bound is not drawn


@dataclass(frozen=True)
class View:
    """What one model's examination found: `place` is the model's own among all, `needs` what its task asks for."""

    name: str
    place: int
    finding: Finding
    needs: float | None
    alone: bool  # whether it is the only model on the page

    def label(self, kind: str = "") -> str:
        """What a legend calls a line: the model, or what is drawn of it, or both."""
        return kind or self.name if self.alone else f"{self.name}: {kind}" if kind else self.name

    def style(self, kind: int | None = None) -> Style:
        """Colour tells models apart, dashes what is drawn of each; where there is only one of them, both tell it."""
        if kind is None:
            return Style(self.place, self.place)
        return Style(kind, kind) if self.alone else Style(self.place, kind)

    def line(
        self, key: str, kind: str = "", number: int | None = None, *, x: str = "", scale: float = 1.0, start: int = 0
    ) -> Iterator[Line]:
        """A series of the finding as a line, with its spread as a band; nothing where there is none."""
        y = self.finding.series.get(key)
        if y is None or y.ndim != 1 or not y.size:
            return
        at = self.finding.series[x] if x else np.arange(start, start + len(y))
        low, high = _band(y, self.finding.spread.get(key))
        values = [None if v is None else v.astype(float) * scale for v in (y, low, high)]
        assert values[0] is not None
        yield Line(self.label(kind), at.astype(float), values[0], values[1], values[2], self.style(number))


def views(examinations: Mapping[str, Examination], scope: str) -> list[View]:
    """The findings of a scope that can be drawn, one a model."""
    alone = len(examinations) == 1
    found = [
        View(name, place, examination.findings[scope], needs_of(examination), alone)
        for place, (name, examination) in enumerate(examinations.items())
        if scope in examination.findings
    ]
    return [view for view in found if view.finding.has_result]


def needs_of(examination: Examination) -> float | None:
    """How many steps back the task needs, where whoever examined knew it."""
    try:
        return float(examination.about["needs"])
    except (KeyError, ValueError):
        return None


def need_marker(shown: Sequence[View], axis: str = "x") -> list[Marker]:
    """Where the tasks' needs lie, one marker for each that differs."""
    needs = sorted({view.needs for view in shown if view.needs is not None})
    return [Marker(axis, need, f"the task needs {need:g}") for need in needs]


def _band(y: np.ndarray, spread: np.ndarray | None) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Quartiles (2, N) are a band as they are; a deviation (N,) lies around the value."""
    if spread is None:
        return None, None
    if spread.shape == (2, *y.shape):
        return spread[0], spread[1]
    return (y - spread, y + spread) if spread.shape == y.shape else (None, None)


def with_bounds(measured: Iterable[Line], bounds: Iterable[Line]) -> tuple[Line, ...]:
    """Lines, and bounds on them as far as both can be seen in one chart: a bound may be a hundred powers of ten up."""
    found = tuple(measured)
    values = np.concatenate([line.y for line in found]) if found else np.empty(0)
    top = SIGHT * np.max(values[np.isfinite(values)], initial=0.0)
    return (*found, *(_below(bound, top) if top > 0 else bound for bound in bounds))


def _below(bound: Line, top: float) -> Line:
    beyond = ~(bound.y <= top)
    if not beyond.any():
        return bound
    return replace(bound, name=f"{bound.name} (beyond the chart)", y=np.where(beyond, np.nan, bound.y))
