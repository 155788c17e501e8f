"""What the papers prove, as functions that can be called and statements that can be checked.

One package for each paper, imported when one of its names is first used. Every public name of these packages is also a
name of this room: `theory.lstm_certificate` is `theory.stability.lstm_certificate`.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module
from typing import TYPE_CHECKING, Any

from mnemoscope.theory._statement import PAPERS, STATEMENTS, Row, Statement, statement

if TYPE_CHECKING:  # type checkers and editors see the names; at run time `__getattr__` finds them
    from mnemoscope.theory import attention, foundations, separation, smoothness, stability
    from mnemoscope.theory.attention import *  # noqa: F403
    from mnemoscope.theory.foundations import *  # noqa: F403
    from mnemoscope.theory.separation import *  # noqa: F403
    from mnemoscope.theory.smoothness import *  # noqa: F403
    from mnemoscope.theory.stability import *  # noqa: F403

__all__ = [
    "PAPERS",
    "STATEMENTS",
    "Row",
    "Statement",
    "attention",
    "foundations",
    "load",
    "separation",
    "smoothness",
    "stability",
    "statement",
]


if not TYPE_CHECKING:  # else every misspelt name would pass as Any

    def __getattr__(name: str) -> Any:
        """Import the package called `name`, or the one that has a public name `name`."""
        if name in PAPERS:
            return import_module(f"{__name__}.{name}")
        if not name.startswith("_"):
            for topic in PAPERS:
                package = import_module(f"{__name__}.{topic}")
                if name in package.__all__:
                    return getattr(package, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        names = {*globals(), *PAPERS}
        for topic in PAPERS:
            names.update(import_module(f"{__name__}.{topic}").__all__)
        return sorted(names)


def load() -> dict[str, Statement]:
    """Import the whole room and return every statement by name: paper by paper, lemma 2 before lemma 10.

    Examples:
        >>> from mnemoscope.theory import load
        >>> statement = load()["kerg-lemma-2"]
        >>> all(row.holds for row in statement.check())
        True
    """
    for module in pkgutil.walk_packages(__spec__.submodule_search_locations, prefix=f"{__name__}."):
        import_module(module.name)
    return {found.name: found for found in sorted(STATEMENTS.values(), key=_order)}


def _order(found: Statement) -> tuple[int, list[tuple[int, str]]]:
    """The paper's index in `PAPERS`, then the parts of the name, numbers by their value."""
    parts = [(int(part) if part.isdigit() else 0, part) for part in found.name.split("-")]
    return list(PAPERS.values()).index(found.paper), parts
