"""Studies of what a paper proves: its statements in `mnemoscope.theory`, checked against numbers."""

from __future__ import annotations

import math
import pkgutil
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np

from mnemoscope.report import Axis, Chart, Marker, Panels, Points, Style
from mnemoscope.studies._jobs import Done, Result, measure
from mnemoscope.studies._study import Claim, Published, Scale, Study, table
from mnemoscope.sweeps import Job
from mnemoscope.theory import STATEMENTS

TOPICS = {
    "kerg": "attention",
    "miller-hardt": "stability",
    "ribeiro": "smoothness",
    "nabli": "foundations",
    "levine": "separation",
}
"""The package of `theory` for statements whose names begin so."""
COLUMNS = ("checks", "hold")


def check_statements(*, names: Sequence[str]) -> Mapping[str, Any]:
    """Check statements and return, by name, how many of their checks hold; and every check with its ratio."""
    _load(names)
    found: dict[str, Any] = {}
    cases: list[list[Any]] = []
    for name in names:
        rows = list(STATEMENTS[name].check())
        found[name] = {"checks": len(rows), "hold": sum(row.holds for row in rows)}
        cases += [[name, row.case, row.measured, row.relation, row.bound, row.ratio] for row in rows]
    return {"statements": found, "cases": cases}


def _load(names: Sequence[str]) -> None:
    """Import the packages that have these statements: the others may need what is not installed."""
    for topic in {TOPICS[prefix] for name in names for prefix in TOPICS if name.startswith(prefix)}:
        package = import_module(f"mnemoscope.theory.{topic}")
        for module in pkgutil.iter_modules(package.__path__, prefix=f"{package.__name__}."):
            if module.name.rpartition(".")[2].startswith("_"):  # the others are scripts
                import_module(module.name)


def statement_job(names: Sequence[str], seconds: float = 3.0) -> Job:
    """Return the job that checks statements."""
    return measure(check_statements, seconds=seconds, names=list(names))


def statement_cells(result: Result) -> dict[tuple[str, str], float]:
    """Return how many checks of each statement there are, and how many hold."""
    found: dict[str, Any] = result["statements"]
    return {(name, column): counts[column] for name, counts in found.items() for column in COLUMNS}


def statement_claims(
    texts: Mapping[str, str], *, corrected: Sequence[str] = (), beside: Sequence[str] = ()
) -> tuple[Claim, ...]:
    """Return a claim for each statement: all of its checks hold.

    Those in `corrected` are false as printed: their checks are of the corrected statement, and tests/theory has a
    counterexample to the printed one. A slip in a proof, or a constant that could be better, does not count. Those in
    `beside` do not count for the verdict.
    """
    return tuple(
        Claim(
            text,
            check=_all_hold(name),
            form="corrected" if name in corrected else "",
            headline=name not in beside,
        )
        for name, text in texts.items()
    )


def _all_hold(name: str) -> Any:
    return lambda cells: cells[name, "hold"] == cells[name, "checks"]


def tightness(done: Sequence[Done], key: str = "statements") -> Panels:
    """Return charts of measured value over bound, a dot for each check: 1 is as tight as can be.

    Upper bounds, lower bounds and equations have a chart each, whose title says on which side of 1 a dot should be.
    """
    numbers: dict[str, int] = {}
    ratios: dict[str, dict[str, list[float]]] = {}
    for name, _, _, relation, bound, ratio in done[0][key]["cases"]:
        numbers.setdefault(name, len(numbers))
        is_negative = bound is not None and bound < 0  # what is at most -2 is at least 1 times it
        side = _MIRRORED[relation] if is_negative else relation
        ratios.setdefault(side, {}).setdefault(name, []).append(math.nan if ratio is None else float(ratio))
    charts = [_checks(side, ratios[side], numbers) for side in _SIDES if side in ratios]
    title = "Every check: measured value over its bound"
    return Panels("tightness", title, tuple(charts), share_x=False, share_y=False)


_SIDES = {
    "<=": ("upper", "Upper bounds: not above 1"),
    ">=": ("lower", "Lower bounds: not below 1"),
    "==": ("equal", "Equations: 1, up to a tolerance"),
}
_MIRRORED = {"<=": ">=", ">=": "<=", "==": "=="}


def _checks(side: str, by_name: Mapping[str, Sequence[float]], numbers: Mapping[str, int]) -> Chart:
    """The checks of one side of 1, those of each statement in the color of its number."""
    suffix, title = _SIDES[side]
    start = 0
    marks = []
    for name, ratios in by_name.items():
        x = np.arange(start, start + len(ratios), dtype=float)
        marks.append(Points(name, x, np.array(ratios), Style(numbers[name], numbers[name] // 7)))
        start += len(ratios)
    y = Axis("measured / bound", log=True, switch=True)
    return Chart(f"tightness-{suffix}", title, Axis("check"), y, tuple(marks), (Marker("y", 1.0, "equal"),))


def statement_table(names: Sequence[str]) -> Published:
    return table(tuple(names), COLUMNS, row_title="statement", note="proved, not measured")


def statement_study(
    study_id: str,
    where: str,
    shows: str,
    claims: Mapping[str, str],
    *,
    corrected: Sequence[str] = (),
    beside: Sequence[str] = (),
    seconds: float = 3.0,
    more_claims: Sequence[Claim] = (),
    **words: Any,
) -> Study:
    """Return a study of statements of `mnemoscope.theory`: `claims` has what each says, by its name there.

    `corrected` are those that do not hold as printed, `beside` those that `where` does not name: they do not count.
    """
    names = tuple(claims)

    def jobs(scale: Scale, seed: int) -> dict[Any, Job]:
        return {"statements": statement_job(names, seconds)}

    def cells(scale: Scale, done: Done) -> dict[tuple[str, str], float]:
        return statement_cells(done["statements"])

    def charts(scale: Scale, done: Sequence[Done]) -> list[Panels]:
        return [tightness(done)]

    return Study(
        study_id,
        where,
        shows,
        jobs,
        cells,
        charts,
        claims=(*statement_claims(claims, corrected=corrected, beside=beside), *more_claims),
        published=statement_table(names),
        has_seeds=False,
        **words,
    )
