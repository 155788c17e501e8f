"""mnemoscope theory: the papers' statements, and how they fare against numbers."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

import tyro
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from mnemoscope.cli._console import number, parse, show, show_json, terminal
from mnemoscope.cli._follow import Reporting
from mnemoscope.errors import MnemoscopeError
from mnemoscope.theory import Row, Statement, load


@dataclass(frozen=True)
class Theory:
    """List the papers' statements; with names, or --all, check them: bound, measured value and their ratio."""

    names: tyro.conf.Positional[tuple[str, ...]] = ()
    """Statements to check; a beginning stands for all that start with it."""
    all: bool = False
    """Check every statement."""
    reporting: tyro.conf.OmitArgPrefixes[Reporting] = field(default_factory=Reporting)


def main(arguments: list[str]) -> int:
    options, statements = parse(Theory, arguments, "theory"), _statements()
    if not options.names and not options.all:
        _list(statements, options.reporting)
        return 0
    chosen = list(statements.values()) if options.all else _chosen(statements, options.names)
    results = _check(chosen, options.reporting)
    _report(results, options.reporting)
    settled = [row for statement, rows in results if statement.status != "open" for row in rows]
    return 0 if all(row.holds for row in settled) else 1


def _statements() -> dict[str, Statement]:
    try:
        return load()
    except ImportError as error:
        raise MnemoscopeError(f"theory needs {error.name}: pip install 'mnemoscope[theory]'") from error


def _chosen(statements: dict[str, Statement], names: tuple[str, ...]) -> list[Statement]:
    found: dict[str, Statement] = {}
    for name in names:
        matches = {key: s for key, s in statements.items() if key == name} or {
            key: s for key, s in statements.items() if key.startswith(name)
        }
        if not matches:
            raise MnemoscopeError(f"{name!r} is not a statement; mnemoscope theory lists those there are")
        found.update(matches)
    return list(found.values())


def _check(statements: list[Statement], reporting: Reporting) -> list[tuple[Statement, list[Row]]]:
    console = terminal()
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    hidden = reporting.quiet or not console.is_terminal
    results = []
    with Progress(*columns, console=console, disable=hidden, transient=True) as progress:
        row = progress.add_task("", total=len(statements))
        for statement in statements:
            progress.update(row, description=statement.name)
            results.append((statement, list(statement.check())))
            progress.advance(row)
    return results


def _list(statements: dict[str, Statement], reporting: Reporting) -> None:
    if reporting.json:
        show_json([_about(statement) for statement in statements.values()])
    elif not reporting.quiet:
        table = Table("name", "paper", "where", "status", "claim", title=f"{len(statements)} statements")
        for s in statements.values():
            table.add_row(s.name, s.paper, s.where, s.status, s.claim)
        show(table)


def _report(results: list[tuple[Statement, list[Row]]], reporting: Reporting) -> None:
    if reporting.json:
        show_json([{**_about(statement), "rows": [_plain(row) for row in rows]} for statement, rows in results])
    elif not reporting.quiet:
        for statement, rows in results:
            show(_table(statement, rows))


def _table(statement: Statement, rows: list[Row]) -> Table:
    title = f"{statement.name} ({statement.paper}, {statement.where}; {statement.status})\n{statement.claim}"
    table = Table(title=f"{title}\nCorrected: {statement.correction}" if statement.correction else title)
    table.add_column("case")
    for heading in ("measured", "", "bound", "measured / bound"):
        table.add_column(heading, justify="right")
    table.add_column("")
    for row in rows:
        verdict = "holds" if row.holds else "does not hold"
        table.add_row(row.case, number(row.measured), row.relation, number(row.bound), number(row.ratio), verdict)
    return table


def _about(statement: Statement) -> dict[str, Any]:
    names = ("name", "paper", "where", "status", "claim", "correction")
    return {name: getattr(statement, name) for name in names}


def _plain(row: Row) -> dict[str, Any]:
    found = {**asdict(row), "ratio": row.ratio, "holds": row.holds}
    finite = {name: not isinstance(value, float) or math.isfinite(value) for name, value in found.items()}
    return {name: value if finite[name] else None for name, value in found.items()}
