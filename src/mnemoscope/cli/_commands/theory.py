"""mnemoscope theory: the papers' statements, checked against numbers."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any

import tyro
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from mnemoscope.cli._console import OutputOptions, format_value, parse, show, show_json, terminal
from mnemoscope.errors import MnemoscopeError, did_you_mean
from mnemoscope.theory import Row, Statement, load


@dataclass(frozen=True)
class Theory:
    """List the papers' statements; with names, or --all, check them: bound, measured value and their ratio."""

    names: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="[STATEMENT...]")] = ()
    """Statements to check; the start of a name stands for all that begin with it."""
    all: bool = False
    """Check every statement."""
    output: tyro.conf.OmitArgPrefixes[OutputOptions] = field(default_factory=OutputOptions)


def main(arguments: list[str]) -> int:
    options = parse(Theory, arguments, "theory")
    statements = _statements()
    if not options.names and not options.all:
        _list(statements, options.output)
        return 0
    chosen = list(statements.values()) if options.all else _chosen(statements, options.names)
    results = _check(chosen, options.output)
    _show_results(results, options.output)
    settled = [row for statement, rows in results if statement.status != "open" for row in rows]
    return 0 if all(row.holds for row in settled) else 1


def _statements() -> dict[str, Statement]:
    try:
        return load()
    except ImportError as error:
        raise MnemoscopeError(f"theory needs {error.name}: pip install 'mnemoscope[theory]'") from error


def _chosen(statements: dict[str, Statement], names: tuple[str, ...]) -> list[Statement]:
    """The statements with one of the names, or else with a name that begins with it; each once."""
    chosen: dict[str, Statement] = {}
    for name in names:
        matches = [name] if name in statements else [key for key in statements if key.startswith(name)]
        if not matches:
            hint = did_you_mean(name, statements) or "; mnemoscope theory lists them"
            raise MnemoscopeError(f"{name!r} is not a statement{hint}")
        chosen |= {key: statements[key] for key in matches}
    return list(chosen.values())


def _check(statements: list[Statement], output: OutputOptions) -> list[tuple[Statement, list[Row]]]:
    console = terminal()
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    hidden = output.quiet or not console.is_terminal
    results = []
    with Progress(*columns, console=console, disable=hidden, transient=True) as progress:
        bar = progress.add_task("", total=len(statements))
        for statement in statements:
            progress.update(bar, description=statement.name)
            results.append((statement, list(statement.check())))
            progress.advance(bar)
    return results


def _list(statements: dict[str, Statement], output: OutputOptions) -> None:
    if output.json:
        show_json([_about(statement) for statement in statements.values()])
    elif not output.quiet:
        table = Table("name", "paper", "where", "status", "claim", title=f"{len(statements)} statements")
        for statement in statements.values():
            table.add_row(statement.name, statement.paper, statement.where, statement.status, statement.claim)
        show(table)


def _show_results(results: list[tuple[Statement, list[Row]]], output: OutputOptions) -> None:
    if output.json:
        show_json([{**_about(statement), "rows": [_plain(row) for row in rows]} for statement, rows in results])
    elif not output.quiet:
        for statement, rows in results:
            show(_table(statement, rows))


def _table(statement: Statement, rows: list[Row]) -> Table:
    title = f"{statement.name} ({statement.paper}, {statement.where}; {statement.status})\n{statement.claim}"
    if statement.correction:
        title += f"\nCorrected: {statement.correction}"
    if statement.remark:
        title += f"\nRemark: {statement.remark}"
    table = Table(title=title)
    table.add_column("case")
    for heading in ("measured", "", "bound", "measured / bound"):
        table.add_column(heading, justify="right")
    table.add_column("")
    for row in rows:
        verdict = "holds" if row.holds else "does not hold"
        figures = (format_value(row.measured), row.relation, format_value(row.bound), format_value(row.ratio))
        table.add_row(row.case, *figures, verdict)
    return table


def _about(statement: Statement) -> dict[str, Any]:
    names = ("name", "paper", "where", "status", "claim", "correction", "remark")
    return {name: getattr(statement, name) for name in names}


def _plain(row: Row) -> dict[str, Any]:
    """A row as JSON has it: null for infinity and NaN."""
    plain = {**asdict(row), "ratio": row.ratio, "holds": row.holds}
    for name, value in plain.items():
        if isinstance(value, float) and not math.isfinite(value):
            plain[name] = None
    return plain
