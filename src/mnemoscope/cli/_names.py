"""Names that are not taken yet: of models on a page, and of folders."""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path


def unused_name(name: str, taken: Container[str]) -> str:
    """Return the name, or the first of name (2), name (3), ... that is not taken."""
    candidate = name
    number = 1
    while candidate in taken:
        number += 1
        candidate = f"{name} ({number})"
    return candidate


def unused_folder(parent: str, name: str) -> Path:
    """Return the first of parent/name, parent/name-2, ... that does not exist."""
    path = Path(parent, name)
    number = 1
    while path.exists():
        number += 1
        path = Path(parent, f"{name}-{number}")
    return path
