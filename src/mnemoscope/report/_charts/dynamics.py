"""Charts of how states move: stability, Lyapunov exponents, signal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from mnemoscope.report._chart import Axis, Bars, Chart, Line, Marker, Points, markers
from mnemoscope.report._view import View


def stability(shown: Sequence[View]) -> list[Chart]:
    """How much one step stretches differences of state, along the sequence, and over pairs of states."""
    clouds = tuple(
        Points(view.label(), series["step"].astype(float), series["jacobian_norm"].astype(float), view.style())
        for view in shown
        for series in [view.finding.series]
    )
    proved = [
        Marker("y", view.finding.figures["lambda"], f"certified: {view.name}")
        for view in shown
        if view.finding.status == "certified"
    ]
    edge = Marker("y", 1.0, "1: distances are kept")
    y = Axis("largest stretch of a step", switch=True)
    charts = [
        Chart("stability-jacobian", "How much a step stretches", Axis("step"), y, clouds, markers(edge, *proved))
    ]  # fmt: skip
    lines = tuple(_ranked(view) for view in shown if view.finding.series.get("ratio", np.empty(0)).size > 1)
    if lines:
        title, x = "How much nearer a step brings two states", Axis("share of the pairs")
        ratio = Axis("distance after / before", switch=True)
        charts.append(Chart("stability-ratio", title, x, ratio, lines, markers(edge)))
    return charts


def _ranked(view: View) -> Line:
    ratios = np.sort(view.finding.series["ratio"].astype(float))
    return Line(view.label(), np.linspace(0, 1, len(ratios)), ratios, style=view.style())


def lyapunov(shown: Sequence[View]) -> list[Chart]:
    """The spectrum, and whether its largest exponent has settled."""
    zero = markers(Marker("y", 0.0, "0: neither meet nor part"))
    spectrum = tuple(line for view in shown for line in view.line("exponents", start=1))
    settling = tuple(_running(view) for view in shown if view.finding.series.get("running", np.empty(0)).ndim == 2)
    x, y = Axis("number of the exponent", switch=True), Axis("exponent a step")
    return [
        Chart("lyapunov-spectrum", "Lyapunov exponents", x, y, spectrum, zero),
        Chart("lyapunov-running", "The largest exponent as the run went on", Axis("steps"), y, settling, zero),
    ]


def _running(view: View) -> Line:
    running, steps = view.finding.series["running"], view.finding.series["running_steps"]
    return Line(view.label(), steps.astype(float), running[:, 0].astype(float), style=view.style())


_SIGNALS = (
    ("activation_variance", "Variance of the states", "variance", True),
    ("gradient_variance", "Variance of the gradient, from the last output", "variance", True),
    ("saturated", "Share of saturated units", "share with |h| > 0.99", False),
)


def signal(shown: Sequence[View]) -> list[Chart]:
    """Sizes of states and gradients over time, by layer; and the weights' gains."""
    charts = [
        Chart(f"signal-{key.replace('_', '-')}", title, Axis("step"), Axis(unit, log, True), tuple(lines))
        for key, title, unit, log in _SIGNALS
        if (lines := [line for view in shown for line in _by_layer(view, key)])
    ]
    bars = tuple(_gains(view) for view in shown if view.finding.series.get("weight_gain", np.empty(0)).size)
    if bars:
        wanted = sorted({view.finding.figures.get("preserving_gain", np.nan) for view in shown})
        kept = markers(*(Marker("y", value, "keeps the variance") for value in wanted))
        y = Axis("fan-in × variance of the weights")
        charts.append(Chart("signal-weights", "Gains of the weights", Axis("weight"), y, bars, kept))
    return charts


def _by_layer(view: View, key: str) -> Iterator[Line]:
    values = np.atleast_2d(view.finding.series.get(key, np.empty((0, 0))))
    for layer, y in enumerate(values):
        kind = f"layer {layer + 1}" if len(values) > 1 else ""
        number = layer if len(values) > 1 else None
        yield Line(view.label(kind), np.arange(len(y), dtype=float), y.astype(float), style=view.style(number))


def _gains(view: View) -> Bars:
    names = view.finding.labels.get("weights", [])
    values = view.finding.series["weight_gain"].astype(float)
    known = isinstance(names, list) and len(names) == len(values)
    return Bars(view.name, tuple(names if known else map(str, range(len(values)))), values, view.style())
