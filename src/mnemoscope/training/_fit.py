"""fit(): teach a model a task, in a folder that survives whatever happens to the process."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from mnemoscope.errors import MnemoscopeError
from mnemoscope.tasks import Task
from mnemoscope.training._config import FitConfig
from mnemoscope.training._folder import RunFolder
from mnemoscope.training._learner import Learner, device_of
from mnemoscope.training._progress import Summary, Watch, read_summary
from mnemoscope.training._projections import Projection
from mnemoscope.training._reproducible import deterministic, reproducible
from mnemoscope.training._run_description import describe, first_difference
from mnemoscope.training._session import Session


def fit(
    model: nn.Module,
    task: Task,
    config: FitConfig | None = None,
    folder: str | Path | None = None,
    *,
    projections: Sequence[Projection] = (),
    watch: Watch | None = None,
    resume: bool = False,
) -> Summary:
    """Teach `model` the `task`.

    Args:
        model: called as `model(inputs, state) -> (outputs, state)`, inputs (T, B, ...), outputs (T, B, output_size).
        task: where batches, loss and metrics come from.
        config: optimiser, schedule, budget, and how often to evaluate and save.
        folder: where config.json, metrics.jsonl, checkpoints/ and summary.json go; without it nothing is written.
        projections: called on the model after each update, to keep it inside a set.
        watch: called after each update with the `Progress`; it may raise `Stop`.
        resume: continue the run in `folder`. On the CPU the weights and metrics are then, bit for bit, those of a run
            that was never stopped.
    """
    run = None if folder is None else RunFolder(folder)
    config = _settled(config or FitConfig(), run if resume else None)
    about = describe(model, task, config)
    with ExitStack() as stack:
        stack.enter_context(reproducible(config.seed, config.threads))
        if device_of(config) == "cpu":
            stack.enter_context(deterministic())
        if run is not None:
            _check_folder(run, about, resume)
            if resume and run.summary.exists():
                return read_summary(run.summary)
        task.batch(0, config.batch_size)  # missing data, like all that can be wrong, are told before a folder is made
        learner = Learner(model, task, config, projections)
        if run is not None:
            stack.enter_context(run.locked())
        session = Session(learner, run, about, watch)
        session.restore() if resume else session.begin()
        return session.run()


def _settled(config: FitConfig, run: RunFolder | None) -> FitConfig:
    """The configuration with its number of threads: the one that the run began with, or torch's."""
    if config.threads:
        return config
    recorded = run.read_config() if run is not None else None
    threads = recorded.get("fit", {}).get("threads") if isinstance(recorded, dict) else None
    return replace(config, threads=threads or torch.get_num_threads())


def _check_folder(run: RunFolder, about: dict[str, Any], resume: bool) -> None:
    if not resume:
        return run.refuse_unless_free()
    different = first_difference(run.read_config(), about)
    if different:
        raise MnemoscopeError(f"{run.config} is of another run: {different}")
    return None
