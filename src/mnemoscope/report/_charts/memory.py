"""Charts of what a model remembers: recurrence, horizon, truncation, separation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from mnemoscope.report._chart import Axis, Bars, Chart, Line, Marker, finite_markers
from mnemoscope.report._charts.registry import draws_scope
from mnemoscope.report._view import View, lines_by_kind, lines_of, need_markers, with_bounds

USUAL = 0.01  # the level in findings that do not say theirs


@draws_scope
def recurrence(shown: Sequence[View]) -> list[Chart]:
    """What one output depends on: steps of its own sequence, and other sequences."""
    steps = sorted({view.finding.figures["step"] for view in shown})
    by_step = Chart(
        "recurrence-steps",
        "Which steps one output depends on",
        Axis("step of the input"),
        Axis("gradient, relative to the largest", switch=True),
        lines_of(shown, "gradient_by_step"),
        finite_markers(Marker("x", step, "the output looked at") for step in steps),
    )
    by_sequence = Chart(
        "recurrence-sequences",
        "Which sequences one output depends on",
        Axis("sequence of the batch"),
        Axis("largest gradient, relative"),
        tuple(_by_sequence(view) for view in shown),
    )
    return [by_step, by_sequence]


def _by_sequence(view: View) -> Bars:
    values = view.finding.series["gradient_by_sequence"].astype(float)
    own = int(view.finding.figures.get("sequence", -1))
    labels = tuple(f"{i} (its own)" if i == own else str(i) for i in range(len(values)))
    return Bars(view.name, labels, values, view.style())


@draws_scope
def horizon(shown: Sequence[View]) -> list[Chart]:
    """Gradients by lag, relative to the largest of the past, and how long two prefixes can be told apart."""
    gradients = Chart(
        "horizon-gradient",
        "How far back gradients reach",
        Axis("steps back (lag)", switch=True),
        Axis("gradient, relative to the largest at lags ≥ 1", log=True, switch=True),
        tuple(line for view in shown for line in _gradients(view)),
        finite_markers([*need_markers(shown), *_levels(shown, "fraction", "counted as gone")]),
    )
    difference = Chart(
        "horizon-behavior",
        "How long two beginnings can be told apart",
        Axis("steps after the prefix"),
        Axis("difference of the outputs, relative", log=True, switch=True),
        lines_of(shown, "difference_after_prefix"),
    )
    loss = Chart(
        "horizon-loss",
        "Which steps the loss teaches about",
        Axis("step"),
        Axis("size of the loss's gradient", log=True, switch=True),
        lines_by_kind(shown, (("loss_gradient", "by inputs"), ("loss_gradient_by_state", "by states"))),
    )
    mean_loss = Chart(
        "horizon-mean-loss",
        "How far back the loss of one output teaches, on average",
        Axis("steps back (lag)", switch=True),
        Axis("mean size of the gradient", log=True, switch=True),
        lines_by_kind(shown, (("mean_loss_gradient", "by inputs"), ("mean_loss_gradient_by_state", "by states"))),
    )
    return [chart for chart in (gradients, difference, loss, mean_loss) if chart.marks]


def _levels(shown: Sequence[View], figure: str, words: str, *, left: bool = False) -> list[Marker]:
    """Markers at the levels below which the findings count a curve as gone, or as the same."""
    levels = sorted({view.finding.figures.get(figure, USUAL) for view in shown})
    return [Marker("y", level, f"{100 * level:g} %: {words}", left=left) for level in levels]


def _gradients(view: View) -> list[Line]:
    lines: list[Line] = []
    for number, (key, kind) in enumerate((("input_gradient", "by inputs"), ("state_gradient", "by states"))):
        past = view.finding.series.get(key, np.zeros(1))[1:]
        largest = np.max(past[np.isfinite(past)], initial=0.0)
        scale = 1 / largest if largest > 0 else 1.0
        lines += view.line(key, kind, number, scale=scale)
    return lines


_ERRORS = (
    ("output_error", "outputs, worst sequence"),
    ("gradient_error", "gradients, last k inputs alone"),
    ("bptt_error", "gradients, backpropagation in chunks"),
)
_BOUNDS = (("output_bound", "outputs, proved bound"), ("gradient_bound", "gradients, proved bound"))


@draws_scope
def truncation(shown: Sequence[View]) -> list[Chart]:
    """What is lost by a shorter window."""
    errors = [_without_zeros(line) for line in lines_by_kind(shown, _ERRORS, x="window")]
    bounds = lines_by_kind(shown, _BOUNDS, x="window", first=len(_ERRORS))
    chart = Chart(
        "truncation-error",
        "What a shorter window loses",
        Axis("window (steps)", log=True, switch=True),
        Axis("error, relative", log=True, switch=True),
        with_bounds(errors, bounds),
        finite_markers([*need_markers(shown), *_levels(shown, "error", "counted as the same", left=True)]),
    )
    return [chart]


def _without_zeros(line: Line) -> Line:
    """The window of all steps has no error, which a logarithmic axis cannot show: its line ends before it."""
    return replace(line, y=np.where(line.y > 0, line.y, np.nan))


@draws_scope
def separation(shown: Sequence[View]) -> list[Chart]:
    """The singular values of outputs as a matrix of starts by ends."""
    y = Axis("singular value, relative to the first", log=True, switch=True)
    lines = lines_of(shown, "singular_values", start=1)
    return [Chart("separation-spectrum", "In how many ways start and end are joined", Axis("number"), y, lines)]
