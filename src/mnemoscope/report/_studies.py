"""Pages of studies: an index with a filter, and a page a study with the published and our values side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from mnemoscope.files import write_atomic
from mnemoscope.report._chart import Chart, Line, Panels
from mnemoscope.report._index import Cell
from mnemoscope.report._interactive import plotly_chart
from mnemoscope.report._page import fill_template, within_limit
from mnemoscope.report._panels import charts_in, with_key

SIZES = ("quick", "full")
WORDS = ("reproduced", "partly", "contradicted", "open", "drawn")
Agreement = Literal["agrees", "differs", "unknown", ""]


@dataclass(frozen=True)
class TwoValues:
    """A cell with two values: what was published, and ours with its spread and what is said of it; all in words."""

    published: str
    ours: str
    spread: str = ""
    agreement: Agreement = ""
    remark: str = ""


@dataclass(frozen=True)
class VerdictWords:
    """A verdict in words, and the word that gives it its color."""

    word: str
    text: str


@dataclass(frozen=True)
class ClaimLine:
    """A claim and its verdict; `form` says whether it is as printed, as corrected, or ours."""

    text: str
    form: str
    headline: bool
    verdict: VerdictWords


@dataclass(frozen=True)
class StudyResult:
    """What one size of a study gave, as its page shows it."""

    scale: str
    verdict: VerdictWords
    corrected: VerdictWords | None
    claims: Sequence[ClaimLine]
    columns: Sequence[str]
    rows: Sequence[tuple[str, Sequence[TwoValues]]]
    seeds: str
    facts: Sequence[tuple[str, str]]
    """Cost, machine, date and versions, by name."""
    problems: Sequence[str] = ()
    """Runs that diverged, jobs that failed."""
    not_run: Sequence[str] = ()
    """Jobs that have not ended, by seed."""
    command: str = ""
    """What runs them."""
    charts: Sequence[Chart | Panels] = ()

    @property
    def has_table(self) -> bool:
        """True if there are rows of cells."""
        return bool(self.rows)

    @property
    def has_bands(self) -> bool:
        """True if a line is made from several seeds."""
        marks = [mark for chart in charts_in(self.charts) for mark in chart.marks]
        return any(isinstance(mark, Line) and mark.low is not None for mark in marks)


@dataclass(frozen=True)
class StudyPage:
    """All that the page of a study shows."""

    id: str
    paper: str
    where: str
    shows: str
    ours: bool
    words: str
    errata: Sequence[str]
    would_change: str
    surprise: str
    settings: Sequence[tuple[str, str, str, str]]
    """Name, value, source and note."""
    quick_settings: Sequence[tuple[str, str, str, str]]
    corner: str
    """The title of the first column."""
    columns: str
    """What the other columns are."""
    published_note: str
    has_published: bool
    """Whether any value was published."""
    results: Sequence[StudyResult] = ()
    not_run: Mapping[str, str] = field(default_factory=dict)
    """By size that has no result: the command that runs it."""
    files: Sequence[str] = ()
    """Files beside the page: study.json, cells.csv, figures."""


@dataclass(frozen=True)
class IndexRow:
    """A study in the index."""

    id: str
    link: str
    paper: str
    where: str
    shows: str
    verdicts: Mapping[str, Sequence[VerdictWords]]
    """By size: as printed and, where that changes it, as corrected; a remark has no word of its own."""
    compared: str
    """How the published numbers compare with ours: "38 of 40 cells agree"."""
    cost: Cell
    date: str

    @property
    def words(self) -> str:
        """The verdicts' words, for the filter."""
        words = [found.word for verdicts in self.verdicts.values() for found in verdicts if found.word]
        return " ".join(dict.fromkeys(words)) or "open"


def write_study_page(page: StudyPage, path: Path) -> Path:
    """Write the page of a study. Charts keep as much detail as the page can hold."""
    write_atomic(path, within_limit(lambda detail: _study(page, detail)).encode())
    return path


def _study(page: StudyPage, detail: float) -> str:
    drawn = {result.scale: [with_key(chart, result.scale) for chart in result.charts] for result in page.results}
    charts = [plotly_chart(chart, detail) for shown in drawn.values() for chart in charts_in(shown)]
    return fill_template("study.html", charts, page=page, drawn=drawn)


def write_studies_index(rows: Sequence[IndexRow], path: Path, title: str) -> Path:
    """Write the index of studies, with a filter by paper, verdict and words."""
    papers = list(dict.fromkeys(row.paper for row in rows))
    counts = {scale: Counter(found[0].word for row in rows if (found := row.verdicts[scale])) for scale in SIZES}
    page = fill_template("studies.html", [], rows=rows, papers=papers, counts=counts, words=WORDS, title=title)
    write_atomic(path, page.encode())
    return path
