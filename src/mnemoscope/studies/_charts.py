"""Marks that studies share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from mnemoscope.report import Axis, Chart, Curve, Labels, Line, Mark, Points, SeedLine, Style
from mnemoscope.studies._cells import Cells

HEAD = 0.09  # length of an arrow's head, where neighboring nodes are 1 apart


def band(name: str, curves: Mapping[int, Curve], style: int = 0) -> SeedLine:
    """Return one line for the curves (x, y) of several seeds: their median, in a band from the lowest to the highest.

    A curve keeps its last value where the others go on: a run that solved its task has stopped. A record keeps the
    curves, so that those of other seeds can join them.
    """
    return SeedLine(name, curves, Style(style, style))


def cell_line(name: str, cells: Mapping[int, Cells], at: Mapping[int, tuple[str, str]], style: int = 0) -> SeedLine:
    """Return one line through cells of all seeds, for `derived_charts`: at x that of ``at[x]``, if it is known."""
    curves = {}
    for seed, one in cells.items():
        known = {x: one[key] for x, key in at.items() if key in one}
        curves[seed] = np.array(list(known), dtype=float), np.array(list(known.values()), dtype=float)
    return SeedLine(name, curves, Style(style, style))


def graph_chart(
    key: str,
    title: str,
    nodes: Mapping[str, tuple[float, float]],
    edges: Mapping[str, Iterable[tuple[str, str]]],
    *,
    groups: Mapping[str, Iterable[str]] | None = None,
    labels: Mapping[str, str] | None = None,
    directed: bool = True,
    equal_axes: bool = True,
) -> Chart:
    """Return the drawing of a graph.

    Args:
        key: of the chart.
        title: of the chart.
        nodes: where each node is.
        edges: pairs of nodes by kind; kinds have their own color.
        groups: nodes by kind, drawn as dots; by default all of them are one kind.
        labels: what is written at a node; by default its name beside it, "" for nothing.
        directed: whether edges have heads.
        equal_axes: whether a unit is as long across as it is down; not for graphs that are much wider than high.
    """
    marks: list[Mark] = []
    for number, (kind, pairs) in enumerate(edges.items()):
        points = [point for pair in pairs for point in _arrow(nodes[pair[0]], nodes[pair[1]], directed)]
        if points:
            x, y = np.array(points, dtype=float).T
            marks.append(Line(kind, x, y, style=Style(number, 0)))
    for number, (kind, names) in enumerate((groups or {"nodes": list(nodes)}).items(), len(edges)):
        x, y = np.array([nodes[name] for name in names], dtype=float).reshape(-1, 2).T
        marks.append(Points(kind, x, y, Style(number, number - len(edges))))
    words = {name: name for name in nodes} if labels is None else labels
    shown = [name for name in nodes if words.get(name)]
    if shown:
        x, y = np.array([nodes[name] for name in shown], dtype=float).T
        marks.append(Labels("names", x + 0.14, y + 0.14, tuple(words[name] for name in shown)))
    return Chart(key, title, Axis("", hidden=True), Axis("", hidden=True), tuple(marks), equal_axes=equal_axes)


def _arrow(start: tuple[float, float], end: tuple[float, float], directed: bool) -> list[tuple[float, float]]:
    """The points of an edge and, at two thirds of it, its head; NaN ends each stroke."""
    gap = (np.nan, np.nan)
    if not directed:
        return [start, end, gap]
    a, b = np.array(start), np.array(end)
    along = (b - a) / max(float(np.linalg.norm(b - a)), 1e-12)
    across = np.array([-along[1], along[0]])
    tip = a + 0.67 * (b - a)
    wings = [tuple(tip - HEAD * along + side * 0.5 * HEAD * across) for side in (1, -1)]
    return [start, end, gap, wings[0], tuple(tip), wings[1], gap]
