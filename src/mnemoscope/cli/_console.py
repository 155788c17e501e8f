"""What the commands share: parsing, the terminal, and output for machines."""

from __future__ import annotations

import contextlib
import inspect
import io
import json
import re
import sys
from collections.abc import Sequence
from typing import Any, TypeVar

import tyro
from rich.console import Console
from rich.table import Table

from mnemoscope.errors import MnemoscopeError

T = TypeVar("T")


def parse(kind: type[T], arguments: Sequence[str], command: str, *, about: str = "", default: T | None = None) -> T:
    """The options in `arguments`; help goes to the terminal, a wrong option becomes one line."""
    printed = io.StringIO()
    extra: dict[str, Any] = {} if default is None else {"default": default}
    try:
        with contextlib.redirect_stderr(printed):
            return tyro.cli(kind, args=arguments, prog=f"mnemoscope {command}", description=about or None, **extra)
    except SystemExit as end:
        if not end.code:
            raise
        raise _own_error(end) or MnemoscopeError(one_line(printed.getvalue())) from None


def _own_error(error: BaseException) -> MnemoscopeError | None:
    """The error that one of our configurations raised. tyro catches any ValueError, frames it and exits."""
    cause = error.__context__
    while cause is not None and not isinstance(cause, MnemoscopeError):
        cause = cause.__context__
    return cause


def one_line(box: str) -> str:
    """What tyro says in a box, as a sentence and the option that was meant.

    A drawn box has its title in its frame; without line-drawing characters the title is a block of its own.
    """
    rows = [row.strip(" │") for row in re.sub(r"\x1b\[[0-9;]*m", "", box).splitlines() if row[:1] not in ("╭", "╰")]
    text = "\n".join(row for row in rows if row)
    blocks = [" ".join(block.split()) for block in re.split(r"^[─-]{3,}$", text, flags=re.MULTILINE)]
    message, *others = blocks if "╭" in box or len(blocks) == 1 else blocks[1:]
    meant = [re.findall(r"--[\w.-]+", block)[:1] for block in others if "Perhaps you meant" in block]
    return message + "".join(f"; did you mean {option}?" for found in meant for option in found)


def take(arguments: Sequence[str], option: str) -> tuple[str | None, list[str]]:
    """The value of `option` and the other arguments: for options that decide which others there are."""
    rest = list(arguments)
    for place, word in enumerate(rest):
        if word.startswith(option + "="):
            del rest[place]
            return word.partition("=")[2], rest
        if word == option:
            if place + 1 == len(rest):
                raise MnemoscopeError(f"{option} needs a value")
            value = rest[place + 1]
            del rest[place : place + 2]
            return value, rest
    return None, rest


def terminal() -> Console:
    """Where progress and remarks go; without colours where it is no terminal."""
    return Console(stderr=True, markup=False, emoji=False)


def show(table: Table) -> None:
    """A table on standard output, as wide as it needs to be where it goes to a file."""
    console = Console(markup=False, emoji=False, highlight=False)  # what names and claims hold is no markup
    if not console.is_terminal:
        console = Console(width=200, markup=False, emoji=False, highlight=False)
    console.print(table)


def show_json(value: Any) -> None:
    json.dump(value, sys.stdout, indent=2)
    print()


def first_sentence(thing: object) -> str:
    """The first line of a docstring."""
    return (inspect.getdoc(thing) or "").partition("\n")[0]


def number(value: float | None) -> str:
    """A figure as people write it."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
