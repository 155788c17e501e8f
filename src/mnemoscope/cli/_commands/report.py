"""mnemoscope report FOLDER...: draw the page again from findings, or an index over a folder of runs."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

import tyro

from mnemoscope.cli._commands.compare import standing
from mnemoscope.cli._console import parse, show_json, terminal
from mnemoscope.cli._examination_files import PAGE, RUNS_OWN, Format, draw, free, load
from mnemoscope.cli._follow import Reporting
from mnemoscope.errors import MnemoscopeError
from mnemoscope.finding import Examination
from mnemoscope.training import Run

INDEX = "index.html"


@dataclass(frozen=True)
class Report:
    """Draw the page again from the findings in folders, without measuring; of a folder of runs, an index over them."""

    folders: tyro.conf.Positional[tuple[Path, ...]]
    """Folders that `mnemoscope examine` wrote, runs that were examined, or one folder of runs."""
    out: Path | None = None
    """Where the page goes; by default the first folder."""
    figures: tuple[Format, ...] = ()
    """Write the charts as files too: svg, png or both."""
    reporting: tyro.conf.OmitArgPrefixes[Reporting] = field(default_factory=Reporting)


def main(arguments: list[str]) -> int:
    options = parse(Report, arguments, "report")
    if not options.folders:
        raise MnemoscopeError("no folder was given; mnemoscope report FOLDER takes findings, or a folder of runs")
    found: dict[str, Examination] = {}
    for folder in options.folders:
        for name, examination in load(folder).items():
            found[free(name, found)] = examination
    first, runs = options.folders[0], _runs(options.folders[0])
    if len(options.folders) == 1 and runs:
        page = _index(first, runs, options.out)
    elif found:
        page = draw(found, _place(options.out or _own(first)), options.figures)
    else:
        raise MnemoscopeError(f"{first} holds neither findings nor runs; mnemoscope examine makes findings")
    if options.reporting.json:
        show_json({"report": str(page)})
    elif not options.reporting.quiet:
        print(page)
    return 0


def _own(folder: Path) -> Path:
    return folder / RUNS_OWN if (folder / RUNS_OWN).is_dir() else folder


def _place(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MnemoscopeError(f"cannot write to {folder}: {error.strerror}") from error
    return folder


def _runs(folder: Path) -> list[Run]:
    """The runs in a folder; damaged ones are told and passed over."""
    runs = []
    for path in sorted(folder.glob("*/config.json")):
        try:
            runs.append(Run(path.parent))
        except MnemoscopeError as error:
            terminal().print(f"mnemoscope: passed over: {error}", highlight=False, soft_wrap=True)
    return runs


def _index(folder: Path, runs: list[Run], out: Path | None) -> Path:
    from mnemoscope.report import write_index

    rows = [{**standing(run), "run": run.path.name} for run in runs]
    target = _place(out or folder)
    pages = {run.path.name: run.path / RUNS_OWN / PAGE for run in runs}
    links = {name: Path(os.path.relpath(page, target)).as_posix() for name, page in pages.items() if page.is_file()}
    return write_index(rows, target / INDEX, f"Runs in {folder.resolve().name}", links)
