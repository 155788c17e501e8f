"""Files that are written whole or not at all, and JSON that is read with suspicion."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any, NoReturn

from mnemoscope.errors import MnemoscopeError

NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)  # a link planted in a run folder must not lead a write out of it


def write_whole(path: Path, data: bytes) -> None:
    """Put `data` at `path`; whenever the process or the machine stops, the file is the old one or the new one."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        _write_through(temporary, data)
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
    """Have what was appended to a file reach the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise MnemoscopeError(f"cannot read {path}: {error.strerror}") from error


def read_json(path: Path) -> Any:
    """The JSON value in a file; NaN and Infinity are not JSON and are refused."""
    return parse_json(read_bytes(path), str(path))


def parse_json(text: bytes, where: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        reason = str(error).splitlines()[0]
        raise MnemoscopeError(f"{where} is not valid JSON: {reason}") from error


def to_json(value: Any, *, indent: int | None = None) -> bytes:
    """One value as JSON, the same bytes for the same value."""
    return (json.dumps(value, indent=indent, allow_nan=False) + "\n").encode()


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a number")


def _write_through(path: Path, data: bytes) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | NO_FOLLOW, 0o666), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    if os.name == "posix":  # elsewhere a folder cannot be opened
        sync(folder)


def _discard(path: Path) -> None:
    with contextlib.suppress(OSError):  # the write has failed already, and that is the error to tell
        path.unlink(missing_ok=True)
