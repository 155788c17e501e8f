"""What is kept of a study: study.json, charts.json, cells.csv and cost.json in its folder.

study.json is the same, byte for byte, however the jobs were run: what depends on the machine and the day, seconds and
date, is in cost.json.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mnemoscope.errors import MnemoscopeError
from mnemoscope.files import make_folder, read_bytes, read_json, to_json, write_atomic
from mnemoscope.report import Chart, Panels, charts_from_json, charts_to_json
from mnemoscope.schema import added_later, from_dict, to_dict
from mnemoscope.studies._cells import Cells, CellValue, Note, UnknownCell, medians
from mnemoscope.studies._study import SCALES, PublishedCell, Scale, Setting, Study
from mnemoscope.studies._verdict import (
    OPEN,
    ClaimVerdict,
    StudyVerdict,
    Verdict,
    failures_beside,
    judge_claims,
    judge_study,
)
from mnemoscope.sweeps import Job

FORMAT = 1
FILE = "study.json"
CHARTS = "charts.json"
COST = "cost.json"
TABLE = "cells.csv"


@dataclass(frozen=True)
class SeedResult:
    """What one seed gave: the names of its jobs, our cells as (row, column, value), and what went wrong."""

    seed: int
    jobs: tuple[str, ...]
    cells: tuple[tuple[str, str, CellValue], ...]
    missing: tuple[str, ...] = ()
    """Jobs that have not ended."""
    diverged: tuple[str, ...] = ()
    """Training runs that were given up, and why."""
    failed: tuple[str, ...] = ()
    """Jobs that failed for another reason, and which."""

    @property
    def is_complete(self) -> bool:
        """True if no job of the seed is missing or has failed."""
        return not self.missing and not self.failed

    @property
    def ended(self) -> frozenset[str]:
        """The jobs that have a result; a run that diverged is one, too."""
        return frozenset(self.jobs) - frozenset(self.missing) - {job_of(message) for message in self.failed}

    @property
    def values(self) -> dict[tuple[str, str], CellValue]:
        """Our cells by (row, column)."""
        return {(row, column): value for row, column, value in self.cells}

    def now_of(self, jobs: Iterable[Job]) -> SeedResult | None:
        """Return it as a result of the jobs that its study has now: those that came since are missing.

        None if it is of others, too: it cannot be told which of its cells these gave.
        """
        names = tuple(job.name for job in jobs)
        if not set(self.jobs) <= set(names):
            return None
        failed = {job_of(message) for message in self.failed}
        missing = tuple(name for name in names if name not in self.ended and name not in failed)
        return replace(self, jobs=names, missing=missing)


def kept_cells(cells: Mapping[tuple[Any, Any], Any]) -> tuple[tuple[str, str, CellValue], ...]:
    """Return a study's cells as a `SeedResult` has them."""
    return tuple((str(row), str(column), _cell(value)) for (row, column), value in cells.items())


def _cell(value: Any) -> CellValue:
    """A cell for JSON, which has neither NaN, that is None, nor infinity, that is a word."""
    if value is None or isinstance(value, Note):
        return value
    number = float(value)
    if math.isinf(number):
        return Note("infinite", "infinity") if number > 0 else Note("minus infinity")
    return None if math.isnan(number) else number


def job_of(message: str) -> str:
    """Return the job that a message of a `SeedResult` is about."""
    return message.partition(":")[0]


