"""A page over a sweep: heat maps over two of its axes, learning curves with bands over runs, one sortable table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mnemoscope.files import write_atomic
from mnemoscope.report._chart import Axis, Chart, HeatMap, Line, Style
from mnemoscope.report._index import table_cell
from mnemoscope.report._interactive import plotly_chart
from mnemoscope.report._page import fill_template
from mnemoscope.report._palette import LIGHT

MAX_LINES = 30  # groups whose curves are drawn


@dataclass(frozen=True)
class SweepGroup:
    """Runs of a sweep with the same settings, as the page sees them."""

    settings: Mapping[str, Any]
    """Values by field, as "network.buffer"."""
    figures: Mapping[str, Any]
    """The other columns of the table."""
    curves: Sequence[Sequence[tuple[int, float]]] = ()
    """Of each run: updates, and the held-out metric after them."""

    @property
    def name(self) -> str:
        """The settings in words."""
        return ", ".join(f"{short_name(field)} {value}" for field, value in self.settings.items()) or "all runs"


def short_name(field: str) -> str:
    """Return a field without its section: "buffer" for "network.buffer"."""
    return field.rpartition(".")[2]


def write_sweep(groups: Sequence[SweepGroup], path: str | Path, title: str, metric: str) -> Path:
    """Write the page over the groups of a sweep. `metric` is what `iqm` and the curves are of."""
    charts = sweep_charts(groups, metric)
    columns = list(groups[0].figures)
    text = fill_template(
        "sweep.html",
        [plotly_chart(chart) for chart in charts],
        drawn=charts,
        title=title,
        runs=sum(int(group.figures.get("runs", 0)) for group in groups),
        columns={name: name.replace("_", " ") for name in columns},
        rows=[(group.name, "", [table_cell(group.figures[name]) for name in columns]) for group in groups],
    )
    path = Path(path)
    write_atomic(path, text.encode())
    return path


def sweep_charts(groups: Sequence[SweepGroup], metric: str) -> list[Chart]:
    """Return heat maps over the first two fields that vary, if there are two, and the learning curves."""
    fields = [field for field in groups[0].settings if len({repr(group.settings[field]) for group in groups}) > 1]
    charts = []
    if len(fields) >= 2:
        y, x = fields[:2]
        charts.append(_heat_map(groups, x, y, "iqm", f"Best held-out {metric} (IQM)"))
        if any(group.figures.get("solved") for group in groups):
            charts.append(_heat_map(groups, x, y, "solved", "Share of runs that solved the task", "runs"))
    drawn = [group for group in groups if group.curves][:MAX_LINES]
    if drawn:
        lines = tuple(_band(group, number) for number, group in enumerate(drawn))
        y_axis = Axis(f"held-out {metric}", switch=True)
        charts.append(Chart("sweep-curves", f"{metric.capitalize()} while learning", Axis("updates"), y_axis, lines))
    return charts


def _heat_map(groups: Sequence[SweepGroup], x: str, y: str, figure: str, title: str, of: str | None = None) -> Chart:
    """A figure, or its share of another, over two fields; the mean where other fields vary too."""
    settings = [group.settings for group in groups]
    columns = list({repr(one[x]): one[x] for one in settings}.values())  # they may be lists, which no set takes
    rows = list({repr(one[y]): one[y] for one in settings}.values())
    cells: dict[tuple[int, int], list[float]] = {}
    for group in groups:
        value = group.figures.get(figure)
        if value is not None:
            share = float(value) / float(group.figures[of]) if of else float(value)
            cells.setdefault((rows.index(group.settings[y]), columns.index(group.settings[x])), []).append(share)
    z = np.full((len(rows), len(columns)), np.nan)
    for place, values in cells.items():
        z[place] = np.mean(values)
    mark = HeatMap(
        title,
        np.arange(len(columns)),
        np.arange(len(rows)),
        z,
        x_labels=tuple(map(str, columns)),
        y_labels=tuple(map(str, rows)),
        color_range=(0.0, 1.0) if of else None,
    )
    return Chart(f"sweep-{figure}", title, Axis(short_name(x)), Axis(short_name(y)), (mark,))


def _band(group: SweepGroup, number: int) -> Line:
    """The mean over a group's runs, and a band from the lowest to the highest. An ended run keeps its last value."""
    updates = np.array(sorted({update for curve in group.curves for update, _ in curve}))
    values = np.full((len(group.curves), len(updates)), np.nan)
    for row, curve in zip(values, group.curves, strict=True):
        known = np.array([update for update, _ in curve])
        latest = np.searchsorted(known, updates, side="right") - 1
        begun = latest >= 0
        row[begun] = np.array([value for _, value in curve])[latest[begun]]
    counted = np.isfinite(values).any(0)
    values, updates = values[:, counted], updates[counted]
    mean, low, high = np.nanmean(values, 0), np.nanmin(values, 0), np.nanmax(values, 0)
    style = Style(number % len(LIGHT), number // len(LIGHT))
    return Line(group.name, updates.astype(float), mean, low, high, style)
