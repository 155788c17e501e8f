"""What `train` and `resume` share: follow a run to its end and say how it went."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from mnemoscope.cli._console import OutputOptions, format_value, say, show_json, terminal
from mnemoscope.cli._progress import Interrupted, RunProgress
from mnemoscope.training import ProgressCallback, RunConfig, Stop, Summary, this_rank
from mnemoscope.wording import counted


def follow(start: Callable[[ProgressCallback], Summary], config: RunConfig, folder: Path, output: OutputOptions) -> int:
    """Start a run, show its progress and its outcome, and return the exit code."""
    is_first = this_rank() == 0  # of the processes that torchrun started
    title = f"{config.task.name} · {config.network.model}"
    progress = RunProgress(config.task, title, output.quiet or not is_first)
    try:
        with progress.shown():
            summary = start(progress)
    except Stop as stop:
        if is_first:
            terminal().print(
                f"{stop}; continue with: mnemoscope resume {shlex.quote(str(folder))}", highlight=False, soft_wrap=True
            )
        return stop.exit_code if isinstance(stop, Interrupted) else 128 + signal.SIGTERM
    if not is_first:
        return 0
    if output.json:
        show_json({"run": str(folder), **asdict(summary)})
    elif not output.quiet:
        say(_outcome(summary, folder))
    return 0


def _outcome(summary: Summary, folder: Path) -> str:
    best = f"best held-out {summary.metric} {format_value(summary.best)} at update {summary.best_update}"
    speed = f"{format_value(summary.updates_per_second)} updates/s"
    changed = "".join(f"; {change}" for change in summary.changes)
    skips = f"{counted(summary.skipped, 'update')} skipped, as the gradient was not finite"
    skipped = f"; {skips}" if summary.skipped else ""
    ended = f"{summary.outcome} after {counted(summary.updates, 'update')}"
    return f"{ended}: {best}; {speed}{skipped}{changed}; {folder}"
