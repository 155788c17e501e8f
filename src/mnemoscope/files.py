"""Files of runs and findings: regular, of a bounded size, written atomically; JSON that is checked as it is read.

A run or a folder of findings may come from anywhere. So no link in one is followed, nothing but a regular file is
opened (a FIFO or a device would block or never end), and a name that a file holds is made safe before it is a path.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import re
import secrets
import stat
import time
import unicodedata
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NoReturn

from mnemoscope.errors import MnemoscopeError, first_line

try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None  # type: ignore[assignment]

MAX_BYTES = 4 << 30  # of any file: tensors are the largest
MAX_JSON_BYTES = 64 << 20  # of one JSON document, which takes several times as much in memory
MAX_DIGITS = 20  # of a whole number in JSON: seeds have up to 64 bits, and a float holds it without overflow
MAX_NAME_BYTES = 200  # file systems allow 255, suffixes included
LOCK_SECONDS = 30.0  # to wait for another process that is writing findings or a page, which takes less
IS_A_LINK = "is a link; runs and findings keep their files in their own folder"
NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)  # a link planted in a run folder must not redirect a write out of it
NO_BLOCK = getattr(os, "O_NONBLOCK", 0)  # opening a FIFO returns at once, so that it can be refused


def write_atomic(path: Path, data: bytes) -> None:
    """Write `data` to `path`. If the process or the machine stops, the file is the old one or the new one.

    The temporary file has a name of its own: two processes that write the same path cannot mix their bytes.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        _write_and_sync(temporary, data)
        os.replace(temporary, path)
        sync(path.parent)
    except OSError as error:
        _discard(temporary)
        raise _os_error("write", path, error) from error


def append(path: Path, data: bytes) -> None:
    """Add `data` to the end of a file. A new file's name is on disk afterwards; `sync` also brings the data there."""
    with (
        _opened(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, "write") as descriptor,
        os.fdopen(descriptor, "wb", closefd=False) as file,
    ):
        if os.fstat(descriptor).st_size == 0:
            sync(path.parent)
        file.write(data)


def truncate(path: Path, length: int) -> None:
    """Shorten a file to its first `length` bytes."""
    with _opened(path, os.O_WRONLY, "write") as descriptor:
        os.ftruncate(descriptor, length)


def sync(path: Path) -> None:
    """Wait until what was written to a file or a folder is on disk."""
    if path.is_dir():
        if os.name == "posix":  # other systems cannot open a folder
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        return
    with _opened(path, os.O_RDONLY, "write") as descriptor:
        os.fsync(descriptor)


def remove(path: Path) -> None:
    """Delete a file, if there is one; a link is deleted, not what it leads to."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise _os_error("delete", path, error) from error


def make_folder(path: Path, *, follow: bool = False) -> Path:
    """Create a folder unless there is one. A link to a folder is refused, unless the user named it: `follow`."""
    if not follow:
        refuse_link(path)
    try:
        missing = [folder for folder in (path, *path.parents) if not folder.exists()]
        path.mkdir(parents=True, exist_ok=True)
        for folder in missing:
            sync(folder.parent)
    except (OSError, ValueError) as error:
        raise _os_error("write to", path, error) from error
    return path


@contextlib.contextmanager
def locked(folder: Path, *, wait: float = 0.0, again: bool = False) -> Iterator[None]:
    """Keep others from writing to a folder, which is made if need be. However this process ends, its lock is gone.

    Args:
        folder: what to lock.
        wait: seconds to wait for another process or thread that holds the lock.
        again: whether the lock may be held by the caller already.
    """
    make_folder(folder, follow=True)
    lock = _open(folder / ".lock", os.O_RDWR | os.O_CREAT, "write")
    try:
        info = os.fstat(lock)
        key = (info.st_dev, info.st_ino)
        if not (again and key in _held.get()):
            _acquire(lock, folder, wait)
        token = _held.set(_held.get() | {key})
        try:
            yield
        finally:
            _held.reset(token)
    finally:
        os.close(lock)


_held: ContextVar[frozenset[tuple[int, int]]] = ContextVar("held", default=frozenset())  # locks of this thread


def _acquire(lock: int, folder: Path, wait: float) -> None:
    """Lock an open file. Without `fcntl` (not a POSIX system) nothing keeps two processes out of one folder."""
    deadline = time.monotonic() + wait
    while fcntl is not None:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError as error:
            if time.monotonic() >= deadline:
                raise MnemoscopeError(f"{folder} is in use by another process; wait for it to end") from error
            time.sleep(0.01)


def refuse_link(path: Path) -> None:
    """Refuse a path that is a link."""
    try:
        is_link = path.is_symlink()
    except (OSError, ValueError) as error:
        raise _os_error("use", path, error) from error
    if is_link:
        raise MnemoscopeError(f"{path} {IS_A_LINK}")


def read_bytes(path: Path, *, limit: int = MAX_BYTES, follow: bool = False) -> bytes:
    """Return the content of a regular file of at most `limit` bytes.

    A link is refused, unless `follow` is set: for a file that the user named, not one in a run or among findings.
    """
    with (
        _opened(path, os.O_RDONLY, "read", limit, follow) as descriptor,
        open(descriptor, "rb", closefd=False) as file,
    ):
        data = file.read(limit + 1)
    if len(data) > limit:  # it has grown since its size was looked at
        raise MnemoscopeError(f"cannot read {path}: it is larger than {limit:,} bytes")
    return data


def version(path: Path) -> tuple[int, int] | None:
    """Return what tells one version of a file from the next that `write_atomic` puts in its place; None without one."""
    try:
        info = path.lstat()
    except OSError:
        return None
    return info.st_ino, info.st_mtime_ns


def require_regular_file(path: Path) -> None:
    """Refuse what is not a regular file, or too large; for readers of a user's own file that open it by themselves."""
    with _opened(path, os.O_RDONLY, "read", MAX_BYTES, follow=True):
        pass


