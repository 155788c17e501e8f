"""A folder that a case works in, and what is watched while it does: writes elsewhere, output, memory."""

from __future__ import annotations

import contextlib
import io
import os
import resource
import shutil
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mnemoscope.cli import guarded, main

LINES = ("mnemoscope: ", "data: ")  # how a line on standard error may begin
CODES = (0, 2, 3, 4)
MAX_MEMORY = 2 << 30

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_PATHS = {  # the arguments of an audit event that are paths which it changes
    "os.mkdir": (0,),
    "os.rename": (0, 1),
    "os.remove": (0,),
    "os.rmdir": (0,),
    "os.symlink": (1,),
    "os.link": (1,),
    "os.truncate": (0,),
    "os.chmod": (0,),
    "shutil.rmtree": (0,),
}


class Failed(AssertionError):
    """A case did what it must not."""


class Sandbox:
    """The folder of one worker: `box` is emptied before each case, and nothing outside it may be written."""

    def __init__(self, root: Path, template: Path) -> None:
        self.root = root
        self.box = root / "box"
        self.template = template
        self.escaped: list[str] = []
        self._watching = False
        sys.addaudithook(self._audit)

    def empty(self) -> None:
        """Make the folder anew, with a copy of the run and of the findings in it, and go there."""
        os.chdir(self.root)
        shutil.rmtree(self.box, ignore_errors=True)
        self.box.mkdir()
        os.chdir(self.box)

    def copy(self, name: str) -> Path:
        """Return a copy of a file or a folder of the template."""
        source = self.template / name
        target = self.box / name
        if source.is_dir():
            shutil.copytree(source, target, symlinks=True)
        else:
            target.write_bytes(source.read_bytes())
        return target

    def command(self, *words: Any) -> int:
        """Run a command of the command line."""
        return self.guarded(lambda: main([str(word) for word in words]))

    def guarded(self, action: Callable[[], Any]) -> int:
        """Do something as the command line does it. Refuse a traceback, escapes for terminals, and writes elsewhere."""
        out, error = io.StringIO(), io.StringIO()
        self._watching = True
        try:
            with (
                contextlib.redirect_stdout(out),
                contextlib.redirect_stderr(error),
                warnings.catch_warnings(),
            ):
                warnings.simplefilter("ignore")
                code = guarded(lambda: action() or 0)
        except SystemExit as end:  # --help
            code = end.code if isinstance(end.code, int) else 0
        finally:
            self._watching = False
        self._check(code, out.getvalue(), error.getvalue())
        return code

    def _check(self, code: int, out: str, error: str) -> None:
        if code not in CODES:
            raise Failed(f"exit code {code}")
        lines = error.splitlines()
        if code and not any(line.startswith(LINES) for line in lines):
            raise Failed(f"exit code {code} without a line that says why: {error[:200]!r}")
        if code == 2 and sum(line.startswith("mnemoscope: ") for line in lines[-2:]) != min(len(lines), 2) > 1:
            raise Failed(f"more than one line: {error[:300]!r}")
        if any((ord(c) < 32 and c != "\n") or 0x7F <= ord(c) < 0xA0 for c in out + error):
            raise Failed(f"control characters reach the terminal: {(out + error)[:200]!r}")
        if self.escaped:
            found, self.escaped = self.escaped, []
            raise Failed(f"written outside: {found[:3]}")

    def _audit(self, event: str, arguments: Sequence[Any]) -> None:
        if not self._watching:
            return
        if event == "open" and isinstance(arguments[2], int) and arguments[2] & _WRITES:
            self._check_path(arguments[0], follows=not arguments[2] & os.O_NOFOLLOW)
        for i in _PATHS.get(event, ()):
            self._check_path(arguments[i], follows=event in ("os.truncate", "os.chmod"))

    def _check_path(self, path: Any, follows: bool) -> None:
        """Note a path outside. `follows` says whether the call goes where a link leads; else it acts on the link."""
        if not isinstance(path, str | bytes | os.PathLike) or "\0" in os.fsdecode(path):
            return
        whole = os.path.join(os.fsdecode(self.box), os.fsdecode(path))
        real = os.path.realpath(whole)
        if not follows:
            real = os.path.join(os.path.realpath(os.path.dirname(whole)), os.path.basename(whole))
        places = (str(self.box), str(self.root / "tmp"))  # the latter for what torch keeps for itself
        if not any(real == place or real.startswith(f"{place}/") for place in places) and real != os.devnull:
            self.escaped.append(real)


def memory() -> int:
    """The most memory that this process has had so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
