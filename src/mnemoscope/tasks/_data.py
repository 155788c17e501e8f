"""Finding a data file: in the user's folder, else in the cache, else by download. Its checksum is verified first."""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from mnemoscope.errors import MnemoscopeError
from mnemoscope.tasks._archives import read_file, read_member
from mnemoscope.tasks._registry import FILES, LICENSES, TRAIN_COMMANDS, DataFile, Mirror

DATA_VARIABLE = "MNEMOSCOPE_DATA"
"""The environment variable that names the user's data folder."""


def cache_folder() -> Path:
    """Return the folder for downloads, laid out like the user's data folder."""
    import pooch  # takes a while, and only tasks with data need it

    return Path(pooch.os_cache("mnemoscope"))


def read_data_file(path: str) -> bytes:
    """Return the unpacked content of a registered file, such as "mnist/t10k-labels-idx1-ubyte.gz".

    A file that is truncated or has another content is named in an error. It is never used, nor replaced by a download.
    """
    file = FILES[path]
    _print_license(file.dataset)
    found = _find(file)
    if found is None:
        return _download(file)
    return _verified(read_file(found, file.size), file, str(found))


def missing_data(dataset: str) -> str:
    """Return how to get a data set, such as "mnist", that is not on this machine; nothing if it is there."""
    files = [file for file in FILES.values() if file.dataset == dataset]
    if not files:
        raise MnemoscopeError(f"{dataset!r} is not a data set; data sets are {', '.join(LICENSES)}")
    missing = [file for file in files if _find(file) is None]
    if not missing:
        return ""
    return (
        f"{missing[0].path} is missing: set {DATA_VARIABLE} to a folder that has it, or download it by training on it "
        f"once: mnemoscope {TRAIN_COMMANDS[dataset]}"
    )


def _find(file: DataFile) -> Path | None:
    user_folder = os.environ.get(DATA_VARIABLE)
    if user_folder:
        if not Path(user_folder).is_dir():
            raise MnemoscopeError(f"{DATA_VARIABLE} = {user_folder!r} is not a folder")
        found = _in_folder(Path(user_folder), file)
        if found is not None:
            return found
    return _in_folder(cache_folder(), file)


def _in_folder(folder: Path, file: DataFile) -> Path | None:
    for name in (file.path, file.path.removesuffix(".gz")):
        if (folder / name).exists():
            return folder / name
    return None


def _verified(data: bytes, file: DataFile, source: str) -> bytes:
    if len(data) < file.size:
        raise MnemoscopeError(f"{source} is cut: {len(data)} bytes of contents instead of {file.size}")
    digest = hashlib.sha256(data).hexdigest()
    if digest != file.sha256:
        raise MnemoscopeError(f"{source} is not the published file: sha256 of its contents {digest}, not {file.sha256}")
    return data


@cache
def _print_license(dataset: str) -> None:
    """Print a data set's license once per process, on stderr, to leave a program's output alone."""
    print(f"data: {LICENSES[dataset]}", file=sys.stderr)


def _download(file: DataFile) -> bytes:
    failures = []
    for mirror in file.mirrors:
        try:
            data = _verified(_fetch(mirror, file), file, mirror.url)
        except (OSError, ValueError) as error:  # not reachable, or another content: our checksum or pooch's
            failures.append(f"{mirror.url}: {' '.join(str(error).split())[:200]}")
        else:
            _store(data, file)
            return data
    raise MnemoscopeError(
        f"{file.path} is neither in the folder {DATA_VARIABLE} names "
        f"({os.environ.get(DATA_VARIABLE) or 'not set'}) nor in {cache_folder()}, "
        f"and could not be downloaded ({'; '.join(failures)})"
    )


def _fetch(mirror: Mirror, file: DataFile) -> bytes:
    """Return the content of `file` from a mirror. A downloaded archive is cached for the other files in it."""
    import pooch

    bar = _ProgressBar(mirror.url) if sys.stderr.isatty() else None
    downloader = pooch.HTTPDownloader(progressbar=bar or False, timeout=30)
    name = mirror.url.rsplit("/", 1)[-1]
    folder = cache_folder() / "downloads" / file.dataset
    try:
        path = pooch.retrieve(
            mirror.url, known_hash=f"sha256:{mirror.sha256}", fname=name, path=folder, downloader=downloader
        )
    finally:
        if bar:
            bar.close()
    if mirror.member:
        return read_member(Path(path), mirror.member, file.size)
    return read_file(Path(path), file.size)


def _store(data: bytes, file: DataFile) -> None:
    """Write the unpacked content into the cache, atomically."""
    target = cache_folder() / file.path.removesuffix(".gz")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            (Path(folder) / "part").write_bytes(data)
            os.replace(Path(folder) / "part", target)
    except OSError as error:
        raise MnemoscopeError(f"{target} could not be written: {error.strerror or error}") from None


class _ProgressBar:
    """A rich progress bar with the interface that pooch expects: total, update, reset, close."""

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
