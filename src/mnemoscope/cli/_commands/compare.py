"""mnemoscope compare RUN RUN...: a table and the learning curves of several runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.table import Table

from mnemoscope.cli._console import number, parse, show, show_json
from mnemoscope.cli._curves import FORMATS, draw
from mnemoscope.cli._follow import Reporting
from mnemoscope.errors import MnemoscopeError
from mnemoscope.training import Run
from mnemoscope.training._metrics import Record


@dataclass(frozen=True)
class Compare:
    """Put runs side by side: a table, and their learning curves on held-out data as a figure."""

    runs: Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="RUN")]
    """The runs' folders."""
    figure: Path = Path("learning-curves.png")
    """Where the figure goes; its ending says the format: .png, .svg or .pdf."""
    reporting: tyro.conf.OmitArgPrefixes[Reporting] = field(default_factory=Reporting)


def main(arguments: list[str]) -> int:
    options = parse(Compare, arguments, "compare")
    if not options.runs:
        raise MnemoscopeError("no run was given; mnemoscope compare RUN RUN... takes the folders of runs")
    if options.figure.suffix not in FORMATS:
        raise MnemoscopeError(f"figure = {str(options.figure)!r} is not allowed; it must end in {', '.join(FORMATS)}")
    rows = [standing(Run(path)) for path in options.runs]
    draw(rows, options.figure)
    if options.reporting.json:
        show_json({"figure": str(options.figure), "runs": rows})
    elif not options.reporting.quiet:
        show(_table(rows))
        print(f"learning curves: {options.figure}")
    return 0


def standing(run: Run) -> dict[str, Any]:
    """Where a run stands, ended or not, from its own files."""
    records, summary = run.metrics(), run.summary()
    held_out = [record for record in records if record.get("split") == "valid"]
    last: Record = held_out[-1] if held_out else {}
    metric = summary.metric if summary else _metric(run)
    about = {part: run.about.get(part, {}) if isinstance(run.about, dict) else {} for part in ("task", "network")}
    return {
        "run": str(run.path),
        "task": _name(about["task"], "name"),
        "model": _name(about["network"], "model"),
        "parameters": summary.parameters if summary else None,
        "updates": max((record["update"] for record in records), default=0),
        "outcome": summary.outcome if summary else "unfinished",
        "metric": metric,
        "best": summary.best if summary else None,
        "best_update": summary.best_update if summary else None,
        "baseline": summary.baseline if summary else None,
        "last": {name: value for name, value in last.items() if name not in ("update", "split")},
        "updates_per_second": summary.updates_per_second if summary else None,
        "curve": held_out,
    }


def _metric(run: Run) -> str | None:
    """The headline of a run that has not ended, where its task is one of ours."""
    try:
        return run.task.metric
    except MnemoscopeError:
        return None


def _name(section: Any, field: str) -> str:
    found = section.get(field, section.get("own")) if isinstance(section, dict) else None
    return found if isinstance(found, str) else "?"


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table(title="runs compared")
    for heading in ("run", "task", "model", "outcome"):
        table.add_column(heading, overflow="fold")
    for heading in ("parameters", "updates", "updates/s", "held-out at the end", "best", "at update", "without memory"):
        table.add_column(heading, justify="right")
    for row in rows:
        last = "  ".join(f"{name} {number(value)}" for name, value in row["last"].items())
        best = f"{row['metric']} {number(row['best'])}" if row["metric"] else number(None)
        figures = (number(row["parameters"]), number(row["updates"]), number(row["updates_per_second"]), last or "–")
        ends = (best, number(row["best_update"]), number(row["baseline"]))
        table.add_row(*(row[name] for name in ("run", "task", "model", "outcome")), *figures, *ends)
    return table
