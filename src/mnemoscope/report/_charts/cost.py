"""Charts after Ribeiro et al. 2019: how steep the cost is, what a step does to entropy, orbits, the cost around."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mnemoscope.report._chart import Axis, Chart, Line, Mark, Marker, Plane, Points, finite_markers
from mnemoscope.report._charts.registry import draws_scope
from mnemoscope.report._view import View, lines_by_kind, with_bounds


@draws_scope
def smoothness(shown: Sequence[View]) -> list[Chart]:
    """Slopes of the cost against the length of sequences, relative to the shortest, beside what Theorem 1 allows."""
    slopes = lines_by_kind(shown, (("cost_slope", "cost"), ("gradient_slope", "its gradient")), x="lengths")
    allowed = lines_by_kind(shown, (("promised", "allowed by Theorem 1"),), x="lengths", first=2)
    x = Axis("length (steps)", log=True, switch=True)
    y = Axis("slope, relative to the shortest", log=True, switch=True)
    lines = with_bounds(map(_relative_to_first, slopes), map(_relative_to_first, allowed))
    return [Chart("smoothness-slopes", "How steep the cost becomes", x, y, lines)]


def _relative_to_first(line: Line) -> Line:
    first = line.y[0] if line.y[0] > 0 else 1.0
    return Line(line.name, line.x, line.y / first, style=line.style)


@draws_scope
def entropy(shown: Sequence[View]) -> list[Chart]:
    """What a step does to the entropy of the state, and the bounds on it."""
    kinds = (("change", "measured"), ("hadamard", "Hadamard's bound"), ("log_norm", "bound by the norm"))
    chart = Chart(
        "entropy-change",
        "What a step does to the entropy",
        Axis("step"),
        Axis("change of entropy per step (nats)"),
        lines_by_kind(shown, kinds, x="steps"),
        finite_markers([Marker("y", 0.0, "0: kept")]),
    )
    return [chart]


@draws_scope
def attractors(shown: Sequence[View]) -> list[Chart]:
    """Where orbits end up: over a parameter or over constant inputs; and the eigenvalues at fixed points."""
    x = Axis("parameter, or number of the constant input")
    orbits = tuple(_orbits(view) for view in shown)
    charts = [Chart("attractors-orbits", "Where states end up", x, Axis("one unit of the state"), orbits)]
    with_eigenvalues = [view for view in shown if view.finding.series.get("eigenvalues", np.empty(0)).size]
    if with_eigenvalues:
        angle = np.linspace(0, 2 * np.pi, 181)
        circle = Line("|eigenvalue| = 1", np.cos(angle), np.sin(angle))
        marks: tuple[Mark, ...] = (circle, *(_eigenvalues(view) for view in with_eigenvalues))
        title = "Eigenvalues at the fixed points"
        charts.append(Chart("attractors-eigenvalues", title, Axis("real part"), Axis("imaginary part"), marks))
    return charts


def _orbits(view: View) -> Points:
    values = view.finding.series["values"].astype(float)
    orbits = view.finding.series["orbits"].astype(float)  # (values, starts, steps)
    x = np.broadcast_to(values[:, None, None], orbits.shape).flatten()
    return Points(view.label(), x, orbits.flatten(), view.style())


def _eigenvalues(view: View) -> Points:
    values = view.finding.series["eigenvalues"].reshape(-1, 2).astype(float)
    style = view.style(1) if view.alone else view.style()  # the circle has style 0
    return Points(view.label("eigenvalues"), values[:, 0], values[:, 1], style)


@draws_scope
def landscape(shown: Sequence[View]) -> list[Chart]:
    """The cost along a line, or over a plane, of parameters."""
    x, y = Axis("first direction"), Axis("second direction")
    lines: list[Line] = []
    planes: list[Chart] = []
    for view in shown:
        if view.finding.series["cost"].ndim == 1:
            lines += view.line("cost", "on these sequences", 0, x="x")
            lines += view.line("held_out", "on others", 1, x="x")
        else:
            title = f"The cost around {view.name}"
            planes.append(Chart(f"landscape-plane-{view.index}", title, x, y, (_plane(view),)))
    line = Chart("landscape-line", "The cost along a line", x, Axis("cost", switch=True), tuple(lines))
    return [line, *planes]


def _plane(view: View) -> Plane:
    series = view.finding.series
    path = series.get("path")
    if path is not None and (path.ndim != 2 or path.shape[1] != 2):
        path = None
    return Plane(view.name, series["x"], series["y"], series["cost"].astype(float), path)
