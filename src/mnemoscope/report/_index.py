"""A page over a folder of runs: one sortable table, and their learning curves together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mnemoscope.files import write_whole
from mnemoscope.report._chart import Axis, Chart, Line, Marker, Style, figure, markers
from mnemoscope.report._interactive import for_page
from mnemoscope.report._page import fill

COLUMNS = {
    "task": "task", "model": "model", "outcome": "outcome", "parameters": "parameters", "updates": "updates",
    "metric": "metric", "best": "best", "best_update": "at update", "baseline": "loss without memory",
    "updates_per_second": "updates/s",
}  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """What a cell says, and what it is sorted by."""

    text: str
    value: str
    number: bool


def write_index(runs: Sequence[Mapping[str, Any]], path: str | Path, title: str, links: Mapping[str, str]) -> Path:
    """Write the index of `runs`, each as `mnemoscope compare --json` shows it.

    `links` are the addresses of the runs' own pages, by `run`, relative to the index.
    """
    charts = _charts(runs)
    rows = [(str(run["run"]), links.get(str(run["run"]), ""), [_cell(run.get(key)) for key in COLUMNS]) for run in runs]
    drawn = [for_page(chart) for chart in charts]
    text = fill("index.html", drawn, curves=charts, title=title, columns=COLUMNS, rows=rows)
    path = Path(path)
    write_whole(path, text.encode())
    return path


def _cell(value: Any) -> Cell:
    if value is None:
        return Cell("–", "", True)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return Cell(f"{value:,}" if isinstance(value, int) else figure(value), repr(value), True)
    return Cell(str(value), str(value), False)


def _charts(runs: Sequence[Mapping[str, Any]]) -> list[Chart]:
    names = dict.fromkeys(name for run in runs for record in run["curve"] for name in record)
    kept = [name for name in ("loss", *sorted({run["metric"] for run in runs if run["metric"]})) if name in names]
    charts = [_chart(runs, name) for name in dict.fromkeys(kept)]
    return [chart for chart in charts if chart.marks]


def _chart(runs: Sequence[Mapping[str, Any]], name: str) -> Chart:
    lines = [line for i, run in enumerate(runs) if (line := _curve(run, name, i)) is not None]
    floors = sorted({run["baseline"] for run in runs if run["baseline"] is not None}) if name == "loss" else []
    marked = markers(*(Marker("y", floor, "without memory") for floor in floors[:3]))
    axis = Axis(f"held-out {name}", log=name == "loss", switch=True)
    return Chart(f"curves-{name}", f"{name.capitalize()} while learning", Axis("updates"), axis, tuple(lines), marked)


def _curve(run: Mapping[str, Any], name: str, place: int) -> Line | None:
    points = [(record["update"], record[name]) for record in run["curve"] if record.get(name) is not None]
    if not points:
        return None
    x, y = np.array(points, dtype=float).T
    return Line(Path(str(run["run"])).name, x, y, style=Style(place, place // 7))
