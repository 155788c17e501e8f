"""Training runs as jobs: their names, and the function that every engine calls for them."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from mnemoscope.errors import MnemoscopeError
from mnemoscope.files import locked, to_json, write_atomic
from mnemoscope.sweeps._job import SUMMARY, Job, StopRequest, is_no_space, type_and_message
from mnemoscope.training import (
    Diverged,
    Enough,
    Progress,
    Run,
    RunConfig,
    Stop,
    Summary,
    default_value,
    layer_options,
    resume,
    train,
)
from mnemoscope.wording import counted

CALL = "mnemoscope.sweeps:train_run"
LOCK_SECONDS = 60.0  # in which the process of a driver that was killed saves its run and ends


class _AtRung(Stop):
    """The run has made the updates of its rung."""


def run_job_of(config: RunConfig, **options: Any) -> Job:
    """Return the job that trains `config`. Equal configurations make the same job, however they were written.

    Where the number of threads is left open it is 1: the same on every machine, and with any number of jobs. A text's
    path is made absolute.
    """
    if not isinstance(config, RunConfig):
        raise MnemoscopeError(f"a run is described by a RunConfig; got a {type(config).__name__}")
    known = layer_options(config.network.model)
    given = {name: value for name, value in config.network.options.items() if value != known[name].default}
    network = replace(config.network, options=given)
    fit = replace(config.fit, threads=config.fit.threads or 1)
    content = RunConfig(config.task, network, fit).to_dict()
    data = content["task"].get("data")
    if isinstance(data, str) and Path(data).suffix and Path(data).is_file():
        content["task"]["data"] = str(Path(data).absolute())  # a worker may have another current folder
    return Job(CALL, content, f"{config.task.name}-{config.network.model}", options)


def field_value(config: Mapping[str, Any], field: str) -> Any:
    """Return the value of a field, as "network.buffer", in a config.json; what is not set has its default.

    None if the configuration has no such field.
    """
    section, _, name = field.partition(".")
    values = config.get(section, {})
    return values[name] if name in values else default_value(config, field)


def train_run(
    config: Mapping[str, Any], folder: Path, should_stop: StopRequest, until: int | None = None, end: bool = False
) -> str:
    """Begin the run of `config` in `folder`, or go on with it; return how it went in one line.

    A run that diverged or failed leaves a summary, too.

    Args:
        config: the content of config.json.
        folder: the run's folder.
        should_stop: asked after each update.
        until: the update after which to save and return; by default the end of the run.
        end: True if the run ends there, with a summary that says "stopped early".
    """

    def check_stop(progress: Progress) -> None:
        if until is not None and progress.update >= until:
            raise (Enough if end else _AtRung)(f"at update {progress.update}")
        if should_stop():
            raise Stop(f"stopped at update {progress.update}")

    # The process of a driver that was killed may have the folder in use, or be about to: it is kept out from here on.
    with locked(folder, wait=LOCK_SECONDS):
        try:
            if not (folder / "config.json").exists():
                return outcome(train(RunConfig.from_dict(config), folder, check_stop))
            _require_same(folder, config)
            return outcome(resume(folder, check_stop))
        except _AtRung as rung:
            return str(rung)
        except (Stop, Diverged):
            raise
        except Exception as error:
            if not is_no_space(error):  # then it can go on once there is space
                _note_failure(config, folder, error)
            raise


def _note_failure(config: Mapping[str, Any], folder: Path, error: Exception) -> None:
    """Write to summary.json why a run failed. The caller holds the lock on its folder."""
    metric, updates = "", 0
    with contextlib.suppress(MnemoscopeError):  # what is wrong may be just these
        metric = RunConfig.from_dict(config).task.metric
        updates = Run(folder).saved_update
    message = str(error) if isinstance(error, MnemoscopeError) else type_and_message(error)
    summary = Summary(
        outcome="failed",
        updates=updates,
        metric=metric,
        best=None,
        best_update=0,
        held_out={},
        baseline=None,
        parameters=None,
        seconds=0.0,
        updates_per_second=0.0,
        message=" ".join(message.split()),
    )
    with contextlib.suppress(MnemoscopeError):
        write_atomic(folder / SUMMARY, to_json(asdict(summary), indent=2))


def outcome(summary: Summary) -> str:
    """Return how a run ended, in a few words."""
    best = "" if summary.best is None else f"; best {summary.metric} {summary.best:.4g} at {summary.best_update}"
    return f"{summary.outcome} after {counted(summary.updates, 'update')}{best}"


def _require_same(folder: Path, config: Mapping[str, Any]) -> None:
    if Run(folder).config != RunConfig.from_dict(config):
        raise MnemoscopeError(f"{folder} holds another run than its name says; move it away")