def safe_name(name: str) -> str:
    """Return `name` as one part of a path: no separators or control characters, no leading dot, not too long.

    "model" if nothing of it is left.
    """
    safe = re.sub(r"[^\w.-]+", "-", name).strip("-.")
    return safe.encode()[:MAX_NAME_BYTES].decode(errors="ignore") or "model"


def read_json(path: Path, *, follow: bool = False) -> Any:
    """Return the JSON value in a file. NaN and Infinity are not JSON and are refused."""
    return parse_json(read_bytes(path, limit=MAX_JSON_BYTES, follow=follow), str(path))


def parse_json(data: bytes, where: str) -> Any:
    """Return the JSON value in `data`, which is UTF-8; `where` names its source in errors."""
    try:
        text = data.decode("utf-8-sig")
        value = json.loads(text, parse_constant=_refuse_constant, parse_int=_parse_int, parse_float=_parse_float)
        if "\\ud" in text.lower():  # halves of surrogate pairs: no text can hold one alone
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except (ValueError, RecursionError) as error:
        raise MnemoscopeError(f"{where} is not valid JSON: {first_line(error)}") from error


def to_json(value: Any, *, indent: int | None = None) -> bytes:
    """Return one value as JSON, with the same bytes for the same value."""
    return (json.dumps(value, indent=indent, allow_nan=False) + "\n").encode()


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a number")


def _parse_int(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"a whole number of {len(digits)} digits is too large")
    return int(digits)


def _parse_float(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise ValueError(f"{digits[:30]} is too large for a number")
    return value


@contextlib.contextmanager
def _opened(path: Path, flags: int, verb: str, limit: int = MAX_BYTES, follow: bool = False) -> Iterator[int]:
    """Open a regular file of at most `limit` bytes; yields its descriptor. Errors in the block name the file."""
    descriptor = _open(path, flags, verb, limit, follow)
    try:
        yield descriptor
    except OSError as error:
        raise _os_error(verb, path, error) from error
    finally:
        os.close(descriptor)


def _open(path: Path, flags: int, verb: str, limit: int = MAX_BYTES, follow: bool = False) -> int:
    flags |= NO_BLOCK | (0 if follow else NO_FOLLOW)
    try:
        descriptor = os.open(path, flags, 0o666)
    except (OSError, ValueError) as error:
        raise _os_error(verb, path, error) from error
    info = os.fstat(descriptor)
    if stat.S_ISREG(info.st_mode) and info.st_size <= limit:
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(info.st_mode):
        raise MnemoscopeError(f"cannot {verb} {path}: it is a folder, not a file")
    if not stat.S_ISREG(info.st_mode):
        raise MnemoscopeError(f"cannot {verb} {path}: it is not a regular file")
    raise MnemoscopeError(f"cannot {verb} {path}: its {info.st_size:,} bytes are more than {limit:,}")


class FileMissing(MnemoscopeError):
    """There is no such file."""


def visible(text: str) -> str:
    """Return `text` safe to print: control characters, and what is not Unicode, become escapes.

    New lines stay, and so do the joiners of some scripts and spaces that do not break or are wider than others.
    """
    if text.isprintable():
        return text
    return "".join(c if _is_shown(c) else c.encode("unicode_escape").decode() for c in text)


def _is_shown(character: str) -> bool:
    return character.isprintable() or character in _SHOWN or unicodedata.category(character) == "Zs"


_SHOWN = "\n\u200c\u200d"


def _os_error(verb: str, path: Path, error: OSError | ValueError) -> MnemoscopeError:
    if isinstance(error, ValueError):  # a null byte in the name
        return MnemoscopeError(f"cannot {verb} {str(path)!r}: {error}")
    if error.errno == errno.ELOOP:
        return MnemoscopeError(f"cannot {verb} {path}: it {IS_A_LINK}")
    kind = FileMissing if error.errno == errno.ENOENT else MnemoscopeError
    return kind(f"cannot {verb} {path}: {error.strerror}")


def _write_and_sync(path: Path, data: bytes) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | NO_FOLLOW, 0o666), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _discard(path: Path) -> None:
    with contextlib.suppress(OSError):  # the write has failed already: that is the error to report
        path.unlink(missing_ok=True)
