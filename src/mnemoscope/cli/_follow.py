"""What `train` and `resume` share: follow a run to its end and say how it went."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from mnemoscope.cli._console import number, show_json, terminal
from mnemoscope.cli._progress import Follower, Interrupted
from mnemoscope.training import RunConfig, Summary
from mnemoscope.training._progress import Watch


@dataclass(frozen=True)
class Reporting:
    """What a command says."""

    quiet: bool = False
    """Say nothing but errors."""
    json: bool = False
    """Print the result as JSON on standard output."""


def follow(run: Callable[[Watch], Summary], config: RunConfig, folder: Path, reporting: Reporting) -> int:
    """Carry out a run with its progress shown; the exit code."""
    follower = Follower(config.task, f"{config.task.name} · {config.network.model}", reporting.quiet)
    try:
        with follower.following():
            summary = run(follower)
    except Interrupted as stop:
        terminal().print(f"{stop}; go on with: mnemoscope resume {folder}", highlight=False, soft_wrap=True)
        return stop.exit_code
    if reporting.json:
        show_json({"run": str(folder), **asdict(summary)})
    elif not reporting.quiet:
        print(sentence(summary, folder))
    return 0


def sentence(summary: Summary, folder: Path) -> str:
    """How a run went, in a line."""
    best = f"best held-out {summary.metric} {number(summary.best)} at update {summary.best_update}"
    pace = f"{number(summary.updates_per_second)} updates/s"
    return f"{summary.outcome} after {summary.updates} updates: {best}; {pace}; {folder}"
