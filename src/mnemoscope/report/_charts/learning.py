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
    tasks: dict[float, set[str]] = {}  # by the loss that a model without memory reaches on them
    for view in shown:
        if "baseline" in view.finding.figures:
            task = str(view.finding.labels.get("task", ""))
            tasks.setdefault(view.finding.figures["baseline"], set()).add(task)
    # On the left, because the curves come near the baseline later.
    markers = finite_markers(
        Marker("y", value, _without_memory(sorted(tasks[value] - {""}), len(tasks)), left=True)
        for value in sorted(tasks)[:MAX_BASELINES]
    )
    y = Axis("held-out loss", log=True, switch=True)
    lines = lines_of(shown, "loss", x="update")
    return Chart("learning-loss", "Loss while learning", Axis("updates"), y, lines, markers)


def _without_memory(tasks: Sequence[str], levels: int) -> str:
    """The label of one of several levels, which says whose it is; of one level alone, all runs' own."""
    return f"without memory: {'; '.join(tasks)}" if levels > 1 and tasks else "without memory"


def _metric(view: View) -> str:
    return str(view.finding.labels.get("metric", "metric"))
