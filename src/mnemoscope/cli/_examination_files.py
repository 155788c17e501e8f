"""What `examine` and `report` share: examinations in folders, and the page and figures made from them."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mnemoscope.cli._names import unused_folder, unused_name
from mnemoscope.errors import MnemoscopeError
from mnemoscope.files import (
    LOCK_SECONDS,
    locked,
    make_folder,
    read_json,
    refuse_link,
    remove,
    safe_name,
    to_json,
    version,
    write_atomic,
)
from mnemoscope.finding import FILE, READS, Examination
from mnemoscope.schema import from_dict

Format = Literal["svg", "png"]
PAGE = "report.html"
MODELS = "models.json"  # lists the folders of several models' examinations
IN_RUN = "examination"  # the folder in a run's folder that holds the run's examination


def examination_folder(run: Path) -> Path:
    """Return the folder of a run's examination; a link is refused, through which files elsewhere would be replaced."""
    folder = run / IN_RUN
    refuse_link(folder)
    return folder


def save_examinations(examinations: Mapping[str, Examination], folder: Path) -> None:
    """Save one examination in the folder itself, several in folders inside it, which models.json lists in their order.

    A reader of the folder, meanwhile or after a kill, finds what was there before or all that is new: findings.json
    and models.json are replaced at once, the latter counts only without the former, and folders get names of their own.
    """
    with locked(folder, wait=LOCK_SECONDS, again=True):
        if len(examinations) == 1:
            next(iter(examinations.values())).save(folder)
            names: list[str] = []
            remove(folder / MODELS)
        else:
            names = []
            if not (folder / FILE).exists() and not (folder / MODELS).exists():
                write_atomic(folder / MODELS, to_json({"models": []}, indent=1))  # some folders are not all of them
            for number, (name, examination) in enumerate(examinations.items(), 1):
                own = unused_folder(str(folder), f"{number:02d}-{safe_name(name)}")
                examination.save(make_folder(own))
                names.append(own.name)
            write_atomic(folder / MODELS, to_json({"models": names}, indent=1))
            remove(folder / FILE)
        _delete_all_but(names, folder)


def _delete_all_but(names: Collection[str], folder: Path) -> None:
    """Delete earlier examinations in the folders that `save_examinations` makes; links are left alone."""
    for own in folder.glob("[0-9][0-9]-*"):
        if own.name in names or own.is_symlink() or not own.is_dir():
            continue
        entries = list(own.iterdir())
        if all(_OURS.fullmatch(entry.name) for entry in entries):  # nothing of the user's is there
            for entry in sorted(entries, key=lambda entry: entry.name != FILE):  # first what others would read
                remove(entry)
            with contextlib.suppress(OSError):
                own.rmdir()


_OURS = re.compile(rf"\.lock|{re.escape(FILE)}|arrays-\w+\.safetensors|\..*\.tmp")  # what `Examination.save` writes


@dataclass(frozen=True)
class _Models:
    """The content of models.json."""

    models: tuple[str, ...]


def load_examinations(folder: Path) -> dict[str, Examination]:
    """Return the examinations in a folder, in a run's folder, or in the folders inside it, by the models' names.

    If another process replaces them meanwhile, all are read again: they are those of one time.
    """
    if not folder.is_dir():
        raise MnemoscopeError(f"there is no folder {folder}")
    for _ in range(READS):
        before = _versions(folder)
        try:
            found = _load(folder)
        except MnemoscopeError:
            if _versions(folder) == before:
                raise
        else:
            if _versions(folder) == before:
                return found
    raise MnemoscopeError(f"{folder} changes faster than it can be read; wait for the process that writes it")


def _versions(folder: Path) -> list[tuple[int, int] | None]:
    return [version(path / name) for path in (folder, folder / IN_RUN) for name in (FILE, MODELS)]


def _load(folder: Path) -> dict[str, Examination]:
    for path in (folder, examination_folder(folder)):
        if (path / FILE).is_file():
            examination = Examination.load(path)
            return {_name(examination, folder): examination}
        if (path / MODELS).is_file():
            return _load_named(_listed(path))
    return _load_named(sorted(file.parent for file in folder.glob(f"*/{FILE}")))


def _listed(folder: Path) -> list[Path]:
    """The folders that models.json lists."""
    names = from_dict(_Models, read_json(folder / MODELS), str(folder / MODELS)).models
    for name in names:
        if Path(name).name != name:
            raise MnemoscopeError(f"{folder / MODELS} names {name!r}, which is not a folder in it")
        refuse_link(folder / name)
    return [folder / name for name in names]


def _load_named(folders: Sequence[Path]) -> dict[str, Examination]:
    named: dict[str, Examination] = {}
    for path in folders:
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
