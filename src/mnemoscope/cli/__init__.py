"""The command line: a table of commands, one file each.

Exit codes: 0 success, 1 a statement of `theory` does not hold, or a verdict of `reproduce` is worse than recorded,
2 a user error (one line says what to change), 3 a run diverged, 4 a condition of `examine --fail-if` holds, 75 the time
of `reproduce --stop-after` is up, 130 and 143 stopped by Ctrl-C and by a termination signal.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import NamedTuple

from mnemoscope import startup
from mnemoscope.cli._ascii import write_ascii_where_needed
from mnemoscope.cli._gone_reader import discard
from mnemoscope.cli._help import definitions, paragraphs
from mnemoscope.errors import MnemoscopeError, did_you_mean
from mnemoscope.files import visible

__all__ = ["COMMANDS", "Command", "guarded", "main", "usage"]


class Command(NamedTuple):
    """A command: the module in `_commands` whose `main(arguments) -> exit code` it is, and its line of help."""

    module: str
    help: str


COMMANDS: dict[str, Command] = {
    "train": Command("train", "train a network on a task"),
    "resume": Command("resume", "continue a run that was stopped or killed; with --updates N, one that has ended"),
    "sweep": Command("sweep", "train many runs: a grid of options; a table of how they went"),
    "evaluate": Command("evaluate", "evaluate a trained network, also on another length"),
    "compare": Command("compare", "compare runs: a table and their learning curves"),
    "examine": Command("examine", "show how far back models remember: a page of findings"),
    "report": Command("report", "write the page again, or an index over a folder of runs"),
    "reproduce": Command("reproduce", "reproduce the papers' tables, figures and claims, with a verdict on each"),
    "theory": Command("theory", "check the papers' statements against numbers"),
    "list": Command("list", "list the models, tasks, scopes and known systems"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    write_ascii_where_needed()
    if words[:1] == ["help"]:  # `help examine` is `examine --help`
        words = [*words[1:2], "--help"]
    return guarded(lambda: _run(words))


def _run(words: list[str]) -> int:
    """Run a command, or print what `mnemoscope` says of itself."""
    if not words or words[0] in ("-h", "--help"):
        print(usage(), flush=True)  # here, where a reader that is gone is noticed
        return 0
    if words[0] in ("-V", "--version"):
        from mnemoscope import __version__

        print(f"mnemoscope {__version__}", flush=True)
        return 0
    return _command(words[0])(words[1:])


def usage() -> str:
    """Return the help of `mnemoscope` itself: its commands."""
    return "\n\n".join(
        [
            "usage: mnemoscope COMMAND [OPTIONS]",
            paragraphs("Shows how far back a recurrent network remembers."),
            definitions((name, command.help) for name, command in COMMANDS.items()),
            paragraphs("mnemoscope COMMAND --help, or help COMMAND, shows a command's options; -V the version."),
        ]
    )


def _command(name: str) -> Callable[[list[str]], int]:
    if name not in COMMANDS:
        hint = did_you_mean(name, COMMANDS)
        raise MnemoscopeError(f"{name!r} is not a command; commands are {', '.join(COMMANDS)}{hint}")
    module = import_module(f"{__name__}._commands.{COMMANDS[name].module}")
    startup.loaded()
    command: Callable[[list[str]], int] = module.main
    return command


def guarded(command: Callable[[], int]) -> int:
    """Run a command and return its exit code. A user error is printed in one line, never as a traceback."""
    log = logging.getLogger("mnemoscope")
    handler = _LogLines()
    log.addHandler(handler)
    try:
        return command()
    except MnemoscopeError as error:
        return _fail(str(error), getattr(error, "exit_code", 2))
    except KeyboardInterrupt:
        return _fail("stopped", 130)
    except BrokenPipeError:
        discard(sys.stdout)
        return 0
    except OSError as error:  # of a path that the user gave, or of a disk
        return _fail(f"cannot use {error.filename or 'a file'}: {error.strerror or error}", 2)
    except (MemoryError, RuntimeError) as error:
        if not _is_out_of_memory(error):
            raise
        return _fail("out of memory; use less: a smaller batch-size, hidden-size or length", 2)
    finally:
        log.removeHandler(handler)


class _LogLines(logging.Handler):
    """Prints the library's warnings as lines of the command line."""

    def emit(self, record: logging.LogRecord) -> None:
        _fail(record.getMessage(), 0)


def _fail(message: str, code: int) -> int:
    if os.environ.get("LOCAL_RANK", "0") == "0":  # under torchrun all processes meet the same error
        with contextlib.suppress(OSError):  # the exit code says it too
            print("mnemoscope: " + visible(" ".join(message.split())), file=sys.stderr)
    return code


def _is_out_of_memory(error: BaseException) -> bool:
    phrases = ("out of memory", "can't allocate memory", "not enough memory", "size calculation overflowed")
    return isinstance(error, MemoryError) or any(phrase in str(error).lower() for phrase in phrases)
