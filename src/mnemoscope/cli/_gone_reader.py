"""Output that has no reader any more, as after `| head -1`: it goes nowhere, and exit codes stay what they are."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import IO


@contextlib.contextmanager
def reader_may_be_gone() -> Iterator[None]:
    """Print to standard output in the block, even if its reader is gone."""
    try:
        yield
        sys.stdout.flush()  # else Python would notice at its end, where it makes an exit code of it
    except BrokenPipeError:
        discard(sys.stdout)


def discard(stream: IO[str]) -> None:
    """Let what is printed to a stream go nowhere from now on."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
