"""Reading compressed files that may be anything: bounded in memory, nothing unpacked to disk, one clear error."""

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

MOST = 1 << 30  # bytes that an archive may unpack to in all; the largest that tasks read has a tenth of it

_BROKEN = (
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    EOFError,
    OSError,
    ValueError,  # of a header's numbers or of its text
    OverflowError,
    KeyError,
    RuntimeError,  # an encrypted member, an unknown compression
)


def contents(path: Path, limit: int) -> bytes:
    """All that a file holds, unpacked where its name ends in .gz; refused beyond `limit` bytes."""
    with _named(path), gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise MnemoscopeError(f"{path} holds more than the {limit} bytes that it may")
    return data


def member(path: Path, name: str, limit: int) -> bytes:
    """The contents of the one file called `name`, in whatever folder of a zip or tar archive.

    An archive with a member that would be unpacked outside its folder is refused whole.
    """
    with _named(path):
        found = _from_zip(path, name, limit) if zipfile.is_zipfile(path) else _from_tar(path, name, limit)
    if found is None:
        raise MnemoscopeError(f"{path} holds no file called {name}")
    return found


@contextmanager
def _named(path: Path) -> Iterator[None]:
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
    except _BROKEN as error:
        raise MnemoscopeError(f"{path} is cut or not what its name says: {_one_line(error)}") from None


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _from_zip(path: Path, name: str, limit: int) -> bytes | None:
    with zipfile.ZipFile(path) as archive:
        wanted = [info for info in archive.infolist() if _is_wanted(info.filename, name) and not info.is_dir()]
        if not wanted:
            return None
        with archive.open(wanted[0]) as file:
            return _bounded(file, name, limit)


def _from_tar(path: Path, name: str, limit: int) -> bytes | None:
    found = None
    with (
        gzip.open(path) if path.suffix in (".gz", ".tgz") else path.open("rb") as unpacked,
        # As a stream, because an index would first unpack everything.
        tarfile.open(fileobj=cast(IO[bytes], _Counted(unpacked)), mode="r|") as archive,
    ):
        for info in archive:
            if _is_wanted(info.name, name) and info.isreg() and found is None:
                found = _bounded(archive.extractfile(info), name, limit)
    return found


def _is_wanted(path: str, name: str) -> bool:
    """Whether an archive's entry is the file called `name`; raises where the entry leads out of the archive."""
    parts = PurePosixPath(path.replace("\\", "/"))
    if parts.is_absolute() or ".." in parts.parts or ":" in (parts.parts or ("",))[0]:
        raise MnemoscopeError(f"is not safe: its entry {path!r} leads outside the archive")
    return parts.name == name


def _bounded(file: Any, name: str, limit: int) -> bytes:
    data: bytes = file.read(limit + 1)
    if len(data) > limit:
        raise MnemoscopeError(f"is not safe: {name} in it unpacks to more than the {limit} bytes that it may")
    return data


class _Counted(RawIOBase):
    """A stream that refuses to give more than `MOST` bytes, or to make room for them."""

    def __init__(self, file: Any) -> None:
        self.file, self.left = file, MOST

    def read(self, size: int = -1) -> bytes:
        if size > self.left:
            raise MnemoscopeError(f"is not safe: it unpacks to more than {MOST} bytes")
        data: bytes = self.file.read(size if size >= 0 else self.left)
        self.left -= len(data)
        return data


def idx(data: bytes, name: str) -> np.ndarray:
    """The array of bytes in an IDX file, the format of MNIST: 0, 0, type, dimensions, big-endian sizes, values."""
    dimensions = data[3] if data[:3] == b"\0\0\x08" and len(data) > 3 else 0
    values = 4 + 4 * dimensions
    if dimensions == 0 or len(data) < values:
        raise MnemoscopeError(f"{name} is not an IDX file of bytes: it begins with {data[:4].hex(' ') or 'nothing'}")
    shape = struct.unpack(f">{dimensions}I", data[4:values])
    if len(data) - values != int(np.prod(shape, dtype=object)):
        raise MnemoscopeError(f"{name} is cut: {len(data) - values} values for an array of {shape}")
    return np.frombuffer(data, dtype=np.uint8, offset=values).reshape(shape)
