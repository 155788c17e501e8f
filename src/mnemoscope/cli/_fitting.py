"""Tables in a narrow terminal: neither a number nor a name is cut."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from mnemoscope.files import visible

_BESIDE = 3  # characters that a column takes beside its text: a space on both sides, and a line


def fitting(table: Table, console: Console) -> list[Table]:
    """Return `table`, or the same on its side, so that all words fit the width of `console`.

    On its side a row is a column, and as many as fit stand side by side; the others follow in further tables.
    """
    if _fit(table, console):
        return [table]
    names = [str(column.header) for column in table.columns]
    rows = list(zip(*(map(str, column.cells) for column in table.columns), strict=True))
    for count in range(len(rows), 0, -1):
        groups = [rows[first : first + count] for first in range(0, len(rows), count)]
        sides = [_on_its_side(names, group, table.title if i == 0 else None) for i, group in enumerate(groups)]
        fits = [_fit(side, console) for side in sides]
        if all(fits) or count == 1:
            return sides
    return [table]


def _on_its_side(names: Sequence[str], rows: Sequence[Sequence[str]], title: object) -> Table:
    side = Table(names[0], *(row[0] for row in rows), title=None if title is None else str(title))
    for i, name in enumerate(names[1:], start=1):
        side.add_row(name, *(row[i] for row in rows))
    return side


def _fit(table: Table, console: Console) -> bool:
    """Give the columns of `table` widths that fit the console, none less than its longest word, if there are such."""
    for column in table.columns:
        column.overflow = "fold"
    available = (table.width or console.width) - 1 - _BESIDE * len(table.columns)
    sizes = [_size([column.header, *column.cells], console) for column in table.columns]
    if sum(size.minimum for size in sizes) > available:
        return False
    most = max(size.maximum for size in sizes)
    widths = next(
        widths
        for cap in range(most, -1, -1)
        if sum(widths := [min(size.maximum, max(size.minimum, cap)) for size in sizes]) <= available
    )
    for column, width in zip(table.columns, widths, strict=True):
        column.min_width = column.max_width = width
    return True


def _size(cells: Sequence[object], console: Console) -> Measurement:
    """The width of the longest word of cells, and of the longest line."""
    sizes = [Measurement.get(console, console.options, Text(visible(str(cell)))) for cell in cells]
    return Measurement(max(size.minimum for size in sizes), max(size.maximum for size in sizes))
