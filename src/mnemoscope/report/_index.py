"""A page over a folder of runs: one sortable table, and their learning curves together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mnemoscope.files import write_atomic
from mnemoscope.report._chart import format_number
from mnemoscope.report._interactive import plotly_chart
from mnemoscope.report._page import fill_template
from mnemoscope.report._runs import RunRow, learning_charts

COLUMNS = {
    "task_and_length": "task",
    "model": "model",
    "outcome": "outcome",
    "parameters": "parameters",
    "updates": "updates",
    "metric": "metric",
    "best": "best",
    "best_update": "at update",
    "baseline": "loss without memory",
    "updates_per_second": "updates/s",
}
"""Fields of `RunRow` and the headings of their columns."""


@dataclass(frozen=True)
class Cell:
    """What a cell of the table says, and what it is sorted by."""

    text: str
    sort_key: str
    is_number: bool


def write_index(rows: Sequence[RunRow], path: str | Path, title: str, links: Mapping[str, str]) -> Path:
    """Write the page over `rows`. `links` are the quoted addresses of the runs' own pages, by `run`."""
    charts = learning_charts({row.run: row for row in rows})
    text = fill_template(
        "index.html",
        [plotly_chart(chart) for chart in charts],
        curves=charts,
        title=title,
        columns=COLUMNS,
        rows=[(row.run, links.get(row.run, ""), [table_cell(getattr(row, name)) for name in COLUMNS]) for row in rows],
    )
    path = Path(path)
    write_atomic(path, text.encode())
    return path


def table_cell(value: Any) -> Cell:
    """Return a value as a cell of a sortable table; a dash for None."""
    if value is None:
        return Cell("–", "", True)
    if isinstance(value, int):
        return Cell(f"{value:,}", repr(value), True)
    if isinstance(value, float):
        return Cell(format_number(value), repr(value), True)
    return Cell(str(value), str(value), False)
