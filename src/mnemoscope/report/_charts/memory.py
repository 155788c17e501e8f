"""Charts of what a model remembers: learning, recurrence, horizon, truncation, separation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mnemoscope.report._chart import Axis, Bars, Chart, Line, Marker, markers
from mnemoscope.report._view import View, need_marker, with_bounds


def learning(shown: Sequence[View]) -> list[Chart]:
    """Held-out loss and metric against updates, and the loss that a model without memory can reach."""
    updates = Axis("updates")
    losses = [line for view in shown for line in view.line("loss", x="update")]
    baselines = {view.finding.figures.get("baseline", np.nan) for view in shown}
    floor = [Marker("y", value, "without memory") for value in sorted(baselines)]
    axis = Axis("held-out loss", log=True, switch=True)
    charts = [Chart("learning-loss", "Loss while learning", updates, axis, tuple(losses), markers(*floor))]
    names = {str(view.finding.labels.get("metric", "metric")) for view in shown if "metric" in view.finding.series}
    for name in sorted(names):
        mine = [view for view in shown if view.finding.labels.get("metric", "metric") == name]
        lines = [line for view in mine for line in view.line("metric", x="update")]
        title, axis = f"{name.capitalize()} while learning", Axis(f"held-out {name}")
        charts.append(Chart(f"learning-{name}", title, updates, axis, tuple(lines)))
    return charts


def recurrence(shown: Sequence[View]) -> list[Chart]:
    """What one output depends on: steps of its own sequence, and other sequences."""
    strength = Axis("gradient, relative to the largest", switch=True)
    by_step = [line for view in shown for line in view.line("gradient_by_step")]
    steps = sorted({view.finding.figures["step"] for view in shown})
    marked = markers(*(Marker("x", step, "the output looked at") for step in steps))
    bars = tuple(_by_sequence(view) for view in shown)
    return [
        Chart("recurrence-steps", "Which steps one output depends on", Axis("step of the input"), strength,
              tuple(by_step), marked),
        Chart("recurrence-sequences", "Which sequences one output depends on", Axis("sequence of the batch"),
              Axis("largest gradient, relative"), bars),
    ]  # fmt: skip


def _by_sequence(view: View) -> Bars:
    values = view.finding.series["gradient_by_sequence"].astype(float)
    touched = int(view.finding.figures.get("sequence", -1))
    labels = tuple(f"{i} (its own)" if i == touched else str(i) for i in range(len(values)))
    return Bars(view.name, labels, values, view.style())


def horizon(shown: Sequence[View]) -> list[Chart]:
    """The size of gradients by lag, relative to lag 0, and how long two prefixes can be told apart."""
    lines = [line for view in shown for line in _gradients(view)]
    gone = Marker("y", 0.01, "1 %: counted as gone")
    lag = Axis("steps back (lag)", switch=True)
    size = Axis("size of the gradient, relative to lag 0", log=True, switch=True)
    charts = [
        Chart("horizon-gradient", "How far back gradients reach", lag, size, tuple(lines),
              markers(*need_marker(shown), gone))
    ]  # fmt: skip
    after = [line for view in shown for line in view.line("difference_after_prefix")]
    if after:
        x, y = Axis("steps after the prefix"), Axis("difference of the outputs, relative", log=True, switch=True)
        charts.append(Chart("horizon-behaviour", "How long two beginnings can be told apart", x, y, tuple(after)))
    kinds = (("loss_gradient", "by inputs"), ("loss_gradient_by_state", "by states"))
    taught = [line for view in shown for n, (key, kind) in enumerate(kinds) for line in view.line(key, kind, n)]
    if taught:
        y = Axis("size of the loss's gradient", log=True, switch=True)
        charts.append(Chart("horizon-loss", "Which steps the loss teaches about", Axis("step"), y, tuple(taught)))
    return charts


def _gradients(view: View) -> list[Line]:
    lines: list[Line] = []
    for number, (key, kind) in enumerate((("input_gradient", "by inputs"), ("state_gradient", "by states"))):
        first = view.finding.series.get(key, np.zeros(1))[0]
        lines += view.line(key, kind, number, scale=1 / first if first > 0 else 1.0)
    return lines


_ERRORS = (
    ("output_error", "outputs, worst sequence"), ("gradient_error", "gradients, last k inputs alone"),
    ("bptt_error", "gradients, backpropagation cut"),
)  # fmt: skip
_BOUNDS = (("output_bound", "outputs, proved bound"), ("gradient_bound", "gradients, proved bound"))


def truncation(shown: Sequence[View]) -> list[Chart]:
    """What is lost by a shorter window."""
    kinds = list(enumerate((*_ERRORS, *_BOUNDS)))
    errors, bounds = (
        [line for view in shown for n, (key, kind) in some for line in view.line(key, kind, n, x="window")]
        for some in (kinds[: len(_ERRORS)], kinds[len(_ERRORS) :])
    )
    lines = with_bounds(errors, bounds)
    x, y = Axis("window (steps)", log=True, switch=True), Axis("error, relative", log=True, switch=True)
    allowed = Marker("y", 0.01, "1 %: counted as the same")
    title = "What a shorter window loses"
    return [Chart("truncation-error", title, x, y, lines, markers(*need_marker(shown), allowed))]


def separation(shown: Sequence[View]) -> list[Chart]:
    """The singular values of outputs as a matrix of Starts by Ends."""
    lines = tuple(line for view in shown for line in view.line("singular_values", start=1))
    y = Axis("singular value, relative to the first", log=True, switch=True)
    return [Chart("separation-spectrum", "In how many ways start and end are joined", Axis("number"), y, lines)]
