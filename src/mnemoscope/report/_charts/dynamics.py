"""Charts of how states move: stability, Lyapunov exponents, signal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from mnemoscope.report._chart import Axis, Bars, Chart, Line, Marker, Points, finite_markers
from mnemoscope.report._charts.registry import draws_scope
from mnemoscope.report._view import View, lines_of

_NOTHING = np.empty(0)
EUCLIDEAN = "Euclidean norm"  # as the scope's label names it


@draws_scope
def stability(shown: Sequence[View]) -> list[Chart]:
    """How much one step stretches differences of state, along the sequence, and over pairs of states."""
    edge = Marker("y", 1.0, "1: distances are kept")
    proved = [view for view in shown if "lambda" in view.finding.certified]
    certified = [Marker("y", view.finding.figures["lambda"], f"certified: {view.name}") for view in proved]
    # Stretches are Euclidean, ratios in the norm of the certificate: each is drawn beside what bounds it.
    euclidean = [
        marker
        for marker, view in zip(certified, proved, strict=True)
        if view.finding.labels.get("norm", EUCLIDEAN) == EUCLIDEAN
    ]
    stretch = Chart(
        "stability-jacobian",
        "How much a step stretches",
        Axis("step"),
        Axis("largest stretch of a step", switch=True),
        tuple(_jacobian_norms(view) for view in shown),
        finite_markers([edge, *euclidean]),
    )
    with_pairs = [view for view in shown if view.finding.series.get("ratio", _NOTHING).size > 1]
    ratio = Chart(
        "stability-ratio",
        "How much nearer a step brings two states",
        Axis("share of the pairs", share=True),
        Axis("distance after / before", switch=True),
        tuple(_sorted_ratios(view) for view in with_pairs),
        finite_markers([edge, *certified]),
    )
    return [stretch, ratio] if with_pairs else [stretch]


def _jacobian_norms(view: View) -> Points:
    series = view.finding.series
    return Points(view.label(), series["step"].astype(float), series["jacobian_norm"].astype(float), view.style())


def _sorted_ratios(view: View) -> Line:
    """The ratios' quantile function: x is the share of the pairs whose ratio is at most y."""
    ratios = np.sort(view.finding.series["ratio"].astype(float))
    return Line(view.label(), np.linspace(0, 1, len(ratios)), ratios, style=view.style())


@draws_scope
def lyapunov(shown: Sequence[View]) -> list[Chart]:
    """The spectrum, and whether its largest exponent has settled."""
    zero = finite_markers([Marker("y", 0.0, "0: neither converge nor diverge")])
    y = Axis("exponent per step")
    spectrum = Chart(
        "lyapunov-spectrum",
        "Lyapunov exponents",
        Axis("number of the exponent", switch=True),
        y,
        lines_of(shown, "exponents", start=1),
        zero,
    )
    with_history = [view for view in shown if view.finding.series.get("running", _NOTHING).ndim == 2]
    history = tuple(_largest_exponent(view) for view in with_history)
    title = "The largest exponent as the run went on"
    return [spectrum, Chart("lyapunov-running", title, Axis("steps"), y, history, zero)]


def _largest_exponent(view: View) -> Line:
    series = view.finding.series
    largest = series["running"][:, 0].astype(float)
    return Line(view.label(), series["running_steps"].astype(float), largest, style=view.style())


_SIGNALS = (
    ("activation_variance", "Variance of the states", "variance", True),
    ("gradient_variance", "Variance of the gradient, from the last output", "variance", True),
    ("saturated", "Share of saturated units", "share with |h| > 0.99", False),
)


@draws_scope
def signal(shown: Sequence[View]) -> list[Chart]:
    """Sizes of states and gradients over time, by layer; and the weights' gains."""
    charts = []
    for key, title, unit, log in _SIGNALS:
        lines = tuple(line for view in shown for line in _by_layer(view, key))
        if lines:
            name = f"signal-{key.replace('_', '-')}"
            y = Axis(unit, log, switch=True, share=key == "saturated")
            charts.append(Chart(name, title, Axis("step"), y, lines))
    bars = tuple(_gains(view) for view in shown if view.finding.series.get("weight_gain", _NOTHING).size)
    if bars:
        gains = sorted({view.finding.figures.get("preserving_gain", np.nan) for view in shown})
        preserving = finite_markers(Marker("y", gain, "keeps the variance") for gain in gains)
        y = Axis("fan-in × variance of the weights")
        charts.append(Chart("signal-weights", "Gains of the weights", Axis("weight"), y, bars, preserving))
    return charts


def _by_layer(view: View, key: str) -> Iterator[Line]:
    values = np.atleast_2d(view.finding.series.get(key, np.empty((0, 0))))  # (layers, steps)
    stacked = len(values) > 1
    for layer, y in enumerate(values):
        label = view.label(f"layer {layer + 1}" if stacked else "")
        style = view.style(layer if stacked else None)
        yield Line(label, np.arange(len(y), dtype=float), y.astype(float), style=style)


def _gains(view: View) -> Bars:
    names = view.finding.labels.get("weights", [])
    values = view.finding.series["weight_gain"].astype(float)
    if not isinstance(names, list) or len(names) != len(values):
        names = [str(number) for number in range(len(values))]
    return Bars(view.name, tuple(names), values, view.style())
