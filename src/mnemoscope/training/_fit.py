"""fit(): train a model on a task, in a folder from which a killed run can be resumed."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import get_args

import torch
from torch import nn

from mnemoscope.errors import MnemoscopeError
from mnemoscope.tasks import Task
from mnemoscope.training._batch_learner import BatchLearner
from mnemoscope.training._config import FitConfig, LoopConfig, check_config, check_task, default_config
from mnemoscope.training._environment import AllowedChange, Environment, this_environment
from mnemoscope.training._folder import RunFolder
from mnemoscope.training._learner import Learner, select_device
from mnemoscope.training._method import method_of
from mnemoscope.training._progress import Diverged, ProgressCallback, Summary, read_summary
from mnemoscope.training._projections import Projection
from mnemoscope.training._ranks import Ranks, joined_ranks
from mnemoscope.training._reproducible import deterministic, reproducible, seed_of_rank, tf32_products
from mnemoscope.training._run_description import RunDescription, describe_run, first_difference
from mnemoscope.training._session import Session
from mnemoscope.training._snapshots import check_chosen


def fit(
    model: nn.Module,
    task: Task,
    config: LoopConfig | None = None,
    folder: str | Path | None = None,
    *,
    projections: Sequence[Projection] = (),
    callback: ProgressCallback | None = None,
    resume: bool = False,
    allow_changed: Collection[AllowedChange] = (),
) -> Summary:
    """Train `model` on `task` and return how the run ended.

    Args:
        model: called as `model(inputs, state) -> (outputs, state)`, inputs (T, B, ...), outputs (T, B, output_size).
        task: source of batches, loss and metrics.
        config: optimizer, schedule, budget, and how often to evaluate and save; a `FitConfig`, or what the task's own
            method takes.
        folder: where config.json, metrics.jsonl, checkpoints/ and summary.json go; without it nothing is written.
        projections: called on the model after each update, to keep it inside a set.
        callback: called with the `Progress` after each update; it may raise `Stop`.
        resume: continue the run in `folder`. On the CPU the weights and metrics are then, bit for bit, those of a run
            that was never stopped. If `config` has more updates than the run, it goes on beyond its end.
        allow_changed: what may have changed since the run that is resumed was stopped: "data", or "metrics" for a
            metrics.jsonl that was lost or edited. Either is refused otherwise; the summary records it.

    Examples:
        >>> from mnemoscope.tasks import Copy
        >>> from mnemoscope.training import FitConfig, NetworkConfig, SequenceModel, fit
        >>> task = Copy(T=5)
        >>> model = SequenceModel.for_task(task, NetworkConfig("RelRNN", hidden_size=16))
        >>> summary = fit(model, task, FitConfig(updates=2, batch_size=4), "run")
        >>> summary.outcome, summary.updates
        ('budget spent', 2)
    """
    check_task(task)
    _check_model(model, projections)
    _check_allowed(allow_changed)
    if resume and folder is None:
        raise MnemoscopeError("resume=True needs the folder of the run")
    run = None if folder is None else RunFolder(folder)
    given = config or default_config(task)
    check_config(given, task)
    with ExitStack() as stack:
        ranks = stack.enter_context(joined_ranks())
        config = ranks.on_first(lambda: _with_threads(_with_ranks(given, ranks), run if resume else None))
        stack.enter_context(reproducible(seed_of_rank(config.seed, ranks.rank), config.threads))
        if select_device(config) == "cpu":
            stack.enter_context(deterministic())
        elif config.precision == "tf32-true":
            stack.enter_context(tf32_products())

        # Find whatever is wrong before the folder is created or changed: its content, the data, the configuration.
        description = describe_run(model, task, config, Environment())
        if run is not None:
            expected = description
            description = ranks.on_first(lambda: _check_folder(run, expected, resume))
            ended = ranks.on_first(lambda: _summary_of(run, description) if resume else None)
            if ended is not None:
                return ended
        first_batch = task.batch(0, config.batch_size if isinstance(config, FitConfig) else 1)
        environment = this_environment(task, first_batch, config.threads)
        if not resume:
            description = replace(description, environment=environment)
        learner = _make_learner(model, task, config, projections, ranks)
        check_chosen(model, config.snapshot_weights)
        if not resume:
            _check_takes_snapshots(config)

        if run is not None:
            ranks.on_first(lambda: stack.enter_context(run.locked()))
        session = Session(learner, run, description, environment, callback)
        try:
            if resume:
                session.restore(allow_changed)
            else:
                session.begin()
            return session.run()
        except Diverged as error:
            session.note_divergence(error)
            raise


def _check_takes_snapshots(config: LoopConfig) -> None:
    """Refuse the names of weights to keep in snapshots where none is taken."""
    if config.snapshot_weights and not (config.snapshot_every or config.snapshot_at):
        names = " ".join(config.snapshot_weights)
        raise MnemoscopeError(f"snapshot-weights = {names} needs snapshot-every or snapshot-at: no snapshot is taken")


def _make_learner(
    model: nn.Module, task: Task, config: LoopConfig, projections: Sequence[Projection], ranks: Ranks
) -> Learner:
    method = method_of(task)
    if method is None:
        assert isinstance(config, FitConfig)
        return BatchLearner(model, task, config, projections, ranks)
    if ranks.world_size > 1:
        raise MnemoscopeError(f"{task.name} is trained by one process; start it without torchrun")
    return method.learner(model, task, config)


def _with_ranks(config: LoopConfig, ranks: Ranks) -> LoopConfig:
    """Return the configuration with its number of processes, as torchrun started them; refuse any other number."""
    if config.ranks not in (1, ranks.world_size):
        raise MnemoscopeError(
            f"ranks = {config.ranks}, but {ranks.world_size} process{'es' if ranks.world_size > 1 else ''} started; "
            f"use torchrun --nproc-per-node {config.ranks} -m mnemoscope …"
        )
    if isinstance(config, FitConfig):
        ranks.rows(config.batch_size)
    return replace(config, ranks=ranks.world_size)


def _with_threads(config: LoopConfig, run: RunFolder | None) -> LoopConfig:
    """Return the configuration with its number of threads filled in: the resumed run's, or torch's choice."""
    if config.threads:
        return config
    recorded = run.description().threads if run is not None else 0
    return replace(config, threads=recorded or torch.get_num_threads())


def _check_model(model: nn.Module, projections: Sequence[Projection]) -> None:
    if not isinstance(model, nn.Module):
        what = f"the class {model.__name__}" if isinstance(model, type) else f"a {type(model).__name__}"
        raise MnemoscopeError(f"fit trains an nn.Module; got {what}")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        name = type(model).__name__
        raise MnemoscopeError(f"{name} has no parameter that requires a gradient: there is nothing to train")
    if not isinstance(projections, Sequence):
        raise MnemoscopeError(f"projections are a list of functions of the model; got a {type(projections).__name__}")


def _check_allowed(allow_changed: Collection[AllowedChange]) -> None:
    for what in allow_changed:
        if what not in get_args(AllowedChange):
            allowed = " and ".join(get_args(AllowedChange))
            raise MnemoscopeError(f"allow-changed = {what!r} is not allowed; what may change are {allowed}")


def _summary_of(run: RunFolder, description: RunDescription) -> Summary | None:
    """Return how the run ended; None if it has not, if it is given more updates, or if it diverged or failed."""
    if not run.summary.exists() or run.description() != description:
        return None
    summary = read_summary(run.summary)
    return None if summary.is_failure else summary


def _check_folder(run: RunFolder, description: RunDescription, resume: bool) -> RunDescription:
    """Refuse a folder that is not empty or, to resume, one that holds another run. Return the run's description.

    That of a resumed run is the recorded one, whose hash its checkpoints hold, with the larger budget if it has one.
    """
    if not resume:
        run.require_empty()
        return description
    recorded = run.description()
    longer = recorded.with_more_updates(description.fit.get("updates"))
    difference = first_difference(longer, description, run.config)
    if difference:
        raise MnemoscopeError(f"{run.config} is of another run: {difference}")
    return longer
