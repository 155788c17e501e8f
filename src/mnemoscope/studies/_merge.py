"""What a call found, joined to what was recorded before: results whose runs are elsewhere, or gone, are not lost."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from mnemoscope.report import Chart, Line, Mark, Panels, SeedLine, Style
from mnemoscope.studies._cells import Cells
from mnemoscope.studies._jobs import Result
from mnemoscope.studies._record import Cost, SeedResult, job_of, kept_cells
from mnemoscope.studies._study import CellValue, Scale, Study

Drawn = TypeVar("Drawn", bound=Chart | Panels)


def merge_seeds(old: SeedResult | None, new: SeedResult) -> SeedResult:
    """Return what is known of a seed; both results are of the same jobs.

    The new one, if it has every job that had ended. Else the old one, if it was complete: a second run that did not get
    to its end does not take its place. Else both together, the new cells in place of the old ones.
    """
    if old is None or old.ended <= new.ended:
        return new
    if old.is_complete:
        return old
    cells = old.values | new.values
    of_old = [message for message in old.diverged if job_of(message) not in new.ended]
    return SeedResult(
        new.seed,
        new.jobs,
        tuple((*key, value) for key, value in cells.items()),
        missing=tuple(name for name in new.missing if name not in old.ended),
        diverged=tuple(sorted((*of_old, *new.diverged), key=lambda message: new.jobs.index(job_of(message)))),
        failed=tuple(message for message in new.failed if job_of(message) not in old.ended),
    )


def with_derived_cells(
    study: Study, scale: Scale, seed: SeedResult, charts: Sequence[Chart | Panels], recorded: Sequence[Chart | Panels]
) -> SeedResult:
    """Return a seed with the cells that follow from its others and from its curves in the charts.

    Several calls may have made a part each of what they follow from. A cell that is known stays, as numbers in charts
    are rounded, unless its curves are others than those that were `recorded`.
    """
    compared, before = _compared(study, scale, charts, seed), _compared(study, scale, recorded, seed)
    changed = {key: value for key, value in compared.items() if key in before and value != before[key]}
    values = compared | seed.values | changed
    derived = kept_cells(study.derived_cells(Cells(values)))
    values |= {(row, column): value for row, column, value in derived}
    return replace(seed, cells=tuple((*key, value) for key, value in values.items()))


def _compared(
    study: Study, scale: Scale, charts: Sequence[Chart | Panels], seed: SeedResult
) -> dict[tuple[str, str], CellValue]:
    cells = kept_cells(study.cells_of_charts(scale, charts, seed.seed)) if charts else ()
    return {(row, column): value for row, column, value in cells}


def merge_charts(
    old: Sequence[Chart | Panels], new: Sequence[Chart | Panels], recorded: Sequence[int], found: Sequence[int]
) -> list[Chart | Panels]:
    """Return the charts of both, and the marks of both in a chart that both have.

    Lines over seeds are joined seed by seed, with the new curve of a seed that both have. Of another mark it may not be
    known which seeds it is of: at most `recorded` if it is an old one, `found` if it is new.
    """
    merged = {chart.key: chart for chart in old}
    for chart in new:
        known = merged.get(chart.key)
        if known is not None and len(recorded) == 1 and _has_seed_lines(chart):  # older records have plain lines
            known = _of_seed(known, recorded[0])
        if isinstance(known, Panels) and isinstance(chart, Panels):
            panels = {panel.key: panel for panel in known.charts}
            for panel in chart.charts:
                panels[panel.key] = _join(panels[panel.key], panel, recorded, found) if panel.key in panels else panel
            title = _common_title(known.title, chart.title)
            columns = max(known.columns, chart.columns)
            merged[chart.key] = replace(chart, title=title, charts=tuple(panels.values()), columns=columns)
        elif isinstance(known, Chart) and isinstance(chart, Chart):
            merged[chart.key] = _join(known, chart, recorded, found)
        else:
            merged[chart.key] = chart
    return list(merged.values())


def _has_seed_lines(chart: Chart | Panels) -> bool:
    charts = chart.charts if isinstance(chart, Panels) else (chart,)
    return any(isinstance(mark, SeedLine) for one in charts for mark in one.marks)


def _of_seed(chart: Drawn, seed: int) -> Drawn:
    """Return a chart whose plain lines are the curves of this seed; a band or a gap is not of one run."""
    if isinstance(chart, Panels):
        return replace(chart, charts=tuple(_of_seed(panel, seed) for panel in chart.charts))
    marks: list[Mark] = []
    for mark in chart.marks:
        if type(mark) is Line and mark.low is None and not np.isnan(mark.x).any():
            mark = SeedLine(mark.name, {seed: (mark.x, mark.y)}, mark.style)
        marks.append(mark)
    return replace(chart, marks=tuple(marks))


def _join(old: Chart, new: Chart, recorded: Sequence[int], found: Sequence[int]) -> Chart:
    marks = _joined_marks(old.marks, new.marks, recorded, found)
    return replace(new, title=_common_title(old.title, new.title), marks=marks)


def _joined_marks(
    old: Sequence[Mark], new: Sequence[Mark], recorded: Sequence[int], found: Sequence[int]
) -> tuple[Mark, ...]:
    """The marks of both, by name.

    An old mark that is no line over seeds gives way to a new one of all its seeds. Else it stays, and a new line over
    seeds is drawn beside it.
    """
    marks = {mark.name: mark for mark in old}
    for mark in new:
        known, other = marks.get(mark.name), f"{mark.name}, other runs"
        if isinstance(mark, SeedLine):
            if isinstance(known, SeedLine):
                mark = SeedLine(mark.name, {**known.curves, **mark.curves}, mark.style)
            elif isinstance(known, Line):
                marks[other] = replace(known, name=other, style=Style(known.style.color, known.style.dash + 1))
            if other in marks and _has_all_seeds(mark, marks[other], recorded, found):
                del marks[other]
            marks[mark.name] = mark
        elif known is None or _has_all_seeds(mark, known, recorded, found):
            marks[mark.name] = mark
    return tuple(sorted(marks.values(), key=lambda mark: getattr(mark, "style", Style()).color))  # as in the study


def _has_all_seeds(new: Mark, old: Mark, recorded: Sequence[int], found: Sequence[int]) -> bool:
    """True if a new mark is of every seed of an old one; where these are not known, of as many as it can have."""
    ours = set(new.seeds) if isinstance(new, Line) else set()
    if not ours and not isinstance(new, SeedLine):
        ours = set(found)
    theirs = set(old.seeds) if isinstance(old, Line) else set()
    return theirs <= ours if theirs else len(ours) >= len(recorded)


def _common_title(old: str, new: str) -> str:
    """What two titles have in common: of "Loss, T = 100" and "Loss, T = 300" it is "Loss"."""
    common = []
    for ours, theirs in zip(old.split(", "), new.split(", "), strict=False):
        if ours != theirs:
            break
        common.append(ours)
    return ", ".join(common) or new


def with_derived_charts(
    study: Study, seeds: Iterable[SeedResult], charts: Iterable[Chart | Panels]
) -> list[Chart | Panels]:
    """Return charts with those that follow from the cells of these seeds, in place of older ones of the same name."""
    derived = study.derived_charts({one.seed: Cells(one.values) for one in seeds})
    return list({chart.key: chart for chart in (*charts, *filter(shows_something, derived))}.values())


def shows_something(chart: Chart | Panels) -> bool:
    """True if there is a mark in it: of a study's first jobs a chart may have nothing to show."""
    return any(one.marks for one in chart.charts) if isinstance(chart, Panels) else bool(chart.marks)


def merge_costs(old: Cost | None, found: Iterable[Result], date: str) -> Cost:
    """Return what results took: those that `found` has, and with `old` those that were known before."""
    results = list(found)
    spent = {} if old is None else _spent(old)
    for result in results:
        spent[result.device] = spent.get(result.device, 0.0) + result.seconds
    jobs = len(results) + (old.jobs if old else 0)
    return Cost(round(sum(spent.values()), 1), jobs, _machines(spent), date)


def _machines(seconds: dict[str, float]) -> str:
    """Where jobs ran, with the seconds of each machine if there are several."""
    if len(seconds) == 1:
        return next(iter(seconds))
    longest_first = sorted(seconds.items(), key=lambda item: -item[1])
    return ", ".join(f"{device} ({spent:,.0f} s)" for device, spent in longest_first)


def _spent(cost: Cost) -> dict[str, float]:
    """The seconds of each machine, as `_machines` wrote them."""
    several = re.findall(r"(?:^|, )(.+?) \(([\d,]+) s\)(?=, |$)", cost.machine)
    if not several:
        return {cost.machine: cost.seconds} if cost.machine else {}
    return {device: float(spent.replace(",", "")) for device, spent in several}
