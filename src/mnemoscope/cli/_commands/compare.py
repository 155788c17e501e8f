"""mnemoscope compare RUN RUN...: a table and the learning curves of several runs."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated

import tyro
from rich.table import Table

from mnemoscope.cli._console import OutputOptions, format_value, parse, say, show, show_json
from mnemoscope.cli._names import unused_name
from mnemoscope.cli._run_row import run_row
from mnemoscope.errors import MnemoscopeError
from mnemoscope.report import RunRow, learning_charts, write_panels
from mnemoscope.training import Run

FORMATS = (".png", ".svg", ".pdf")


@dataclass(frozen=True)
class Compare:
    """Compare runs: a table, and their learning curves on held-out data as a figure."""

    runs: Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="RUN")]
    """The runs' folders."""
    figure: Path = Path("learning-curves.png")
    """Where the figure goes; its suffix is the format: .png, .svg or .pdf."""
    output: tyro.conf.OmitArgPrefixes[OutputOptions] = field(default_factory=OutputOptions)


def main(arguments: list[str]) -> int:
    options = parse(Compare, arguments, "compare")
    if not options.runs:
        raise MnemoscopeError("no run was given; mnemoscope compare RUN RUN... takes the folders of runs")
    if options.figure.suffix not in FORMATS:
        raise MnemoscopeError(f"figure = {str(options.figure)!r} is not allowed; it must end in {', '.join(FORMATS)}")
    rows = [run_row(Run(path)) for path in options.runs]
    _draw_curves(rows, options.figure)
    if options.output.json:
        show_json({"figure": str(options.figure), "runs": [asdict(row) for row in rows]})
    elif not options.output.quiet:
        show(_table(rows))
        say(f"learning curves: {options.figure}")
    return 0


def _draw_curves(rows: list[RunRow], path: Path) -> None:
    named: dict[str, RunRow] = {}
    for row in rows:
        named[unused_name(f"{row.model} ({Path(row.run).name})", named)] = row
    charts = learning_charts(named)
    if not charts:
        raise MnemoscopeError("there is nothing to draw yet: none of these runs has been evaluated on held-out data")
    write_panels(charts, path)


def _table(rows: list[RunRow]) -> Table:
    table = Table(title="runs compared")
    for heading in ("run", "task", "model", "outcome"):
        table.add_column(heading, overflow="fold")
    for heading in ("parameters", "updates", "updates/s", "held-out at the end", "best", "at update", "without memory"):
        table.add_column(heading, justify="right")
    for row in rows:
        last = "  ".join(f"{name} {format_value(value)}" for name, value in row.last.items())
        table.add_row(
            row.run,
            row.task,
            row.model,
            row.outcome,
            format_value(row.parameters),
            format_value(row.updates),
            format_value(row.updates_per_second),
            last or "–",
            f"{row.metric} {format_value(row.best)}" if row.metric else "–",
            format_value(row.best_update),
            format_value(row.baseline),
        )
    return table
