"""One entry of the tables."""

from __future__ import annotations

from typing import NamedTuple


class Mutant(NamedTuple):
    """One change of the source, and the tests that must notice it, separated by spaces."""

    name: str
    file: str
    original: str
    replacement: str
    tests: str
