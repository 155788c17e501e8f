"""The error that Mnemoscope raises on purpose, and what many places need to raise it."""

from __future__ import annotations

import difflib
import numbers
from collections.abc import Iterable
from typing import Any


class MnemoscopeError(ValueError):
    """A user error. Its message is one line: what was wrong, what was given, what is allowed.

    It is a ValueError, so handlers written for torch catch it. Code of our own that turns a library's ValueError into
    a MnemoscopeError must not do so to one that is a MnemoscopeError already.
    """


def first_line(error: BaseException) -> str:
    """Return the first line of an exception's message that says something, or else the name of its type."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def type_and_line(error: BaseException) -> str:
    """Return an exception's type and the first line of its message, if it has one: "KeyError: 'x'"."""
    line, name = first_line(error), type(error).__name__
    return name if line == name else f"{name}: {line}"


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return "; did you mean NAME?" for the nearest of `names`, whatever its case; empty if none is near."""
    known = {other.lower(): other for other in names}
    close = difflib.get_close_matches(name.lower(), known, 1)
    return f"; did you mean {known[close[0]]}?" if close else ""


def is_number(value: Any) -> bool:
    """Return True for a real number, Python's or numpy's; False for a bool."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def is_whole(value: Any) -> bool:
    """Return True for an integer, Python's or numpy's; False for a bool."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def check_count(name: str, value: Any, least: int = 1) -> None:
    """Raise if the option `name` is not a whole number of at least `least`."""
    if not is_whole(value) or value < least:
        raise MnemoscopeError(f"{name} must be a whole number of at least {least}; got {value!r}")
