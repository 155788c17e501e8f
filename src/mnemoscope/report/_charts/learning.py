"""Learning curves: the one description of them, for the page, the index over runs and `mnemoscope compare`."""

from __future__ import annotations

from collections.abc import Sequence

from mnemoscope.report._chart import Axis, Chart, Marker, finite_markers
from mnemoscope.report._charts.registry import draws_scope
from mnemoscope.report._view import View, lines_of

MAX_BASELINES = 3  # lines "without memory"; more of them, of runs on many tasks, would cover the curves


@draws_scope
def learning(shown: Sequence[View]) -> list[Chart]:
    """Held-out loss against updates, with the loss that a model without memory can reach, and held-out metrics."""
    charts = [_loss(shown)] if any("loss" in view.finding.series for view in shown) else []
    for metric in sorted({_metric(view) for view in shown if "metric" in view.finding.series}):
        lines = lines_of([view for view in shown if _metric(view) == metric], "metric", x="update")
        y = Axis(f"held-out {metric}", switch=True)
        charts.append(Chart(f"learning-{metric}", f"{metric.capitalize()} while learning", Axis("updates"), y, lines))
    return charts


def _loss(shown: Sequence[View]) -> Chart:
    figures = [view.finding.figures for view in shown]
    baselines = sorted({known["baseline"] for known in figures if "baseline" in known})
    shown_baselines = baselines[:MAX_BASELINES]
    # On the left, because the curves come near the baseline later.
    markers = finite_markers(Marker("y", value, "without memory", left=True) for value in shown_baselines)
    y = Axis("held-out loss", log=True, switch=True)
    lines = lines_of(shown, "loss", x="update")
    return Chart("learning-loss", "Loss while learning", Axis("updates"), y, lines, markers)


def _metric(view: View) -> str:
    return str(view.finding.labels.get("metric", "metric"))
