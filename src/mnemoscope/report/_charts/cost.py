"""Charts after Ribeiro et al. 2019: how steep the cost is, what a step does to entropy, orbits, the cost around."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from mnemoscope.report._chart import Axis, Chart, Line, Marker, Plane, Points, markers
from mnemoscope.report._view import View, with_bounds


def smoothness(shown: Sequence[View]) -> list[Chart]:
    """Slopes of the cost against the length of sequences, relative to the shortest, beside what Theorem 1 allows."""
    kinds = list(enumerate((("cost_slope", "cost"), ("gradient_slope", "its gradient"))))
    found = [line for view in shown for n, (key, kind) in kinds for line in view.line(key, kind, n, x="lengths")]
    allowed = [line for view in shown for line in view.line("promised", "allowed by Theorem 1", 2, x="lengths")]
    lines = with_bounds(map(_relative, found), map(_relative, allowed))
    x, y = Axis("length (steps)", log=True, switch=True), Axis("slope, relative to the shortest", log=True, switch=True)
    return [Chart("smoothness-slopes", "How steep the cost becomes", x, y, lines)]


def _relative(line: Line) -> Line:
    first = line.y[0] if line.y[0] > 0 else 1.0
    return Line(line.name, line.x, line.y / first, style=line.style)


def entropy(shown: Sequence[View]) -> list[Chart]:
    """What a step does to the entropy of the state, and the bounds on it."""
    kinds = (("change", "measured"), ("hadamard", "Hadamard's bound"), ("log_norm", "bound by the norm"))
    numbered = list(enumerate(kinds))
    lines = [line for view in shown for n, (key, kind) in numbered for line in view.line(key, kind, n, x="steps")]
    zero = markers(Marker("y", 0.0, "0: kept"))
    y = Axis("change of entropy a step (nats)")
    return [Chart("entropy-change", "What a step does to the entropy", Axis("step"), y, tuple(lines), zero)]


def attractors(shown: Sequence[View]) -> list[Chart]:
    """Where orbits end up: over a parameter or over constant inputs; and the eigenvalues at fixed points."""
    clouds = tuple(_orbits(view) for view in shown)
    x, y = Axis("parameter, or number of the constant input"), Axis("one unit of the state")
    charts = [Chart("attractors-orbits", "Where states end up", x, y, clouds)]
    found = tuple(_eigenvalues(view) for view in shown if view.finding.series.get("eigenvalues", np.empty(0)).size)
    if found:
        circle = np.linspace(0, 2 * np.pi, 181)
        edge = Line("|eigenvalue| = 1", np.cos(circle), np.sin(circle))
        title = "Eigenvalues at the fixed points"
        charts.append(Chart("attractors-eigenvalues", title, Axis("real part"), Axis("imaginary part"), (edge, *found)))
    return charts


def _orbits(view: View) -> Points:
    values, orbits = view.finding.series["values"].astype(float), view.finding.series["orbits"].astype(float)
    x = np.broadcast_to(values[:, None, None], orbits.shape).flatten()
    return Points(view.label(), x, orbits.flatten(), view.style())


def _eigenvalues(view: View) -> Points:
    values = view.finding.series["eigenvalues"].reshape(-1, 2).astype(float)
    style = view.style(1) if view.alone else view.style()
    return Points(view.label("eigenvalues"), values[:, 0], values[:, 1], style)


def landscape(shown: Sequence[View]) -> list[Chart]:
    """The cost along a line, or over a plane, of parameters."""
    flat = [view for view in shown if view.finding.series["cost"].ndim == 1]
    x, y = Axis("first direction"), Axis("second direction")
    charts = [
        Chart(f"landscape-plane-{view.place}", f"The cost around {view.name}", x, y, (_plane(view),))
        for view in shown
        if view not in flat
    ]
    lines = tuple(line for view in flat for line in _cuts(view))
    return [Chart("landscape-line", "The cost along a line", x, Axis("cost", switch=True), lines), *charts]


def _cuts(view: View) -> Iterator[Line]:
    yield from view.line("cost", "on these sequences", 0, x="x")
    yield from view.line("held_out", "on others", 1, x="x")


def _plane(view: View) -> Plane:
    series = view.finding.series
    path = series.get("path")
    found = path if path is not None and path.ndim == 2 and path.shape[1] == 2 else None
    return Plane(view.name, series["x"], series["y"], series["cost"].astype(float), found)
