"""A job: a function by its name, what it is given, and a folder named by what it is."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from mnemoscope.errors import MnemoscopeError
from mnemoscope.files import NO_FOLLOW, safe_name
from mnemoscope.training import Stop

StopRequest = Callable[[], bool]
"""Returns True once the job is to save its work and raise `mnemoscope.training.Stop`."""

SUMMARY = "summary.json"  # a job that has ended has it in its folder
NAME_DIGITS = 12  # of the hash in a folder's name: 48 bits; in 10,000 jobs two agree once in 5 million sweeps
MAX_MESSAGE = 2_000  # characters of an error that are kept: more may not fit into the pipe to the driver
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)


@dataclass(frozen=True)
class Job:
    """Something to do in a folder of its own.

    The function is called as `function(config, folder, should_stop, **options)`. It goes on from whatever an earlier,
    killed call left in the folder, raises `Stop` soon after `should_stop()` is True, and writes summary.json last, and
    whole. It returns one line that says how it went. One that raises an error may leave a summary.json, too, whose
    `outcome` is "failed" or "diverged" and whose `message` says why.
    """

    call: str
    """The function as "module:name", which any process can import."""
    config: dict[str, Any]
    """What the job is, for JSON. The folder's name is made of its hash."""
    label: str = "job"
    """Begins the folder's name, for people to read."""
    options: dict[str, Any] = field(default_factory=dict)
    """How the job is done, as keyword arguments. They do not count for its name."""
    needs: Sequence[str] = ()
    """Names of jobs that must have ended before it begins; they come earlier in the list."""
    seconds: float = 0.0
    """About how long it takes on one CPU, to plan with; 0 if that is not known."""

    @property
    def name(self) -> str:
        """The folder's name: the same for the same function, configuration and label, and no other."""
        content = json.dumps([self.call, self.config], sort_keys=True, allow_nan=False)
        return f"{safe_name(self.label)}-{hashlib.sha256(content.encode()).hexdigest()[:NAME_DIGITS]}"


@dataclass(frozen=True)
class Ending:
    """How one attempt at a job ended.

    ended: its function returned. failed: it raised an error, which another attempt would too. stopped: it was asked to.
    died: its process was killed, or its machine is gone; another attempt goes on from the folder.
    """

    outcome: Literal["ended", "failed", "stopped", "died"]
    message: str = ""
    exit_code: int = 0
    seconds: float = 0.0
    no_space: bool = False
    """True if nothing more can be written: the other jobs would fail too."""


def run_job(job: Job, folder: Path, should_stop: StopRequest) -> Ending:
    """Do a job in `folder` and return how it ended: what every engine runs in its worker."""
    started = time.perf_counter()
    outcome: Literal["ended", "failed", "stopped"] = "failed"
    exit_code, no_space = 0, False
    try:
        message = str(_function(job.call)(job.config, folder, should_stop, **job.options))
        outcome = "ended"
    except Stop as stop:
        message, outcome = str(stop), "stopped"
    except MnemoscopeError as error:
        message = str(error)
        exit_code = getattr(error, "exit_code", 2)
        no_space = is_no_space(error)
    except Exception as error:  # a mistake in the function: the others may well succeed, and the log has the traceback
        traceback.print_exc()
        message = type_and_message(error)
        exit_code = 1
    message = " ".join(message[:MAX_MESSAGE].split())
    return Ending(outcome, message, exit_code, time.perf_counter() - started, no_space)


def type_and_message(error: Exception) -> str:
    """Return an exception's type and, if it has one, its whole message."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


@contextlib.contextmanager
def output_to(log: Path) -> Iterator[None]:
    """Send what this process prints to the end of a file inside the block; a file that stays empty is deleted."""
    log.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | NO_FOLLOW, 0o666)
    before = [os.dup(stream) for stream in (1, 2)]
    try:
        for stream in (1, 2):
            os.dup2(descriptor, stream)
        yield
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        for stream, old in zip((1, 2), before, strict=True):
            os.dup2(old, stream)
            os.close(old)
        if not os.fstat(descriptor).st_size:
            log.unlink(missing_ok=True)
        os.close(descriptor)


def _function(call: str) -> Callable[..., Any]:
    module, _, name = call.partition(":")
    function: Callable[..., Any] = getattr(import_module(module), name)
    return function


def is_no_space(error: BaseException | None) -> bool:
    """True if an error comes from a disk that takes no more."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _NO_SPACE:
            return True
        error = error.__cause__
    return False