@dataclass(frozen=True)
class ScaleResult:
    """The results of one size of a study, over its seeds."""

    seeds: tuple[SeedResult, ...] = ()
    claims: tuple[ClaimVerdict, ...] = ()
    verdict: Verdict = OPEN
    corrected: Verdict | None = None
    """The verdict with the corrected claims in place of the printed ones, if some are corrected."""
    versions: dict[str, str] = field(default_factory=dict)
    chart_seeds: int = added_later(0)
    """In older records over how many seeds their charts were drawn; now each line in charts.json has its seeds."""

    @property
    def is_complete(self) -> bool:
        """True if there are seeds, and all of them are complete."""
        return bool(self.seeds) and all(one.is_complete for one in self.seeds)

    @property
    def both_verdicts(self) -> StudyVerdict:
        """The verdicts on the paper's claims as printed and as corrected."""
        return StudyVerdict(self.verdict, self.corrected)

    @property
    def beside(self) -> str:
        """How many claims fail that do not count for the verdict, in words; empty if none does."""
        count = failures_beside(self.claims)
        return (
            f"{count} claim{'s' if count > 1 else ''} beside the headline fail{'' if count > 1 else 's'}"
            if count
            else ""
        )

    def cells(self, expected: Sequence[tuple[str, str]] = ()) -> dict[int, Cells]:
        """Return our numbers by seed."""
        return {one.seed: Cells(one.values, expected) for one in self.seeds}


@dataclass(frozen=True)
class StudyRecord:
    """The content of study.json: what the study is, and the results of its two sizes, each by itself."""

    id: str
    paper: str
    where: str
    shows: str
    words: str = ""
    errata: tuple[str, ...] = ()
    would_change: str = ""
    surprise: str = ""
    ours: bool = False
    settings: tuple[Setting, ...] = ()
    quick_settings: tuple[Setting, ...] = ()
    rows: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    row_title: str = ""
    column_title: str = ""
    published: tuple[tuple[str, str, float | str | None], ...] = ()
    published_note: str = ""
    percent: bool = False
    again: dict[str, str] = field(default_factory=dict)
    within: float = 0.0
    quick: ScaleResult | None = None
    full: ScaleResult | None = None
    format: int = FORMAT

    def result(self, scale: Scale) -> ScaleResult | None:
        """Return the result at one size; None if it has not been run."""
        return self.quick if scale == "quick" else self.full

    @property
    def published_cells(self) -> dict[tuple[str, str], PublishedCell]:
        """The published values by row and column."""
        return {(row, column): value for row, column, value in self.published}


@dataclass(frozen=True)
class Cost:
    """The content of cost.json for one size: what the results took, on what, and when they were made."""

    seconds: float
    jobs: int
    machine: str
    date: str


def describe(study: Study, quick: ScaleResult | None = None, full: ScaleResult | None = None) -> StudyRecord:
    """Return the record of a study with the results of its two sizes, if there are any."""
    published = study.published
    return StudyRecord(
        id=study.id,
        paper=study.paper,
        where=study.where,
        shows=study.shows,
        words=study.words,
        errata=study.errata,
        would_change=study.would_change,
        surprise=_surprise(study, quick, full),
        ours=study.ours,
        settings=study.settings,
        quick_settings=study.quick,
        rows=published.rows,
        columns=published.columns,
        row_title=published.row_title,
        column_title=published.column_title,
        published=tuple((row, column, value) for (row, column), value in published.values.items()),
        published_note=published.note,
        percent=published.percent,
        again=dict(published.again),
        within=published.within,
        quick=quick,
        full=full,
    )


def _surprise(study: Study, *results: ScaleResult | None) -> str:
    """The study's surprise, if what it speaks of was run."""
    if isinstance(study.surprise, str):
        return study.surprise if any(results) else ""
    expected = list(study.published.values)
    try:
        return study.surprise(*(medians(list(result.cells(expected).values()) if result else []) for result in results))
    except UnknownCell:
        return ""


def judged(study: Study, scale: Scale, result: ScaleResult) -> ScaleResult:
    """Return the results with the verdicts that follow from their cells and the study's claims."""
    expected = list(study.published.values)
    claims = judge_claims(study.claims, scale, result.cells(expected))
    is_corrected = any(claim.form == "corrected" and claim.headline for claim in claims)
    corrected = judge_study(claims, "corrected") if is_corrected else None
    verdict = Verdict("drawn") if study.drawing and result.is_complete else judge_study(claims)
    return replace(result, claims=claims, verdict=verdict, corrected=corrected)


