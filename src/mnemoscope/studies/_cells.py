"""Our numbers by row and column, and what stands in a cell whose run failed."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

Names = str | int | float | Sequence[str | int | float]
"""One row or column, several, or "*" for all of them."""


@dataclass(frozen=True)
class Note:
    """A cell with words: instead of a number where a run failed, else beside it.

    ``Note("diverged", 1 / 8)`` is a run that diverged and counts as a guess among eight;
    ``Note("not within 300,000 frames", "infinity")`` one that never got there;
    ``Note("our settings", 0.998, failed=False)`` a number with a remark.
    """

    words: str
    number: float | Literal["infinity"] | None = None
    """What it counts as in claims and medians; with None every claim about the cell is broken."""
    failed: bool = True
    """Whether the words stand instead of the number."""

    @property
    def value(self) -> float:
        """The number; NaN without one."""
        if self.number is None:
            return math.nan
        return math.inf if self.number == "infinity" else self.number


CellValue = float | Note | None
"""A number, a note, or None for what is not known: it was not run."""


class UnknownCell(KeyError):
    """A claim asked for a cell that is not known: it is neither fulfilled nor broken."""


class Cells(Mapping[tuple[str, str], float]):
    """Our numbers by row and column: of one seed, or the median over seeds.

    ``cells["100", "RelRNN"]`` is a number. One that is not known ends the claim's check: the claim is open. A run that
    failed is known: it has the number of its `Note`, which may be infinite, or NaN, with which no comparison holds.
    """

    def __init__(self, values: Mapping[tuple[Any, Any], CellValue], expected: Collection[tuple[str, str]] = ()) -> None:
        named = {(str(row), str(column)): value for (row, column), value in values.items()}
        self._notes = {key: value for key, value in named.items() if isinstance(value, Note)}
        numbers = {key: value for key, value in named.items() if value is not None and not isinstance(value, Note)}
        self._values = {key: float(value) for key, value in numbers.items() if not math.isnan(value)}
        self._values |= {key: note.value for key, note in self._notes.items()}
        self._all = list(dict.fromkeys([*expected, *named]))

    def __getitem__(self, key: tuple[Any, Any]) -> float:
        row, column = key
        try:
            return self._values[str(row), str(column)]
        except KeyError:
            raise UnknownCell(f"{row}, {column}") from None

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def value(self, key: tuple[Any, Any]) -> float | Note:
        """Return a cell as it is, a number or a note; one that is not known ends the check."""
        number = self[key]
        return self._notes.get((str(key[0]), str(key[1])), number)

    def select(self, row: Names = "*", column: Names = "*") -> list[float]:
        """Return the numbers of some rows and columns, those of the published table included that we do not know yet.

        The latter end the check, as with ``cells[...]``.
        """
        keys = self.keys_of(row, column)
        if not keys:
            raise UnknownCell(f"{row}, {column}")
        return [self[key] for key in keys]

    def known(self, row: Names = "*", column: Names = "*") -> list[float]:
        """Return the numbers of some rows and columns as far as they are known; none at all ends the check."""
        found = [self[key] for key in self.keys_of(row, column) if key in self]
        if not found:
            raise UnknownCell(f"{row}, {column}")
        return found

    def keys_of(self, row: Names = "*", column: Names = "*") -> list[tuple[str, str]]:
        """Return the cells of some rows and columns, known or not."""
        return [key for key in self._all if _matches(key[0], row) and _matches(key[1], column)]

    @property
    def expected(self) -> list[tuple[str, str]]:
        """All cells, known or not."""
        return list(self._all)


def _matches(name: str, wanted: Names) -> bool:
    if isinstance(wanted, str):
        return wanted in ("*", name)
    names = wanted if isinstance(wanted, Sequence) else (wanted,)
    return name in map(str, names)


def medians(cells: Sequence[Cells]) -> Cells:
    """Return the median over seeds of each cell that every seed has; failed runs count, what was not run has none."""
    expected = list(dict.fromkeys(key for one in cells for key in one.expected))
    shared = [key for key in expected if all(key in one for one in cells)]
    return Cells({key: median_cell([one.value(key) for one in cells]) for key in shared}, expected)


def median_cell(values: Sequence[float | Note]) -> float | Note:
    """Return the median of a cell over seeds; it says what the cell in the middle says."""
    numbers = [value.value if isinstance(value, Note) else value for value in values]
    if any(map(math.isnan, numbers)):  # a failed run that counts as NaN leaves no median
        return next(value for value in values if isinstance(value, Note) and value.number is None)
    middle = median(numbers)
    notes = (value for value in values if isinstance(value, Note) and value.value == middle)
    return next(notes, middle)
