"""mnemoscope sweep table FOLDER: how the runs of a sweep went, in the terminal, as CSV, as JSON and as a page."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.table import Table

from mnemoscope.cli._console import OutputOptions, format_value, parse, say, show, show_json
from mnemoscope.files import make_folder, to_json, write_atomic
from mnemoscope.report import SweepGroup, short_name, write_sweep
from mnemoscope.sweeps import Group, Sweep, SweepTable, sweep_table


@dataclass(frozen=True)
class SweepTableOptions:
    """Sum up a sweep: mean, median and IQM of the best held-out metric, how many runs solved the task, and how fast."""

    folder: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="FOLDER")]
    """The sweep's folder."""
    by: tuple[str, ...] = ()
    """Fields whose values make a row each, as network.model; by default all that vary, seeds excepted."""
    out: Path | None = None
    """Where table.csv, table.json and table.html go; by default the sweep's folder."""
    output: tyro.conf.OmitArgPrefixes[OutputOptions] = field(default_factory=OutputOptions)


def main(arguments: list[str]) -> int:
    options = parse(SweepTableOptions, arguments, "sweep table")
    by = [name.replace("-", "_") for name in options.by]
    table = sweep_table(Sweep(options.folder), by or None)

    # Files: comma-separated values, JSON and the page.
    out = make_folder(options.out or options.folder, follow=True)
    write_atomic(out / "table.csv", table.to_csv().encode())
    write_atomic(out / "table.json", to_json(table.to_dict(), indent=1))
    page = write_sweep(_groups(table), out / "table.html", f"Sweep {options.folder.resolve().name}", table.metric)

    if options.output.json:
        show_json({**table.to_dict(), "page": str(page)})
    elif not options.output.quiet:
        show(_table(table))
        say(f"{out / 'table.csv'}, {out / 'table.json'}, {page}")
    return 0


def _groups(table: SweepTable) -> list[SweepGroup]:
    groups = []
    for group in table.groups:
        figures = {name: value for name, value in group.row().items() if name not in group.settings}
        groups.append(SweepGroup(group.settings, figures, group.curves))
    return groups


def _table(table: SweepTable) -> Table:
    shown = Table(title=f"best held-out {table.metric}, {'more' if table.higher_is_better else 'less'} is better")
    for name in table.by:
        shown.add_column(short_name(name), overflow="fold")
    counts = ("ended", "diverged", "failed", "solved")
    for heading in (*counts, "mean", "median", "IQM [95 %]", "updates to solved", "seconds to solved"):
        shown.add_column(heading, justify="right")
    for group in table.groups:
        shown.add_row(*(str(value) for value in group.settings.values()), *_figures(group))
    return shown


def _figures(group: Group) -> list[Any]:
    iqm = format_value(group.iqm)
    if group.iqm_low is not None:
        iqm += f" [{format_value(group.iqm_low)}, {format_value(group.iqm_high)}]"
    return [
        f"{group.ended} of {group.runs}",
        str(group.diverged),
        str(group.failed),
        f"{group.solved} of {group.runs}",
        format_value(group.mean),
        format_value(group.median),
        iqm,
        format_value(group.updates_to_solved),
        format_value(group.seconds_to_solved),
    ]
