"""Compiled CUDA kernels on disk, so that a process does not compile what an earlier one has compiled.

The folder is `mnemoscope/kernels` in the user's cache (`XDG_CACHE_HOME`, by default `~/.cache`), or what the variable
MNEMOSCOPE_KERNEL_CACHE names; if that is empty, nothing is stored. A kernel is code: a file is read only if it belongs
to this user, nobody else can write it or its folder, and it is whole.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import stat
from pathlib import Path

_DIGEST_BYTES = hashlib.sha256().digest_size


def key(*parts: str) -> str:
    """Return a name for the binary that all these strings determine: sources, options, versions."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(f"{len(part)}:{part}".encode())
    return digest.hexdigest()


def folder() -> Path | None:
    """Return the cache's folder; None if there is to be none."""
    chosen = os.environ.get("MNEMOSCOPE_KERNEL_CACHE")
    if chosen is not None:
        return Path(chosen) if chosen else None
    with contextlib.suppress(RuntimeError):  # a user without a home
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mnemoscope" / "kernels"
    return None


def load(name: str) -> bytes | None:
    """Return a stored binary; None if there is none that can be trusted."""
    place = folder()
    if place is None or not hasattr(os, "getuid"):
        return None
    try:
        if not _is_private(os.stat(place)):
            return None
        descriptor = os.open(place / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            details = os.fstat(descriptor)
            if not stat.S_ISREG(details.st_mode) or not _is_private(details):
                return None
            stored = file.read()
    except OSError:
        return None
    digest, binary = stored[:_DIGEST_BYTES], stored[_DIGEST_BYTES:]
    return binary if hashlib.sha256(binary).digest() == digest else None


def store(name: str, binary: bytes) -> None:
    """Store a binary under its key, if the folder can be written; it appears whole or not at all."""
    place = folder()
    if place is None or not hasattr(os, "getuid"):
        return
    temporary = place / f"{name}.{secrets.token_hex(4)}.tmp"
    with contextlib.suppress(OSError):  # a read-only or a full disk costs the next process its seconds, no more
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(hashlib.sha256(binary).digest() + binary)
            os.replace(temporary, place / name)
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)


def _is_private(details: os.stat_result) -> bool:
    """True if this user owns it and nobody else can write it."""
    return details.st_uid == os.getuid() and not details.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
