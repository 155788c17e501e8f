"""Jobs for the engines' tests: functions that any process can import."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

from mnemoscope.errors import MnemoscopeError
from mnemoscope.files import make_folder, write_atomic
from mnemoscope.sweeps import StopRequest
from mnemoscope.training import Stop


def count_attempt(folder: Path) -> int:
    """The number of this attempt at a job, from 1."""
    attempts = make_folder(folder) / "attempts"
    number = int(attempts.read_text()) + 1 if attempts.exists() else 1
    write_atomic(attempts, str(number).encode())
    return number


def finish(config: dict[str, Any], folder: Path, should_stop: StopRequest) -> str:
    write_atomic(make_folder(folder) / "summary.json", b"{}\n")
    return f"finished {config.get('number')}"


def die_first(config: dict[str, Any], folder: Path, should_stop: StopRequest) -> str:
    """Die by a signal in the first `deaths` attempts."""
    attempt = count_attempt(folder)
    if attempt <= config["deaths"]:
        os.kill(os.getpid(), config.get("signal", signal.SIGKILL))
        time.sleep(10)
    return finish({"number": attempt}, folder, should_stop)


def fail(config: dict[str, Any], folder: Path, should_stop: StopRequest) -> str:
    count_attempt(folder)
    print("before the error")
    if config["code"] == 1:
        raise KeyError("no such thing")
    error = MnemoscopeError("what is wrong")
    error.exit_code = config["code"]  # type: ignore[attr-defined]
    raise error


def fail_at_length(config: dict[str, Any], folder: Path, should_stop: StopRequest) -> str:
    raise RuntimeError("x" * 200_000)


def wait_for_stop(config: dict[str, Any], folder: Path, should_stop: StopRequest) -> str:
    make_folder(folder)
    write_atomic(folder / "begun", b"")
    while not should_stop():
        time.sleep(0.01)
    write_atomic(folder / "saved", b"")
    raise Stop("stopped")


def needs_folder(config: dict[str, Any], folder: Path, should_stop: StopRequest) -> str:
    """Finish if another job has ended."""
    if not (folder.parent / config["other"] / "summary.json").exists():
        raise MnemoscopeError("it began too early")
    return finish(config, folder, should_stop)


def tell_variable(config: dict[str, Any], folder: Path, should_stop: StopRequest) -> str:
    return os.environ.get(config["variable"], "not set")
