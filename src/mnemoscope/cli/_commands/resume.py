"""mnemoscope resume RUN: continue a run that was stopped or killed, or let a finished one go on."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from mnemoscope.cli._console import OutputOptions, parse
from mnemoscope.cli._follow import follow
from mnemoscope.training import AllowedChange, ProgressCallback, Run, Summary, resume


@dataclass(frozen=True)
class Resume:
    """Continue a run from its last checkpoint; on the CPU the result is bit for bit that of a run never stopped.
    --updates N lets a finished run go on."""

    run: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]
    """The run's folder."""
    allow_changed: tuple[AllowedChange, ...] = ()
    """What may have changed since the run was stopped: data, or metrics for a metrics.jsonl that was lost or edited.
    The summary says so."""
    updates: int | None = None
    """A larger budget, counted from the run's beginning: a finished run then goes on."""
    output: tyro.conf.OmitArgPrefixes[OutputOptions] = field(default_factory=OutputOptions)


def main(arguments: list[str]) -> int:
    options = parse(Resume, arguments, "resume")
    config = Run(options.run).config

    def start(callback: ProgressCallback) -> Summary:
        return resume(options.run, callback, options.allow_changed, options.updates)

    return follow(start, config, options.run, options.output)
