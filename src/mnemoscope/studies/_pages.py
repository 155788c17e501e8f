"""The pages of a folder of studies, drawn from its files alone."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

from mnemoscope.files import LOCK_SECONDS, locked, read_bytes, remove, write_atomic
from mnemoscope.report import (
    Agreement,
    Cell,
    Chart,
    ClaimLine,
    IndexRow,
    Panels,
    StudyPage,
    StudyResult,
    TwoValues,
    VerdictWords,
    figures_hash,
    with_seed_counts,
    write_numbered_figures,
    write_studies_index,
    write_study_page,
)
from mnemoscope.studies._cells import CellValue, Note, median_cell, medians
from mnemoscope.studies._cost import words_for
from mnemoscope.studies._merge import with_derived_charts
from mnemoscope.studies._not_run import command, count_not_run, not_run
from mnemoscope.studies._record import (
    FILE,
    TABLE,
    Cost,
    ScaleResult,
    StudyRecord,
    describe,
    judged,
    read_charts,
    read_costs,
    read_record,
    write_charts,
)
from mnemoscope.studies._study import SCALES, PublishedCell, Scale, Setting, Study, load
from mnemoscope.studies._verdict import Verdict

PAGE = "index.html"
DRAWN = ".figures"  # the hash of what the figures beside it were drawn from
GROUPED = 1e7  # smaller numbers are written out, as 1,001,472
FORMATS = ("svg", "png")
FIGURE = re.compile(rf"figure-\d+\.({'|'.join(FORMATS)})")


def write_pages(out: str | Path, only: Collection[str] | None = None) -> Path:
    """Draw the index, a page and the figures of each study in a folder again, without running anything.

    With `only` some ids, the pages of the others stay as they are: in a clone they are not there yet, and drawing all
    of them takes a minute.
    """
    folder = Path(out)
    studies = load()
    rows = []
    with locked(folder, wait=LOCK_SECONDS, again=True):
        for study_id in dict.fromkeys([*studies, *_recorded(folder)]):
            study = studies.get(study_id)
            record = current_record(study, folder / study_id)
            if record is None:
                continue
            costs = read_costs(folder / study_id)
            if (record.quick or record.full) and (only is None or study_id in only):
                charts = _current_charts(study, record, folder / study_id)
                _draw_figures(folder / study_id, charts.get("full") or charts.get("quick") or [])
                page = study_page(study, record, costs, charts, folder / study_id)
                write_study_page(page, folder / study_id / PAGE)
            rows.append(_index_row(record, costs, has_page=(folder / study_id / PAGE).exists()))
        return write_studies_index(rows, folder / PAGE, "Studies: the papers reproduced")


def current_record(study: Study | None, folder: Path) -> StudyRecord | None:
    """Return what is recorded of a study, with the words and claims that it has now and the verdicts that follow.

    A study that there is no longer is as it was recorded; None if there is neither.
    """
    record = read_record(folder)
    if study is None:
        return record
    results = [record.result(scale) if record else None for scale in SCALES]
    return describe(
        study, *(result and judged(study, scale, result) for scale, result in zip(SCALES, results, strict=True))
    )


def _current_charts(study: Study | None, record: StudyRecord, folder: Path) -> dict[str, list[Chart | Panels]]:
    """Return the charts of a study's folder; those that follow from its cells are made again from what is recorded."""
    charts = read_charts(folder)
    for scale in SCALES if study else ():
        result = record.result(scale)
        made = with_derived_charts(study, result.seeds, charts.get(scale, [])) if study and result else []
        if made:
            charts[scale] = made
    if charts:
        write_charts(folder, charts)
    return charts


def _recorded(folder: Path) -> Iterable[str]:
    """The ids of the studies that a folder has files of."""
    return sorted(path.parent.relative_to(folder).as_posix() for path in folder.glob(f"*/*/{FILE}"))


def _draw_figures(folder: Path, charts: Sequence[Chart | Panels]) -> None:
    """Write figure-N.svg and .png, unless they were drawn here from the same charts by the same code.

    A hash beside them says so. Times would not: in a clone all files have that of the clone.
    """
    wanted = {f"figure-{number}.{suffix}" for number in range(1, len(charts) + 1) for suffix in FORMATS}
    for name in set(_figures(folder)) - wanted:
        (folder / name).unlink()
    shown = [with_seed_counts(chart) for chart in charts]
    drawn = folder / DRAWN
    if not shown:
        remove(drawn)
        return
    wanted_hash = figures_hash(shown).encode()
    if drawn.exists() and read_bytes(drawn) == wanted_hash and all((folder / name).exists() for name in wanted):
        return
    write_numbered_figures(shown, folder, FORMATS)
    write_atomic(drawn, wanted_hash)


