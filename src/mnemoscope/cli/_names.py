"""Names that are not taken yet: of models on a page, and of folders."""

from __future__ import annotations

import os
from collections.abc import Container, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mnemoscope.errors import MnemoscopeError
from mnemoscope.files import make_folder
from mnemoscope.training import this_rank


def unused_name(name: str, taken: Container[str]) -> str:
    """Return the name, or the first of name (2), name (3), ... that is not taken."""
    candidate = name
    number = 1
    while candidate in taken:
        number += 1
        candidate = f"{name} ({number})"
    return candidate


@contextmanager
def chosen_folder(out: Path | None, parent: str, name: str) -> Iterator[Path]:
    """Yield --out, or the first of parent/name, parent/name-2, ... that does not exist.

    The latter is created at once: of two processes that begin together each gets its own. It is deleted again if
    nothing was written into it.
    """
    if out is not None or this_rank() > 0:  # under torchrun the first process alone writes
        yield out or unused_folder(parent, name)
        return
    new_parent = not Path(parent).exists()
    make_folder(Path(parent), follow=True)
    while True:
        folder = unused_folder(parent, name)
        try:
            folder.mkdir()
            break
        except FileExistsError:  # another process was quicker
            continue
    try:
        yield folder
    finally:
        with suppress(OSError):  # it is not empty
            folder.rmdir()
            if new_parent:
                folder.parent.rmdir()


def require_writable(folder: Path) -> None:
    """Refuse a folder that cannot be written to, or cannot be created, before hours are spent on what goes there."""
    nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise MnemoscopeError(f"cannot write to {nearest}: it is read-only for you; --out takes another folder")


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
