"""Charts of models that attend to their own past: where they look, what they keep, by which paths gradients return."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mnemoscope.report._chart import Axis, Chart, Heat, Line
from mnemoscope.report._view import View


def attention(shown: Sequence[View]) -> list[Chart]:
    """Heat maps of who attends to whom, one a model, and what each step's state receives and how long it is kept."""
    charts = [
        Chart(f"attention-map-{view.place}", f"Where {view.name} looks", Axis("state made at step"),
              Axis("attended at step"), (_square(view, "attention"),))
        for view in shown
    ]  # fmt: skip
    for key, title, unit in (
        ("received", "Attention that each step's state receives", "attention, summed over later steps"),
        ("kept_for", "How long each step's state is kept", "steps in memory"),
        ("lag", "How far back each step looks", "steps back, on average"),
    ):
        lines = tuple(line for view in shown for line in view.line(key))
        charts.append(Chart(f"attention-{key.replace('_', '-')}", title, Axis("step"), Axis(unit, switch=True), lines))
    return charts


def _square(view: View, key: str) -> Heat:
    z = view.finding.series[key].astype(float)
    return Heat(view.name, np.arange(z.shape[1]), np.arange(z.shape[0]), np.where(z > 0, z, np.nan))


def paths(shown: Sequence[View]) -> list[Chart]:
    """By how many hops gradients come back, one map a model; their size, and the fewest hops there are."""
    charts = [
        Chart(f"paths-hops-{view.place}", f"By how many hops gradients of {view.name} come back",
              Axis("steps back (lag)"), Axis("hops"), (_hops(view),))
        for view in shown
    ]  # fmt: skip
    lag = Axis("steps back (lag)", switch=True)
    sizes = tuple(line for view in shown for line in view.line("gradient"))
    y = Axis("gradient of the macro-state", log=True, switch=True)
    charts.append(Chart("paths-gradient", "The gradient through attention", lag, y, sizes))
    depths = tuple(_finite(line) for view in shown for line in view.line("depth"))
    charts.append(Chart("paths-depth", "The shortest path of marked attention", lag, Axis("hops"), depths))
    return charts


def _hops(view: View) -> Heat:
    share = view.finding.series["share"].astype(float)
    return Heat(view.name, np.arange(share.shape[1]), np.arange(share.shape[0]), share)


def _finite(line: Line) -> Line:
    return Line(line.name, line.x, np.where(line.y < 0, np.nan, line.y), style=line.style)
