"""What the papers prove, as functions that can be called and statements that can be checked.

One package a paper, imported when a name of it is first used; all of their public names are names of this room.
`load` imports everything, which fills `STATEMENTS`.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module
from typing import Any

from mnemoscope.theory._statement import STATEMENTS, Row, Statement, statement

PAPERS = {
    "attention": "Kerg et al. 2020",
    "stability": "Miller & Hardt 2018",
    "smoothness": "Ribeiro et al. 2019",
    "separation": "Levine et al. 2018",
    "foundations": "Nabli 2019",
}

__all__ = ["PAPERS", "STATEMENTS", "Row", "Statement", "load", "statement"]


def __getattr__(name: str) -> Any:
    if name in PAPERS:
        return import_module(f"{__name__}.{name}")
    for package in () if name.startswith("_") else PAPERS:
        room = import_module(f"{__name__}.{package}")
        if name in room.__all__:
            return getattr(room, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *PAPERS, *(name for package in PAPERS for name in __getattr__(package).__all__)})


def load() -> dict[str, Statement]:
    """Import every file of the room and return all statements by name: paper by paper, lemma 2 before lemma 10."""
    for module in pkgutil.walk_packages(__path__, prefix=f"{__name__}."):
        import_module(module.name)
    return {found.name: found for found in sorted(STATEMENTS.values(), key=_place)}


def _place(found: Statement) -> tuple[int, list[tuple[int, str]]]:
    parts = found.name.split("-")
    return list(PAPERS.values()).index(found.paper), [(int(p) if p.isdigit() else 0, p) for p in parts]
