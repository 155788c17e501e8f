"""Charts after Ribeiro et al. 2019: how steep the cost is, what a step does to entropy, orbits, the cost around."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from mnemoscope.report._chart import Axis, Chart, Line, Mark, Marker, Plane, Points, Style, finite_markers
from mnemoscope.report._charts.registry import draws_scope
from mnemoscope.report._color_range import common_range, remark_on_colors
from mnemoscope.report._palette import NEUTRAL
from mnemoscope.report._view import View, lines_by_kind, with_bounds

PANELS = 8  # outputs that have a chart of their own


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
    x = Axis(_title(shown, "x", "parameter, or number of the constant input"))
    y = Axis(_title(shown, "y", "one unit of the state"))
    orbits = tuple(points for view in shown for points in _orbits(view))
    charts = [Chart("attractors-orbits", "Where states end up", x, y, orbits)]
    for number, name in enumerate(_output_names(shown)[:PANELS]):
        outputs = tuple(points for view in shown for points in _orbits(view, number))
        charts.append(Chart(f"attractors-output-{number}", f"Where {name} ends up", x, Axis(name), outputs))
    with_eigenvalues = [view for view in shown if view.finding.series.get("eigenvalues", np.empty(0)).size]
    if with_eigenvalues:
        angle = np.linspace(0, 2 * np.pi, 181)
        circle = Line("|eigenvalue| = 1", np.cos(angle), np.sin(angle), style=Style(NEUTRAL))
        marks: tuple[Mark, ...] = (circle, *(_eigenvalues(view) for view in with_eigenvalues))
        title = "Eigenvalues at the fixed points"
        x, y = Axis("real part"), Axis("imaginary part")
        charts.append(Chart("attractors-eigenvalues", title, x, y, marks, equal_axes=True))
    return charts


def _title(shown: Sequence[View], axis: str, otherwise: str) -> str:
    """The title that all findings give an axis; `otherwise` if they differ, or are older than these labels."""
    titles = {view.finding.labels.get(axis) for view in shown}
    title = titles.pop() if len(titles) == 1 else None
    return title if isinstance(title, str) else otherwise


def _output_names(shown: Sequence[View]) -> list[str]:
    """The recorded outputs, by the first finding that has them."""
    for view in shown:
        outputs = view.finding.series.get("outputs")
        if outputs is not None and outputs.ndim:
            names = view.finding.labels.get("outputs")
            if isinstance(names, list) and len(names) == outputs.shape[-1]:
                return names
            return [f"output {k}" for k in range(outputs.shape[-1])]
    return []


def _orbits(view: View, output: int | None = None) -> Iterator[Points]:
    """The points of one unit of the state, or of one output; of each constant input by itself along a path."""
    series = view.finding.series
    if output is None:
        orbits = series["orbits"]  # (values, starts, steps), or with the constants in front
    else:
        orbits = series.get("outputs", np.empty(0))
        if orbits.ndim < 4 or orbits.shape[-1] <= output:
            return
        orbits = orbits[..., output]
    diagrams = orbits.astype(float) if orbits.ndim == 4 else orbits.astype(float)[None]
    for number, diagram in enumerate(diagrams):
        x = np.broadcast_to(series["values"].astype(float)[:, None, None], diagram.shape).flatten()
        kind, style = ("", None) if len(diagrams) == 1 else (f"input {number}", number)
        yield Points(view.label(kind), x, diagram.flatten(), view.style(style))


def _eigenvalues(view: View) -> Points:
    values = view.finding.series["eigenvalues"].reshape(-1, 2).astype(float)
    return Points(view.label("eigenvalues"), values[:, 0], values[:, 1], view.style())


@draws_scope
def landscape(shown: Sequence[View]) -> list[Chart]:
    """The cost along a line, or over a plane, of parameters.

    The planes of several models share one color scale; if that would leave one of them almost in one color, each has
    its own, and says so.
    """
    x, y = Axis(_title(shown, "x", "first direction")), Axis(_title(shown, "y", "second direction"))
    lines: list[Line] = []
    over_planes: list[View] = []
    for view in shown:
        if view.finding.series["cost"].ndim == 1:
            lines += view.line("cost", "on these sequences", 0, x="x")
            lines += view.line("held_out", "on others", 1, x="x")
        else:
            over_planes.append(view)
    color_range = common_range([view.finding.series["cost"] for view in over_planes])
    remark = remark_on_colors(len(over_planes), color_range)
    planes = []
    for view in over_planes:
        title = f"The cost around {view.name}{remark}"
        planes.append(Chart(f"landscape-plane-{view.index}", title, x, y, (_plane(view, color_range),)))
    line = Chart("landscape-line", "The cost along a line", x, Axis("cost", switch=True), tuple(lines))
    return [line, *planes]


def _plane(view: View, color_range: tuple[float, float] | None) -> Plane:
    series = view.finding.series
    path = series.get("path")
    if path is not None and (path.ndim != 2 or path.shape[1] != 2):
        path = None
    return Plane(view.name, series["x"], series["y"], series["cost"].astype(float), path, color_range)
