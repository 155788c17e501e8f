"""Reading untrusted compressed files: bounded in memory, nothing unpacked to disk, one clear error."""

from __future__ import annotations

import gzip
import lzma
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import RawIOBase
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

import numpy as np

from mnemoscope.errors import MnemoscopeError
from mnemoscope.files import require_regular_file

MAX_UNPACKED = 1 << 30  # bytes that an archive may unpack to in all, ten times the largest that tasks read

_DAMAGED = (
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    EOFError,
    OSError,
    ValueError,  # a bad number or text in a header
    OverflowError,
    KeyError,
    RuntimeError,  # an encrypted member, an unknown compression
)


def read_file(path: Path, limit: int) -> bytes:
    """Return the content of a file, unpacked if its name ends in .gz; refuse more than `limit` bytes."""
    require_regular_file(path)
    with _one_line_errors(path), gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise MnemoscopeError(f"{path} holds more than the {limit} bytes that it may")
    return data


def read_member(path: Path, name: str, limit: int) -> bytes:
    """Return the content of the file called `name`, in any folder of a zip or tar archive.

    An archive with an entry that would be unpacked outside its folder is refused.
    """
    require_regular_file(path)
    with _one_line_errors(path):
        if zipfile.is_zipfile(path):
            content = _read_from_zip(path, name, limit)
        else:
            content = _read_from_tar(path, name, limit)
    if content is None:
        raise MnemoscopeError(f"{path} holds no file called {name}")
    return content


@contextmanager
def _one_line_errors(path: Path) -> Iterator[None]:
    """Turn whatever goes wrong with a file into one line that names it."""
    try:
        yield
    except MnemoscopeError as error:
        raise MnemoscopeError(f"{path} {error}") from None
    except FileNotFoundError:
        raise MnemoscopeError(f"{path} does not exist") from None
    except IsADirectoryError:
        raise MnemoscopeError(f"{path} is a folder, not a file") from None
    except PermissionError:
        raise MnemoscopeError(f"{path} may not be read: permission denied") from None
    except _DAMAGED as error:
        raise MnemoscopeError(f"{path} is cut or not what its name says: {_one_line(error)}") from None


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _read_from_zip(path: Path, name: str, limit: int) -> bytes | None:
    with zipfile.ZipFile(path) as archive:
        wanted = [info for info in archive.infolist() if _is_wanted(info.filename, name) and not info.is_dir()]
        if not wanted:
            return None
        with archive.open(wanted[0]) as file:
            return _read_bounded(file, name, limit)


def _read_from_tar(path: Path, name: str, limit: int) -> bytes | None:
    content = None
    with (
        gzip.open(path) if path.suffix in (".gz", ".tgz") else path.open("rb") as unpacked,
        # As a stream, because an index would first unpack everything.
        tarfile.open(fileobj=cast(IO[bytes], _LimitedStream(unpacked)), mode="r|") as archive,
    ):
        for info in archive:
            if _is_wanted(info.name, name) and info.isreg() and content is None:
                content = _read_bounded(archive.extractfile(info), name, limit)
    return content


def _is_wanted(path: str, name: str) -> bool:
    """True if an archive's entry is the file called `name`; raise if the entry leads out of the archive."""
    parts = PurePosixPath(path.replace("\\", "/"))
    if parts.is_absolute() or ".." in parts.parts or ":" in (parts.parts or ("",))[0]:
        raise MnemoscopeError(f"is not safe: its entry {path!r} leads outside the archive")
    return parts.name == name


def _read_bounded(file: Any, name: str, limit: int) -> bytes:
    data: bytes = file.read(limit + 1)
    if len(data) > limit:
        raise MnemoscopeError(f"is not safe: {name} in it unpacks to more than the {limit} bytes that it may")
    return data


class _LimitedStream(RawIOBase):
    """A stream that refuses to return, or to allocate, more than `MAX_UNPACKED` bytes."""

    def __init__(self, file: Any) -> None:
        self.file = file
        self.left = MAX_UNPACKED

    def read(self, size: int = -1) -> bytes:
        if size > self.left:
            raise MnemoscopeError(f"is not safe: it unpacks to more than {MAX_UNPACKED} bytes")
        data: bytes = self.file.read(size if size >= 0 else self.left)
        self.left -= len(data)
        return data


def parse_idx(data: bytes, name: str) -> np.ndarray:
    """Return the array of bytes in an IDX file, MNIST's format: 0, 0, type, dimensions, big-endian sizes, values."""
    dimensions = data[3] if data[:3] == b"\0\0\x08" and len(data) > 3 else 0
    values = 4 + 4 * dimensions
    if dimensions == 0 or len(data) < values:
        raise MnemoscopeError(f"{name} is not an IDX file of bytes: it begins with {data[:4].hex(' ') or 'nothing'}")
    shape = struct.unpack(f">{dimensions}I", data[4:values])
    if len(data) - values != int(np.prod(shape, dtype=object)):
        raise MnemoscopeError(f"{name} is cut: {len(data) - values} values for an array of {shape}")
    return np.frombuffer(data, dtype=np.uint8, offset=values).reshape(shape)
