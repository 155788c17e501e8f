"""Charts of models that attend to their own past: where they look, what they keep, by which paths gradients return."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mnemoscope.report._chart import Axis, Chart, HeatMap
from mnemoscope.report._charts.registry import draws_scope
from mnemoscope.report._color_range import common_range, remark_on_colors, without_outliers
from mnemoscope.report._view import View, lines_of

_BY_STEP = (
    ("received", "Attention that each step's state receives", "attention, summed over later steps"),
    ("kept_for", "How long each step's state is kept", "steps in memory"),
    ("lag", "How far back each step looks", "steps back, on average"),
)


@draws_scope
def attention(shown: Sequence[View]) -> list[Chart]:
    """Heat maps of who attends to whom, one per model; what each step's state receives and how long it is kept."""
    charts = []
    color_range = common_range([without_outliers(_seen(view)) for view in shown])
    for view in shown:
        x, y = Axis("state made at step"), Axis("attending step")
        title = f"Where {view.name} looks{remark_on_colors(len(shown), color_range)}"
        charts.append(Chart(f"attention-map-{view.index}", title, x, y, (_attention_map(view, color_range),)))
    for key, title, unit in _BY_STEP:
        name = f"attention-{key.replace('_', '-')}"
        charts.append(Chart(name, title, Axis("step"), Axis(unit, switch=True), lines_of(shown, key)))
    return charts


def _attention_map(view: View, color_range: tuple[float, float] | None) -> HeatMap:
    """Row t is what step t attends to, column s what is given to the state made at step s."""
    seen = _seen(view)
    return HeatMap(view.name, np.arange(seen.shape[1]), np.arange(seen.shape[0]), seen, color_range=color_range)


def _seen(view: View) -> np.ndarray:
    """Attention (steps, states); NaN, which stays blank, for what cannot be attended."""
    weights = view.finding.series["attention"].astype(float)
    return np.where(weights > 0, weights, np.nan)


@draws_scope
def paths(shown: Sequence[View]) -> list[Chart]:
    """By how many hops gradients come back, one map per model; their size, and the fewest hops there are."""
    charts = []
    for view in shown:
        title = f"By how many hops gradients of {view.name} come back"
        charts.append(Chart(f"paths-hops-{view.index}", title, Axis("steps back (lag)"), Axis("hops"), (_hops(view),)))
    lag = Axis("steps back (lag)", switch=True)
    size = Axis("gradient of the macro-state", log=True, switch=True)
    charts.append(Chart("paths-gradient", "The gradient through attention", lag, size, lines_of(shown, "gradient")))
    depth = lines_of(shown, "depth")
    charts.append(Chart("paths-depth", "The shortest path over strong attention", lag, Axis("hops"), depth))
    return charts


def _hops(view: View) -> HeatMap:
    """Row n is the share of the gradient that comes back in n hops, column k the lag."""
    share = view.finding.series["share"].astype(float)
    return HeatMap(view.name, np.arange(share.shape[1]), np.arange(share.shape[0]), share, color_range=(0.0, 1.0))
