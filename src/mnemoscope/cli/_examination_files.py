"""What `examine` and `report` share: findings kept in folders, and the page and figures drawn from them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from mnemoscope.errors import MnemoscopeError
from mnemoscope.finding import FILE, Examination

Format = Literal["svg", "png"]
PAGE = "report.html"
RUNS_OWN = "examination"  # the folder in a run that keeps what was found of it


def save(examinations: Mapping[str, Examination], folder: Path) -> None:
    """One examination lies in the folder itself, several in folders of their own, numbered to keep their order."""
    if len(examinations) == 1:
        next(iter(examinations.values())).save(folder)
        return
    for number, (name, examination) in enumerate(examinations.items(), 1):
        examination.save(folder / f"{number:02d}-{slug(name)}")
    (folder / FILE).unlink(missing_ok=True)  # of an earlier examination of one model, which this one replaces


def load(folder: Path) -> dict[str, Examination]:
    """The examinations in a folder, in a run's folder, or in the folders inside it."""
    if not folder.is_dir():
        raise MnemoscopeError(f"there is no folder {folder}")
    for place in (folder, folder / RUNS_OWN):
        if (place / FILE).is_file():
            examination = Examination.load(place)
            return {name_of(examination, folder): examination}
    named: dict[str, Examination] = {}
    for place in sorted(path.parent for path in folder.glob(f"*/{FILE}")):
        examination = Examination.load(place)
        named[free(name_of(examination, place), named)] = examination
    return named


def name_of(examination: Examination, folder: Path) -> str:
    return str(examination.about.get("name") or folder.resolve().name)


def free(name: str, taken: Mapping[str, object] | Sequence[str]) -> str:
    """The name, or the first of name (2), name (3), ... that is not taken."""
    number, candidate = 1, name
    while candidate in taken:
        number += 1
        candidate = f"{name} ({number})"
    return candidate


def draw(examinations: Mapping[str, Examination], folder: Path, figures: Sequence[Format]) -> Path:
    """The page, and the charts as files where they are asked for."""
    from mnemoscope.report import all_charts, write_figures, write_page

    page = write_page(examinations, folder / PAGE)
    if figures:
        write_figures(all_charts(examinations), folder / "figures", tuple(figures))
    return page


def slug(name: str) -> str:
    """A name as a folder can have it."""
    return re.sub(r"[^\w.-]+", "-", name).strip("-.") or "model"
