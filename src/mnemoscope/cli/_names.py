"""Names that are not taken yet: of models on a page, and of folders."""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path

from mnemoscope.errors import MnemoscopeError


def unused_name(name: str, taken: Container[str]) -> str:
    """Return the name, or the first of name (2), name (3), ... that is not taken."""
    candidate = name
    number = 1
    while candidate in taken:
        number += 1
        candidate = f"{name} ({number})"
    return candidate


def folder_option(out: Path | None) -> Path | None:
    """Return --out, which is a folder: the name of a page is refused, and so is a file or a path inside one."""
    if out is not None and out.suffix in (".html", ".htm") and not out.is_dir():
        raise MnemoscopeError(f"out = {str(out)!r} is not allowed; it is a folder, and the page in it has its own name")
    for path in () if out is None else (out, *out.parents):
        if path.is_file():
            raise MnemoscopeError(f"out = {str(out)!r} is not allowed; {path} is a file")
    return out


def unused_file(name: str) -> Path:
    """Return the first of name.png, name-2.png, ... that does not exist here."""
    path = Path(name)
    number = 1
    while path.exists():
        number += 1
        path = Path(name).with_stem(f"{Path(name).stem}-{number}")
    return path


def unused_folder(parent: str, name: str) -> Path:
    """Return the first of parent/name, parent/name-2, ... that does not exist."""
    path = Path(parent, name)
    number = 1
    while path.exists():
        number += 1
        path = Path(parent, f"{name}-{number}")
    return path
