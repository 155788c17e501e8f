"""mnemoscope report FOLDER...: write the page again from findings, of studies, or an index over a folder of runs."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import tyro

from mnemoscope.cli._console import OutputOptions, parse, say, show_json, terminal
from mnemoscope.cli._examination_files import IN_RUN, PAGE, Format, examination_folder, load_examinations, write_report
from mnemoscope.cli._names import folder_option, unused_name
from mnemoscope.cli._run_row import run_row
from mnemoscope.errors import MnemoscopeError
from mnemoscope.files import LOCK_SECONDS, locked, make_folder
from mnemoscope.finding import Examination
from mnemoscope.report import RunRow, write_index
from mnemoscope.studies import is_studies, write_pages
from mnemoscope.training import Run

INDEX = "index.html"


@dataclass(frozen=True)
class Report:
    """Write the page again from the findings in folders, without measuring; for a folder of runs, an index of them."""

    folders: Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="FOLDER...")]
    """Folders that `mnemoscope examine` wrote, runs that were examined, one folder of runs, or one of studies."""
    out: Path | None = None
    """The folder that the page goes to; by default the first one."""
    figures: tuple[Format, ...] = ()
    """Write the charts as files too: svg, png or both."""
    output: tyro.conf.OmitArgPrefixes[OutputOptions] = field(default_factory=OutputOptions)


def main(arguments: list[str]) -> int:
    options = parse(Report, arguments, "report")
    if not options.folders:
        raise MnemoscopeError("no folder was given; mnemoscope report FOLDER takes findings, or a folder of runs")
    folder_option(options.out)
    if len(options.folders) == 1 and is_studies(options.folders[0]):
        _print_page(write_pages(options.folders[0]), options.output)
        return 0
    examinations: dict[str, Examination] = {}
    for folder in options.folders:
        for name, examination in load_examinations(folder).items():
            examinations[unused_name(name, examinations)] = examination

    first = options.folders[0]
    rows = _rows(first) if len(options.folders) == 1 else {}
    if rows:
        page = _write_index(first, rows, options.out)
    elif examinations:
        out = options.out or _examination_folder(first)
        with locked(out, wait=LOCK_SECONDS):
            page = write_report(examinations, out, options.figures)
    else:
        if (first / "config.json").is_file():
            raise MnemoscopeError(
                f"{first} is a run that was not examined; first: mnemoscope examine {shlex.quote(str(first))}"
            )
        raise MnemoscopeError(f"{first} holds neither findings nor runs; mnemoscope examine makes findings")

    _print_page(page, options.output)
    return 0


def _print_page(page: Path, output: OutputOptions) -> None:
    if output.json:
        show_json({"report": str(page)})
    elif not output.quiet:
        say(page)


def _examination_folder(folder: Path) -> Path:
    in_run = examination_folder(folder)
    return in_run if in_run.is_dir() else folder


def _rows(folder: Path) -> dict[Path, RunRow]:
    """How the runs in a folder went, by their folders; damaged ones are reported and skipped."""
    rows = {}
    for path in sorted(folder.glob("*/config.json")):
        try:
            rows[path.parent] = replace(run_row(Run(path.parent)), run=path.parent.name)
        except MnemoscopeError as error:
            terminal().print(f"mnemoscope: skipped: {error}", highlight=False, soft_wrap=True)
    return rows


def _write_index(folder: Path, rows: dict[Path, RunRow], out: Path | None) -> Path:
    target = make_folder(out or folder, follow=True)
    links = {}
    for path in rows:
        page = path / IN_RUN / PAGE
        if page.is_file():
            links[path.name] = quote(os.fsencode(Path(os.path.relpath(page, target)).as_posix()))
    with locked(target, wait=LOCK_SECONDS):
        return write_index(list(rows.values()), target / INDEX, f"Runs in {folder.resolve().name}", links)
