"""A study as data: what was published, with which settings, what is claimed of it, and how it is reproduced."""

from __future__ import annotations

import difflib
import pkgutil
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Literal

from mnemoscope.errors import MnemoscopeError
from mnemoscope.report import Chart, Panels
from mnemoscope.studies._cells import Cells, CellValue, Names, UnknownCell
from mnemoscope.studies._jobs import Done
from mnemoscope.sweeps import Job

Scale = Literal["quick", "full"]
SCALES: tuple[Scale, ...] = ("quick", "full")
Source = Literal["paper", "code", "ours"]

PAPERS = {
    "kerg": "Kerg et al. 2020",
    "miller": "Miller & Hardt 2018",
    "ribeiro": "Ribeiro et al. 2019",
    "nabli": "Nabli 2019",
    "levine": "Levine et al. 2018",
}
"""The package of each paper, which begins the ids of its studies."""


@dataclass(frozen=True)
class Setting:
    """One setting of an experiment, and who gave it: the paper, the authors' code, or we, where neither says."""

    name: str
    value: str
    source: Source
    note: str = ""


def settings(**values: tuple[Any, Source] | tuple[Any, Source, str]) -> tuple[Setting, ...]:
    """Return settings: ``settings(batch_size=(10, "code"), lr=(2e-4, "paper", "Table 6"))``."""
    return tuple(Setting(name, str(value), *rest) for name, (value, *rest) in values.items())


PublishedCell = float | str | None
"""A number, a word such as "OOM", or None if the paper does not give it."""


@dataclass(frozen=True)
class Published:
    """The paper's numbers by row and column. A figure without numbers has none, but says which cells ours fill."""

    rows: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    values: Mapping[tuple[str, str], PublishedCell] = field(default_factory=dict)
    row_title: str = ""
    column_title: str = ""
    note: str = "one run, no spread"
    percent: bool = False
    """Whether numbers are shares, shown as percent."""
    again: Mapping[str, str] = field(default_factory=dict)
    """Columns in which another is tried again, by other settings: of both, the published cell counts once."""
    within: float = 0.0
    """How far ours may be from the published number to agree with it: relative to it, or absolute for shares."""


def table(
    rows: Sequence[Any],
    columns: Sequence[Any],
    values: Sequence[Sequence[PublishedCell]] | None = None,
    *,
    without: Collection[tuple[Any, Any]] = (),
    **words: Any,
) -> Published:
    """Return a published table; `values` has one sequence per row. Without values the numbers are not known.

    `without` are the cells that there cannot be: they are left blank.
    """
    row_names, column_names = tuple(map(str, rows)), tuple(map(str, columns))
    grid = values if values is not None else [[None] * len(column_names)] * len(row_names)
    absent = {(str(row), str(column)) for row, column in without}
    cells = {
        (row, column): value
        for row, line in zip(row_names, grid, strict=True)
        for column, value in zip(column_names, line, strict=True)
        if (row, column) not in absent
    }
    return Published(row_names, column_names, cells, **words)


Form = Literal["", "printed", "corrected", "ours"]


@dataclass(frozen=True)
class Claim:
    """A sentence that our numbers bear out or not: bounds on cells, or a function of all of them.

    ``Claim("RelRNN at 99 % at every T", column="RelRNN", at_least=0.99, scale="full")``;
    ``Claim("longer windows come nearer", check=lambda cells: cells["5", "RNN"] > cells["15", "RNN"])``.
    """

    text: str
    row: Names = "*"
    column: Names = "*"
    at_least: float | None = None
    at_most: float | None = None
    check: Callable[[Any], bool | None] | None = None
    """Instead of bounds: of the `Cells` of a seed or of the medians, or of a list of all seeds'. None is open."""
    scale: Literal["quick", "full", "both"] = "both"
    """Which size of the study it is about; it is open at the other."""
    over: Literal["each", "median", "all"] = "each"
    """Whether it is asked of each seed, of the median over seeds, or of all seeds together."""
    form: Form = ""
    """printed: as the paper has it, where that is wrong; corrected: as it is right; ours: not in the paper."""
    headline: bool = True
    """Whether the study's verdict depends on it."""

    def holds(self, cells: Any) -> bool | None:
        """Return whether it holds; None if that is not known."""
        try:
            if self.check is not None:
                answer = self.check(cells)
                return None if answer is None else bool(answer)
            values = [cells.get(key) for key in cells.keys_of(self.row, self.column)]
        except UnknownCell:
            return None
        broken = [value for value in values if value is not None and not self._in_bounds(value)]
        if broken:
            return False
        return None if not values or None in values else True

    def _in_bounds(self, value: float) -> bool:
        return (self.at_least is None or value >= self.at_least) and (self.at_most is None or value <= self.at_most)


Jobs = Mapping[Any, Job]
CellValues = Mapping[tuple[Any, Any], CellValue]