def read_record(folder: Path) -> StudyRecord | None:
    """Return the record in a study's folder, or None without one; a damaged file raises a one-line error."""
    path = folder / FILE
    with _or_move_away(path):
        if not path.exists():
            return None
        content = read_json(path)
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise MnemoscopeError(f"{path} is not the file of a study of format {FORMAT}")
        record = from_dict(StudyRecord, content, str(path))
        if record.id != f"{folder.parent.name}/{folder.name}":
            raise MnemoscopeError(f"{path} is of another study, {record.id}")
    return record


def read_costs(folder: Path) -> dict[str, Cost]:
    """Return what the results of each size took, by its name."""
    path = folder / COST
    with _or_move_away(path):
        return {size: from_dict(Cost, cost, f"{path}: {size}") for size, cost in _by_size(path).items()}


def read_charts(folder: Path) -> dict[str, list[Chart | Panels]]:
    """Return the charts of each size, by its name."""
    path = folder / CHARTS
    with _or_move_away(path):
        return {size: charts_from_json(charts, f"{path}: {size}") for size, charts in _by_size(path).items()}


def _by_size(path: Path) -> dict[str, Any]:
    """The content of a file that has something for each size of a study; nothing if there is none."""
    content = read_json(path) if path.exists() else {}
    if not isinstance(content, dict) or set(content) - set(SCALES):
        raise MnemoscopeError(f"{path} is not a file of a study")
    return content


@contextlib.contextmanager
def _or_move_away(path: Path) -> Iterator[None]:
    """Have errors about a file say what to do."""
    try:
        yield
    except MnemoscopeError as error:
        raise MnemoscopeError(f"{error}; move {path} away, and it is written again") from error


def write_record(
    folder: Path, record: StudyRecord, costs: Mapping[str, Cost], charts: Mapping[str, Sequence[Chart | Panels]]
) -> None:
    """Write the files of a study's folder, study.json last."""
    make_folder(folder)
    write_charts(folder, charts)
    _write(folder / COST, _readable({scale: to_dict(costs[scale]) for scale in SCALES if scale in costs}))
    write_results(folder, record)


def write_charts(folder: Path, charts: Mapping[str, Sequence[Chart | Panels]]) -> None:
    """Write the charts of each size, by its name."""
    known = [scale for scale in SCALES if scale in charts]
    _write(folder / CHARTS, to_json({scale: charts_to_json(charts[scale]) for scale in known}))


def write_results(folder: Path, record: StudyRecord) -> None:
    """Write the cells and the record of a study."""
    _write(folder / TABLE, _table(record).encode())
    _write(folder / FILE, _readable(to_dict(record)))


def _write(path: Path, data: bytes) -> None:
    """Write a file, unless it is the same already."""
    if not path.exists() or read_bytes(path) != data:
        write_atomic(path, data)


def _readable(value: Any) -> bytes:
    """JSON in which every list or object of plain values has a line of its own: versions can be compared."""
    return (_lines(value, "") + "\n").encode()


def _lines(value: Any, indent: str) -> str:
    items = list(value.values()) if isinstance(value, dict) else value
    if not isinstance(value, dict | list) or not any(isinstance(item, dict | list) for item in items):
        return json.dumps(value, allow_nan=False)
    inner = indent + " "
    parts = [_lines(item, inner) for item in items]
    if isinstance(value, dict):
        parts = [f"{json.dumps(name)}: {part}" for name, part in zip(value, parts, strict=True)]
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    return opening + "\n" + ",\n".join(inner + part for part in parts) + f"\n{indent}{closing}"


def _table(record: StudyRecord) -> str:
    """The cells as CSV: one line for each cell, size and seed."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["scale", "seed", "row", "column", "published", "ours", "note"])
    published = record.published_cells
    for scale in SCALES:
        result = record.result(scale)
        for one in result.seeds if result else ():
            for row, column, value in one.cells:
                number, words = (value.number, value.words) if isinstance(value, Note) else (value, "")
                writer.writerow([scale, one.seed, row, column, published.get((row, column)), number, words])
    return text.getvalue()
