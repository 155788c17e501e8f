"""Charts after Ribeiro et al. 2019: how steep the cost is, what a step does to entropy, orbits, the cost around."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mnemoscope.report._chart import Axis, Chart, Line, Mark, Marker, Plane, Points, finite_markers
from mnemoscope.report._charts.registry import draws_scope
from mnemoscope.report._view import View, lines_by_kind, with_bounds

NARROW = 10  # how many times a plane's own range one color scale may span


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
        x, y = Axis("real part"), Axis("imaginary part")
        charts.append(Chart("attractors-eigenvalues", title, x, y, marks, equal_axes=True))
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
    """The cost along a line, or over a plane, of parameters.

    The planes of several models share one color scale; if that would leave one of them almost in one color, each has
    its own, and says so.
    """
    x, y = Axis("first direction"), Axis("second direction")
    lines: list[Line] = []
    over_planes: list[View] = []
    for view in shown:
        if view.finding.series["cost"].ndim == 1:
            lines += view.line("cost", "on these sequences", 0, x="x")
            lines += view.line("held_out", "on others", 1, x="x")
        else:
            over_planes.append(view)
    color_range = _common_range([view.finding.series["cost"] for view in over_planes])
    remark = ""
    if len(over_planes) > 1:
        remark = " (colors on a scale of its own)" if color_range is None else " (one color scale for all models)"
    planes = []
    for view in over_planes:
        title = f"The cost around {view.name}{remark}"
        planes.append(Chart(f"landscape-plane-{view.index}", title, x, y, (_plane(view, color_range),)))
    line = Chart("landscape-line", "The cost along a line", x, Axis("cost", switch=True), tuple(lines))
    return [line, *planes]


def _common_range(costs: Sequence[np.ndarray]) -> tuple[float, float] | None:
    """The range of all planes together; None if there are not several, or one spans less than a tenth of it."""
    finite = [cost[np.isfinite(cost)] for cost in costs]
    if len(finite) < 2 or not all(values.size for values in finite):
        return None
    low = float(min(values.min() for values in finite))
    high = float(max(values.max() for values in finite))
    narrowest = min(float(np.ptp(values)) for values in finite)
    return (low, high) if 0 < high - low <= NARROW * narrowest else None


def _plane(view: View, color_range: tuple[float, float] | None) -> Plane:
    series = view.finding.series
    path = series.get("path")
    if path is not None and (path.ndim != 2 or path.shape[1] != 2):
        path = None
    return Plane(view.name, series["x"], series["y"], series["cost"].astype(float), path, color_range)