def _figures(folder: Path) -> list[str]:
    """The figures in a folder that `_draw_figures` wrote, by the names that it gives them."""
    return sorted(path.name for path in folder.glob("figure-*") if FIGURE.fullmatch(path.name))


def study_page(
    study: Study | None,
    record: StudyRecord,
    costs: dict[str, Cost],
    charts: dict[str, list[Chart | Panels]],
    folder: Path,
) -> StudyPage:
    """Return what the page of a study shows; the full size first."""
    results = []
    for scale in reversed(SCALES):
        result = record.result(scale)
        if result is not None:
            results.append(_result(study, record, scale, result, costs.get(scale), charts.get(scale, [])))
    files = [name for name in (FILE, TABLE) if (folder / name).exists()]
    return StudyPage(
        id=record.id,
        paper=record.paper,
        where=record.where,
        shows=record.shows,
        ours=record.ours,
        words=record.words,
        errata=record.errata,
        would_change=record.would_change,
        surprise=record.surprise,
        settings=_settings(record.settings),
        quick_settings=_settings(record.quick_settings),
        corner=record.row_title,
        columns=record.column_title,
        published_note=record.published_note,
        has_published=any(value is not None for value in record.published_cells.values()),
        results=results,
        not_run={scale: command(record.id, scale) for scale in SCALES if study and not record.result(scale)},
        files=[*files, *_figures(folder)],
    )


def _settings(settings: Iterable[Setting]) -> list[tuple[str, str, str, str]]:
    return [(setting.name, setting.value, setting.source, setting.note) for setting in settings]


def _words(verdict: Verdict) -> VerdictWords:
    return VerdictWords(verdict.word, str(verdict))


def _result(
    study: Study | None,
    record: StudyRecord,
    scale: Scale,
    result: ScaleResult,
    cost: Cost | None,
    charts: Sequence[Chart | Panels],
) -> StudyResult:
    columns, rows = two_values(record, result)
    missing = not_run(study, scale, result) if study else []
    problems = [f"seed {one.seed}: {text}" for one in result.seeds for text in (*one.diverged, *one.failed)]
    facts = [(name, version) for name, version in result.versions.items()]
    if cost is not None:
        seconds = f"{words_for(cost.seconds)} in {cost.jobs} jobs"
        facts = [("cost", seconds), ("machine", cost.machine), ("date", cost.date), *facts]
    numbers = ", ".join(str(one.seed) for one in result.seeds)
    return StudyResult(
        scale=scale,
        verdict=_words(result.verdict),
        corrected=None if result.corrected is None else _words(result.corrected),
        claims=[ClaimLine(claim.text, claim.form, claim.headline, _words(claim.verdict)) for claim in result.claims],
        columns=columns,
        rows=rows,
        seeds=f"seed{'s' if len(result.seeds) > 1 else ''} {numbers}",
        facts=facts,
        problems=problems,
        not_run=[str(one) for one in missing],
        command=command(record.id, scale, missing=bool(missing)),
        charts=[with_seed_counts(chart) for chart in charts],
    )


def two_values(record: StudyRecord, result: ScaleResult) -> tuple[list[str], list[tuple[str, list[TwoValues]]]]:
    """Return the columns and rows of the table with the published and our value in each cell."""
    cells = result.cells()
    ours = [key for one in result.seeds for key in ((row, column) for row, column, _ in one.cells)]
    rows = list(dict.fromkeys([*record.rows, *(row for row, _ in ours)]))
    columns = list(dict.fromkeys([*record.columns, *(column for _, column in ours)]))
    published = record.published_cells
    expected = {*published, *ours}
    table = []
    for row in rows:
        line = []
        for column in columns:
            if (row, column) not in expected:
                line.append(TwoValues("", ""))
                continue
            values = [one.value((row, column)) for one in cells.values() if (row, column) in one]
            line.append(_two_values(record, published.get((row, column)), values))
        table.append((row, line))
    return columns, table


