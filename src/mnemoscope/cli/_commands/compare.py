"""mnemoscope compare RUN RUN...: a table and the learning curves of several runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro
from rich.table import Table

from mnemoscope.cli._console import OutputOptions, format_value, parse, say, show, show_json
from mnemoscope.cli._names import unused_file, unused_name
from mnemoscope.cli._run_row import run_row
from mnemoscope.errors import MnemoscopeError
from mnemoscope.files import make_folder
from mnemoscope.report import Axis, Chart, Line, RunRow, Style, learning_charts, write_panels
from mnemoscope.training import Distances, Run, distances

FORMATS = (".png", ".svg", ".pdf")


@dataclass(frozen=True)
class Compare:
    """Compare runs: a table, and their learning curves on held-out data as a figure."""

    runs: Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="RUN...")]
    """The runs' folders."""
    figure: Path | None = None
    """Where the figure goes; its suffix is the format: .png, .svg or .pdf. By default learning-curves.png, or the
    first of learning-curves-2.png and so on that is not there yet."""
    distance: tuple[str, ...] = ()
    """Parameters whose distance from the first run's is compared too: how their names begin, as layer.weight_hh, or
    all for the whole network. The runs must have kept their weights: train with --snapshot-every."""
    output: tyro.conf.OmitArgPrefixes[OutputOptions] = field(default_factory=OutputOptions)


def main(arguments: list[str]) -> int:
    options = parse(Compare, arguments, "compare")
    if not options.runs:
        raise MnemoscopeError("no run was given; mnemoscope compare RUN RUN... takes the folders of runs")
    figure = options.figure or unused_file("learning-curves.png")
    if figure.suffix not in FORMATS:
        raise MnemoscopeError(f"figure = {str(figure)!r} is not allowed; it must end in {', '.join(FORMATS)}")
    runs = [Run(path) for path in options.runs]
    rows = [run_row(run) for run in runs]
    found = _distances(runs, options.distance) if options.distance else {}
    _draw_curves(rows, found, figure)
    if options.output.json:
        content: dict[str, Any] = {"figure": str(figure), "runs": [asdict(row) for row in rows]}
        if found:
            content["distances"] = {name: asdict(distance) for name, distance in found.items()}
        show_json(content)
    elif not options.output.quiet:
        show(_table(rows))
        if found:
            show(_distance_table(found, runs[0]))
        say(f"learning curves: {figure}")
    return 0


def _distances(runs: list[Run], parameters: tuple[str, ...]) -> dict[str, Distances]:
    """The distances of every further run from the first, by the run's name."""
    if len(runs) < 2:
        raise MnemoscopeError("--distance compares the weights of runs with those of the first; give at least two runs")
    first, *others = runs
    found: dict[str, Distances] = {}
    for run in others:
        found[unused_name(run.path.resolve().name, found)] = distances(first, run, parameters)
    return found


def _distance_chart(found: Mapping[str, Distances]) -> Chart:
    lines: list[Line] = []
    for name, distance in found.items():
        for parameter, values in distance.spectral.items():
            label = name if len(distance.spectral) == 1 else f"{name}: {parameter}"
            style = Style(len(lines), len(lines))
            lines.append(Line(label, np.array(distance.updates, dtype=float), np.array(values), style=style))
    y = Axis("spectral norm of the difference", log=True, switch=True)
    return Chart("distance", "Distance from the first run", Axis("updates"), y, tuple(lines))


def _distance_table(found: Mapping[str, Distances], first: Run) -> Table:
    table = Table(title=f"distances from {first.path.name} after the last update that both have kept")
    for heading in ("run", "parameter"):
        table.add_column(heading, overflow="fold")
    for heading in ("update", "spectral", "Frobenius", "norm of the first"):
        table.add_column(heading, justify="right")
    for name, distance in found.items():
        for parameter, spectral in distance.spectral.items():
            values = (spectral[-1], distance.frobenius[parameter][-1], distance.norms[parameter][-1])
            table.add_row(name, parameter, str(distance.updates[-1]), *map(format_value, values))
    return table


def _draw_curves(rows: list[RunRow], found: Mapping[str, Distances], path: Path) -> None:
    named: dict[str, RunRow] = {}
    for row in rows:
        named[unused_name(f"{row.model} ({Path(row.run).name})", named)] = row
    charts = learning_charts(named)
    if found:
        charts = [*charts, _distance_chart(found)]
    if not charts:
        raise MnemoscopeError("there is nothing to draw yet: none of these runs has been evaluated on held-out data")
    make_folder(path.parent, follow=True)
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
            row.task_and_length,
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