@dataclass(frozen=True)
class Study:
    """One table, figure or claim of a paper: data, and three functions that make it again."""

    id: str
    """The paper's package, and a name: "kerg/table5"."""
    where: str
    """In the paper: "Table 5"."""
    shows: str
    """What it is, in a few words."""
    jobs: Callable[[Scale, int], Jobs]
    """The jobs of a seed, by keys of your choice; each made by `train` or `measure`."""
    cells: Callable[[Scale, Done], CellValues]
    """Our numbers by (row, column), from what the jobs of one seed have found, by the same keys."""
    charts: Callable[[Scale, Sequence[Done]], Sequence[Chart | Panels]] = lambda scale, done: ()
    """Our figures, from all seeds whose jobs have ended."""
    claims: tuple[Claim, ...] = ()
    published: Published = Published()
    settings: tuple[Setting, ...] = ()
    """Of the full size."""
    quick: tuple[Setting, ...] = ()
    """What is different in the quick version."""
    words: str = ""
    """What the paper says of its table or figure, which we may not print."""
    errata: tuple[str, ...] = ()
    """What is wrong in print, or in the authors' code."""
    would_change: str = ""
    """What would change the verdict."""
    surprise: str | Callable[[Cells, Cells], str] = ""
    """Where the paper does not reproduce, or is not what it says: at most two sentences, for docs/studies.md.

    What speaks of a run is a function of the medians of the quick and of the full size: it is said only if all cells
    are known that it asks for.
    """
    data: tuple[str, ...] = ()
    """Data sets that it needs, as "wikitext-2" or "mnist"."""
    modules: tuple[str, ...] = ()
    """Optional packages that it needs, by the name that is imported, as "flint"."""
    has_seeds: bool = True
    """False if chance plays no part: one seed is all there is."""
    ours: bool = False
    """Whether the study is ours, and not in the paper."""
    drawing: bool = False
    """Whether it is a drawing, of which nothing can be reproduced; what is claimed of it does not count."""
    derived_cells: Callable[[Cells], CellValues] = lambda cells: {}
    """Cells that follow from the others of a seed, as a mean over rows: made from all that are recorded."""
    cells_of_charts: Callable[[Scale, Sequence[Chart | Panels], int], CellValues] = lambda scale, charts, seed: {}
    """Cells of a seed that follow from its curves in the charts, for what compares runs that may come in several calls.

    Numbers in charts are rounded: what `cells` could give itself stays.
    """
    derived_charts: Callable[[Mapping[int, Cells]], Sequence[Chart | Panels]] = lambda cells: ()
    """Figures that follow from the cells, by seed: made from all that are recorded."""

    @property
    def paper(self) -> str:
        """The paper by its full name."""
        return PAPERS[self.id.split("/")[0]]

    def seeds(self, wanted: int | Sequence[int]) -> Sequence[int]:
        """Return the seeds to run, of so many from 0 or of those that were asked for."""
        if not self.has_seeds:
            return (0,)
        return range(wanted) if isinstance(wanted, int) else sorted(set(wanted))


STUDIES: dict[str, Study] = {}
"""The studies that were imported so far; `load` imports all."""


def study(found: Study) -> Study:
    """Register a study: ``study(Study("miller/fig1a", ...))`` at the end of its file."""
    if not re.fullmatch(rf"({'|'.join(PAPERS)})/[a-z0-9-]+", found.id):
        raise ValueError(f"{found.id} is not the id of a study: a paper's package, a slash, a name")
    if found.id in STUDIES:
        raise ValueError(f"two studies are called {found.id}")
    STUDIES[found.id] = found
    return found


def load() -> dict[str, Study]:
    """Import all studies and return them by id: paper by paper, figure 2 before figure 10."""
    package = import_module("mnemoscope.studies")
    for module in pkgutil.walk_packages(package.__path__, prefix="mnemoscope.studies."):
        import_module(module.name)
    return {found.id: found for found in sorted(STUDIES.values(), key=_order)}


def choose(prefixes: Iterable[str]) -> list[Study]:
    """Return the studies with one of the ids, or else whose id begins with it; each once. No prefix chooses none."""
    known = load()
    chosen: dict[str, Study] = {}
    for prefix in prefixes:
        matches = [prefix] if prefix in known else [name for name in known if name.startswith(prefix)]
        if not matches:
            close = difflib.get_close_matches(prefix, [*known, *PAPERS], 3, 0.5)
            hint = f"; did you mean {' or '.join(close)}?" if close else ""
            raise MnemoscopeError(f"{prefix!r} is not a study; mnemoscope reproduce lists them{hint}")
        chosen |= {name: known[name] for name in matches}
    return list(chosen.values())


def _order(found: Study) -> tuple[int, list[tuple[str, int]]]:
    paper, _, name = found.id.partition("/")
    parts = re.findall(r"([^0-9]+)([0-9]*)", name)
    return list(PAPERS).index(paper), [(word, int(number or 0)) for word, number in parts]
