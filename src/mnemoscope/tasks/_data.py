"""Finding a data file: in the user's folder, else in the cache, else by download; checked before anything reads it."""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from mnemoscope.errors import MnemoscopeError
from mnemoscope.tasks._archives import contents, member
from mnemoscope.tasks._registry import FILES, LICENCES, DataFile, Home

VARIABLE = "MNEMOSCOPE_DATA"
"""The environment variable that names the user's own data folder."""


def cache_folder() -> Path:
    """Where downloads are kept, laid out as the user's own data folder would be."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mnemoscope"


def read(path: str) -> bytes:
    """The checked contents of a file of the catalogue, say "mnist/t10k-labels-idx1-ubyte.gz", unpacked.

    A file that is there but wrong or cut is named and never used, nor silently replaced by a download.
    """
    file = FILES[path]
    _note_licence(file.dataset)
    found = _find(file)
    return _checked(contents(found, file.size), file, str(found)) if found else _download(file)


def _find(file: DataFile) -> Path | None:
    own = os.environ.get(VARIABLE)
    if own and not Path(own).is_dir():
        raise MnemoscopeError(f"{VARIABLE} = {own!r} is not a folder")
    for folder in (Path(own) if own else None, cache_folder()):
        for name in (file.path, file.path.removesuffix(".gz")):
            if folder and (folder / name).exists():
                return folder / name
    return None


def _checked(data: bytes, file: DataFile, source: str) -> bytes:
    if len(data) < file.size:
        raise MnemoscopeError(f"{source} is cut: {len(data)} bytes of contents instead of {file.size}")
    found = hashlib.sha256(data).hexdigest()
    if found != file.sha256:
        raise MnemoscopeError(f"{source} is not the published file: sha256 of its contents {found}, not {file.sha256}")
    return data


@cache
def _note_licence(dataset: str) -> None:
    """Once a process, on stderr, so that what a program prints stays its own."""
    print(f"data: {LICENCES[dataset]}", file=sys.stderr)


def _download(file: DataFile) -> bytes:
    failures = []
    for home in file.homes:
        try:
            data = _checked(_fetch(home, file), file, home.url)
        except (MnemoscopeError, OSError, ValueError) as error:  # no way there, or pooch's own checksum
            failures.append(f"{home.url}: {' '.join(str(error).split())[:200]}")
        else:
            _keep(data, file)
            return data
    raise MnemoscopeError(
        f"{file.path} is neither in the folder {VARIABLE} names ({os.environ.get(VARIABLE) or 'not set'}) nor in "
        f"{cache_folder()}, and could not be downloaded ({'; '.join(failures)})"
    )


def _fetch(home: Home, file: DataFile) -> bytes:
    """The contents of `file` from one of its homes; what was downloaded stays in the cache for the files beside it."""
    try:
        import pooch
    except ImportError:
        raise MnemoscopeError("downloading needs pooch: pip install pooch") from None
    bar = _Bar(home.url) if sys.stderr.isatty() else None
    downloader = pooch.HTTPDownloader(progressbar=bar or False, timeout=30)
    name, where = home.url.rsplit("/", 1)[-1], cache_folder() / "downloads" / file.dataset
    try:
        got = Path(pooch.retrieve(home.url, known_hash=home.hash, fname=name, path=where, downloader=downloader))
    finally:
        if bar:
            bar.close()
    return member(got, home.member, file.size) if home.member else contents(got, file.size)


def _keep(data: bytes, file: DataFile) -> None:
    """Write the unpacked contents into the cache, whole or not at all."""
    target = cache_folder() / file.path.removesuffix(".gz")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            (Path(folder) / "part").write_bytes(data)
            os.replace(Path(folder) / "part", target)
    except OSError as error:
        raise MnemoscopeError(f"{target} could not be written: {error.strerror or error}") from None


class _Bar:
    """A rich progress bar with the four names that pooch calls."""

    def __init__(self, url: str) -> None:
        from rich.console import Console
        from rich.progress import Progress

        self.total = 0
        self.progress = Progress(console=Console(stderr=True), transient=True)
        self.task: Any = self.progress.add_task(url.rsplit("/", 1)[-1], total=None)

    def update(self, bytes_done: int) -> None:
        self.progress.start()
        self.progress.update(self.task, total=self.total or None, advance=bytes_done)

    def reset(self) -> None:
        self.progress.reset(self.task)

    def close(self) -> None:
        self.progress.stop()