def _two_values(record: StudyRecord, published: PublishedCell, values: Sequence[float | Note]) -> TwoValues:
    ours = median_cell(values) if values else None
    spread = ""
    if len(values) > 1:
        found = sorted(values, key=_number)
        lowest, highest = (_short_words(end, record.percent) for end in (found[0], found[-1]))
        spread = f"[{lowest}, {highest}]" if lowest != highest else ""
    words = number_words(published, record.percent)
    agreement = _agreement(published, ours, record)
    if isinstance(ours, Note) and not ours.failed:
        return TwoValues(words, number_words(ours.value, record.percent), spread, agreement, ours.words)
    return TwoValues(words, cell_words(ours, record.percent), spread, agreement)


def _short_words(value: float | Note, percent: bool) -> str:
    """A cell of one seed: of a failed run what happened, else the number alone."""
    return value.words if isinstance(value, Note) and value.failed else number_words(_number(value), percent)


def _number(value: float | Note) -> float:
    return value.value if isinstance(value, Note) else value


def _agreement(published: PublishedCell, ours: CellValue, record: StudyRecord) -> Agreement:
    """Whether ours is as near to the published number as it should be; nothing where no nearness is asked.

    Of shares `within` is the largest difference, of other numbers the largest part of the published one.
    """
    if ours is None:
        return "unknown"
    if isinstance(published, str):  # a word, such as OOM: whether ours means the same is not known
        return "" if isinstance(ours, Note) and ours.failed else "differs"
    ours = _number(ours)
    if published is None or not record.within:
        return ""
    allowed = record.within * (1 if record.percent else abs(published))
    return "agrees" if abs(ours - published) <= allowed else "differs"


def number_words(value: PublishedCell, percent: bool = False) -> str:
    """Return a value as tables show it: four digits, a share as percent, a dash if it is not known."""
    if value is None:
        return "–"
    if isinstance(value, str):
        return value
    if percent:
        return f"{100 * value:.4g} %"
    return f"{value:,.0f}" if 1000 <= abs(value) < GROUPED else f"{value:.4g}"


def cell_words(value: CellValue, percent: bool = False) -> str:
    """Return one of our cells as tables show it: a number, and what is said of it; of a failed run what happened."""
    if not isinstance(value, Note):
        return number_words(value, percent)
    return value.words if value.failed else f"{number_words(value.value, percent)} ({value.words})"


def comparison(record: StudyRecord) -> str:
    """Return how our numbers compare with the published ones, of the full size if it was run.

    How many of them agree, by any of the settings that were tried; or a single number beside ours. Nothing where no
    nearness is asked: ours may then be another quantity, as bytes that are kept are beside a GPU's peak.
    """
    if not record.within:
        return ""
    for scale in reversed(SCALES):
        result = record.result(scale)
        known = medians(list(result.cells().values()) if result else [])
        pairs = {
            key: (published, known.value(key))
            for key, published in record.published_cells.items()
            if isinstance(published, float | int) and key in known
        }
        if not pairs:
            continue
        size = "" if scale == "full" else " (quick)"
        if len(pairs) > 1:
            agrees: dict[tuple[str, str], bool] = {}
            for (row, column), two in pairs.items():
                cell = (row, record.again.get(column, column))
                agrees[cell] = agrees.get(cell, False) or _agreement(*two, record) == "agrees"
            return f"{sum(agrees.values())} of {len(agrees)} cells agree{size}"
        (row, column), numbers = next(iter(pairs.items()))
        published, ours = (cell_words(number, record.percent) for number in numbers)
        return f"{row}, {column}: {published}, ours {ours}{size}"
    return ""


def _index_row(record: StudyRecord, costs: dict[str, Cost], has_page: bool) -> IndexRow:
    latest = costs.get("full") or costs.get("quick")
    cost = Cell("–", "", True)
    if latest is not None:
        cost = Cell(words_for(latest.seconds), repr(latest.seconds), True)
    results = {scale: record.result(scale) for scale in SCALES}
    return IndexRow(
        id=record.id,
        link=quote(f"{record.id}/{PAGE}") if has_page else "",
        paper=record.paper,
        where=record.where,
        shows=record.shows,
        verdicts={scale: () if result is None else _verdicts(result) for scale, result in results.items()},
        compared=comparison(record),
        cost=cost,
        date=latest.date if latest else "",
    )


def _verdicts(result: ScaleResult) -> tuple[VerdictWords, ...]:
    """The verdict of a size; that of its corrected claims, if they change it; and whether others fail."""
    found = [_words(result.verdict)]
    if result.corrected is not None and result.corrected.word != result.verdict.word:
        corrected = _words(result.corrected)
        found.append(replace(corrected, text=f"corrected: {corrected.text}"))
    remarks = (result.beside, count_not_run(result))
    return (*found, *(VerdictWords("", remark) for remark in remarks if remark))
