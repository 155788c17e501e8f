"""What `examine` and `report` share: examinations in folders, and the page and figures made from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from mnemoscope.cli._names import unused_name
from mnemoscope.errors import MnemoscopeError
from mnemoscope.files import make_folder, refuse_link, remove, safe_name
from mnemoscope.finding import FILE, Examination

Format = Literal["svg", "png"]
PAGE = "report.html"
IN_RUN = "examination"  # the folder in a run's folder that holds the run's examination


def examination_folder(run: Path) -> Path:
    """Return the folder of a run's examination; a link is refused, through which files elsewhere would be replaced."""
    folder = run / IN_RUN
    refuse_link(folder)
    return folder


def save_examinations(examinations: Mapping[str, Examination], folder: Path) -> None:
    """Save one examination in the folder itself, several in folders inside it, numbered to keep their order."""
    if len(examinations) == 1:
        next(iter(examinations.values())).save(folder)
        return
    for number, (name, examination) in enumerate(examinations.items(), 1):
        examination.save(make_folder(folder / f"{number:02d}-{safe_name(name)}"))
    remove(folder / FILE)  # an earlier examination of one model, which these replace


def load_examinations(folder: Path) -> dict[str, Examination]:
    """Return the examinations in a folder, in a run's folder, or in the folders inside it, by the models' names."""
    if not folder.is_dir():
        raise MnemoscopeError(f"there is no folder {folder}")
    for path in (folder, examination_folder(folder)):
        if (path / FILE).is_file():
            examination = Examination.load(path)
            return {_name(examination, folder): examination}
    named: dict[str, Examination] = {}
    for path in sorted(file.parent for file in folder.glob(f"*/{FILE}")):
        examination = Examination.load(path)
        named[unused_name(_name(examination, path), named)] = examination
    return named


def _name(examination: Examination, folder: Path) -> str:
    return str(examination.about.get("name") or folder.resolve().name)


def write_report(examinations: Mapping[str, Examination], folder: Path, figures: Sequence[Format]) -> Path:
    """Write the page, and the charts as files in the formats asked for; return the page's path."""
    from mnemoscope.report import all_charts, write_figures, write_page

    page = write_page(examinations, folder / PAGE)
    if figures:
        write_figures(all_charts(examinations), folder / "figures", figures)
    return page
