"""What the commands share: parsing options, printing to the terminal, and output for machines."""

from __future__ import annotations

import contextlib
import inspect
import io
import json
import re
import reprlib
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, TypeVar

import tyro
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mnemoscope.cli._fitting import fitting
from mnemoscope.cli._gone_reader import discard, reader_may_be_gone
from mnemoscope.cli._help import paragraphs
from mnemoscope.cli._option_rules import rules
from mnemoscope.errors import MnemoscopeError
from mnemoscope.files import visible

T = TypeVar("T")

FILE_WIDTH = 200  # columns of a table that does not go to a terminal


@dataclass(frozen=True)
class OutputOptions:
    """What a command prints."""

    quiet: bool = False
    """Print nothing but errors."""
    json: bool = False
    """Print the result as JSON on standard output."""


def parse(kind: type[T], arguments: Sequence[str], command: str, *, about: str = "", default: T | None = None) -> T:
    """Return the options in `arguments` as a `kind`. A wrong option is a MnemoscopeError of one line."""
    printed = io.StringIO()
    extra: dict[str, Any] = {"registry": rules()} | ({} if default is None else {"default": default})
    about = paragraphs(about or inspect.getdoc(kind) or "")
    try:
        with contextlib.redirect_stderr(printed):
            options = tyro.cli(kind, args=arguments, prog=f"mnemoscope {command}", description=about, **extra)
            _check_whole_numbers(options)
            return options
    except SystemExit as end:
        if not end.code:  # --help was asked for, and printed
            raise
        message = error_line(printed.getvalue())
        error = _own_error(end) or MnemoscopeError(message + _without_prefix(message, kind, extra))
    raise error


def _without_prefix(message: str, kind: type[Any], extra: dict[str, Any]) -> str:
    """Return what an option such as --fit.updates, which has no prefix here, may have meant; empty if nothing."""
    match = re.match(r"Unrecognized options: --[\w-]+\.([\w.-]+)", message)
    if match is None or "did you mean" in message:
        return ""
    option = f"--{match[1]}"
    printed = io.StringIO()
    with contextlib.redirect_stderr(printed), contextlib.suppress(SystemExit):
        tyro.cli(kind, args=[option], **extra)
    hint = re.search(r"did you mean .*", error_line(printed.getvalue()))
    if hint is not None:
        return f"; {hint[0]}"
    return "" if "Unrecognized options" in printed.getvalue() else f"; did you mean {option}?"


def _check_whole_numbers(options: Any) -> None:
    """Refuse whole numbers that no tensor holds, in any field, also of a task or a configuration inside."""
    for field in fields(options):
        value = getattr(options, field.name)
        if is_dataclass(value):
            _check_whole_numbers(value)
        elif isinstance(value, int) and abs(value) >= 2**63:
            raise MnemoscopeError(f"{field.name.replace('_', '-')} = {reprlib.repr(value)} is too large; use less")


def _own_error(error: BaseException) -> MnemoscopeError | None:
    """The error that one of our configurations raised. tyro catches any ValueError, frames it and exits."""
    cause = error.__context__
    while cause is not None and not isinstance(cause, MnemoscopeError):
        cause = cause.__context__
    return cause


def error_line(box: str) -> str:
    """Return the message of an error box that tyro printed, and the option that was meant, in one line.

    tyro has no stable way to get at its errors but this text. A box has the title in its frame and rules between
    its blocks: the message first, then hints. Without line-drawing characters the title is the first block.
    """
    text = re.sub(r"\x1b\[[0-9;]*m", "", box)
    framed = "╭" in text
    lines = [line.strip(" │") for line in text.splitlines() if not line.startswith(("╭", "╰"))]
    blocks = re.split(r"^[─-]{3,}$", "\n".join(line for line in lines if line), flags=re.MULTILINE)
    blocks = [" ".join(block.split()) for block in blocks]
    if not framed and len(blocks) > 1:
        blocks = blocks[1:]
    message, *hints = blocks
    message = _plainly(message)
    for hint in hints:
        options = re.findall(r"--[\w.-]+", hint)
        if "Perhaps you meant" in hint and options:
            message += f"; did you mean {options[0]}?"
    return message or "the options are not understood; --help shows them"


def _plainly(message: str) -> str:
    """Return an error of tyro's, which quotes Python's, in the words of our own errors."""
    if match := re.fullmatch(r"Unrecognized options: (.*)", message):
        words = match[1].split(", ")
        values = {i for i in range(1, len(words)) if words[i - 1].startswith("--") and not words[i].startswith("--")}
        return f"Unrecognized options: {', '.join(word for i, word in enumerate(words) if i not in values)}"
    if match := re.fullmatch(r"Missing from (mnemoscope [\w ]+): (\S+) (.*?)( \(required\))?", message):
        return f"no {match[2]} was given to {match[1]}: {match[3]}"
    if match := re.fullmatch(r"Error parsing (\S+): invalid literal for int\(\) with base 10: (.*)", message):
        return f"{match[1]} = {match[2]} is not a whole number"
    if match := re.fullmatch(r"Error parsing (\S+): could not convert string to float: (.*)", message):
        return f"{match[1]} = {match[2]} is not a number"
    if match := re.fullmatch(r"invalid choice (.*) for argument '(\S+)'\. Expected one of \((.*?),?\)\.", message):
        return f"{match[2]} = {match[1]} is not allowed; it must be one of {match[3].replace(chr(39), '')}"
    if match := re.match(
        r"Error parsing (\S+): no type matching (\S+) could be instantiated from \[(.*?)\]\.", message
    ):
        return f"{match[1]} = {match[3]} is not allowed; it must be {match[2].replace('|', ' or ')}"
    return message


def pop_option(arguments: Sequence[str], option: str) -> tuple[str | None, list[str]]:
    """Return the value of `option`, or None, and the other arguments: for options that decide which others exist."""
    rest = list(arguments)
    for i, word in enumerate(rest):
        if word.startswith(option + "="):
            del rest[i]
            return word.partition("=")[2], rest
        if word == option:
            if i + 1 == len(rest):
                raise MnemoscopeError(f"{option} needs a value")
            value = rest[i + 1]
            del rest[i : i + 2]
            return value, rest
    return None, rest


class _Console(Console):
    """A console without markup, on which names and sentences from files cannot send commands to the terminal."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, **options)

    def on_broken_pipe(self) -> None:
        """Print no more. rich would end the process, and a run with it, because its progress has no reader."""
        self.quiet = True
        discard(self.file)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(visible(text), **options)


def terminal() -> Console:
    """Return where progress and remarks go: standard error, without colors if it is not a terminal."""
    return _Console(stderr=True)


def say(text: object) -> None:
    """Print a line on standard output."""
    with reader_may_be_gone():
        print(visible(str(text)))


def show(table: Table) -> None:
    """Print a table on standard output, wide enough for every column if it goes to a file."""
    console = _Console(highlight=False)
    if not console.is_terminal:
        console = _Console(width=FILE_WIDTH, highlight=False)
    if table.width is not None:
        table.width = min(table.width, console.width)  # a wider one would be cut, not wrapped
    for part in fitting(table, console):
        console.print(part)


def show_json(value: Any) -> None:
    """Print a value as JSON on standard output."""
    with reader_may_be_gone():
        print(json.dumps(value, indent=2))


def first_sentence(thing: object) -> str:
    """Return the first line of a docstring."""
    return (inspect.getdoc(thing) or "").partition("\n")[0]


def format_value(value: float | None) -> str:
    """Return a number as a table shows it: 4 significant digits, whole from 1,000 on; a dash for None."""
    if value is None:
        return "–"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"
