"""Files that are written atomically, and JSON that is checked as it is read."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any, NoReturn

from mnemoscope.errors import MnemoscopeError

NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)  # a link planted in a run folder must not redirect a write out of it


def write_atomic(path: Path, data: bytes) -> None:
    """Write `data` to `path`. If the process or the machine stops, the file is the old one or the new one."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        _write_and_sync(temporary, data)
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except OSError as error:
        _discard(temporary)
        raise MnemoscopeError(f"cannot write {path}: {error.strerror}") from error


def append(path: Path, data: bytes) -> None:
    """Add `data` to the end of a file."""
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | NO_FOLLOW, 0o666), "wb") as file:
            file.write(data)
    except OSError as error:
        raise MnemoscopeError(f"cannot write {path}: {error.strerror}") from error


def sync(path: Path) -> None:
    """Wait until what was written to a file is on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_bytes(path: Path) -> bytes:
    """Return the content of a file."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise MnemoscopeError(f"cannot read {path}: {error.strerror}") from error


def read_json(path: Path) -> Any:
    """Return the JSON value in a file. NaN and Infinity are not JSON and are refused."""
    return parse_json(read_bytes(path), str(path))


def parse_json(text: bytes, where: str) -> Any:
    """Return the JSON value in `text`; `where` names its source in errors."""
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        reason = str(error).splitlines()[0]
        raise MnemoscopeError(f"{where} is not valid JSON: {reason}") from error


def to_json(value: Any, *, indent: int | None = None) -> bytes:
    """Return one value as JSON, with the same bytes for the same value."""
    return (json.dumps(value, indent=indent, allow_nan=False) + "\n").encode()


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a number")


def _write_and_sync(path: Path, data: bytes) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | NO_FOLLOW, 0o666), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    if os.name == "posix":  # other systems cannot open a folder
        sync(folder)


def _discard(path: Path) -> None:
    with contextlib.suppress(OSError):  # the write has failed already: that is the error to report
        path.unlink(missing_ok=True)
