"""Runs by their folders: start one, resume one, read one."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Literal, get_args

import torch
from torch import Tensor

from mnemoscope.errors import MnemoscopeError, check_count
from mnemoscope.tasks import Task
from mnemoscope.training._checkpoint import BEST, Checkpoint, check_tensors_match, checkpoints, read_checkpoint
from mnemoscope.training._config import FitConfig, LoopConfig, NetworkConfig, RunConfig
from mnemoscope.training._environment import AllowedChange
from mnemoscope.training._fit import fit
from mnemoscope.training._folder import RunFolder
from mnemoscope.training._learner import tensors_under
from mnemoscope.training._method import method_of
from mnemoscope.training._metrics import MetricsRecord, read_metrics
from mnemoscope.training._model import SequenceModel
from mnemoscope.training._progress import ProgressCallback, Summary, read_summary
from mnemoscope.training._snapshots import read_snapshot, recorded_updates
from mnemoscope.training._trajectory import read_trajectory
from mnemoscope.wording import counted

CheckpointName = Literal["last", "best"]


def train(config: RunConfig, folder: str | Path | None = None, callback: ProgressCallback | None = None) -> Summary:
    """Build the network of a configuration and train it. The same configuration gives the same run.

    Examples:
        >>> from mnemoscope.tasks import Copy
        >>> from mnemoscope.training import FitConfig, NetworkConfig, RunConfig, train
        >>> config = RunConfig(Copy(T=5), NetworkConfig("LSTM", hidden_size=16), FitConfig(updates=2, batch_size=4))
        >>> summary = train(config, "run")
    """
    if not isinstance(config, RunConfig):
        raise MnemoscopeError(f"train takes a RunConfig; got a {type(config).__name__}; fit trains a model of your own")
    return fit(initial_model(config), config.task, config.fit, folder, callback=callback)


def resume(
    folder: str | Path,
    callback: ProgressCallback | None = None,
    allow_changed: Collection[AllowedChange] = (),
    updates: int | None = None,
) -> Summary:
    """Continue a run that was stopped or killed, or try again one that diverged or failed.

    If it has ended otherwise, return its summary, unless it is given more updates: then it goes on, and on the CPU its
    weights are, bit for bit, those of a run that had that budget from the start.

    Args:
        folder: the run's folder.
        callback: called with the `Progress` after each update.
        allow_changed: "data" goes on with other data than the run began with, "metrics" with a metrics.jsonl that was
            lost or edited. Both are refused otherwise; the summary records them.
        updates: the new budget, counted from the run's beginning.
    """
    run = Run(folder)
    config = run.config
    return fit(
        initial_model(config),
        config.task,
        config.fit if updates is None else _with_updates(run, config.fit, updates),
        folder,
        callback=callback,
        resume=True,
        allow_changed=allow_changed,
    )


def _with_updates(run: Run, fit: LoopConfig, updates: int) -> LoopConfig:
    """Return the configuration with a larger budget; refuse what would not be a longer run of the same kind."""
    check_count("updates", updates)
    anew = f"train it anew by --config {run.path}/config.json"
    if not fit.updates or (isinstance(fit, FitConfig) and fit.epochs):
        unit = "epochs" if fit.updates else "frames"
        raise MnemoscopeError(f"the budget of {run.path} is in {unit}, not in updates; {anew} --{unit} N")
    if updates < fit.updates:
        raise MnemoscopeError(
            f"{run.path} has a budget of {counted(fit.updates, 'update')}; --updates {updates} must not be less"
        )
    summary = run.summary()
    if updates > fit.updates and summary is not None and summary.outcome == "solved" and fit.stop_when_solved:
        solved = (
            f"{run.path} solved its task after {counted(summary.updates, 'update')}, and its configuration ends it then"
        )
        raise MnemoscopeError(f"{solved}; {anew} --no-stop-when-solved")
    if fit.schedule == "plateau" and fit.updates % fit.evaluate_every and updates > fit.updates:
        why = "its plateau schedule counted an evaluation at the end, which a longer run does not make there"
        raise MnemoscopeError(f"{run.path} cannot go on: {why}; {anew} --updates {updates}")
    return replace(fit, updates=updates)


def initial_model(config: RunConfig) -> SequenceModel:
    """Return the network of a configuration as it is before the first update."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(config.fit.seed)
        return make_network(config.task, config.network, config.fit)


def make_network(task: Task, network: NetworkConfig, fit: LoopConfig | None = None) -> SequenceModel:
    """Return the network of a configuration with the sizes of a task, or what the task's own method makes of it."""
    method = method_of(task)
    return SequenceModel.for_task(task, network) if method is None else method.network(task, network, fit)


class Run:
    """A run's folder, read only.

    Everything in it is checked as it is read. A damaged file, or a folder that is not a run, raises a one-line error.

    Examples:
        >>> from mnemoscope.tasks import Copy
        >>> from mnemoscope.training import FitConfig, NetworkConfig, Run, RunConfig, train
        >>> config = RunConfig(Copy(T=5), NetworkConfig("LSTM", hidden_size=16), FitConfig(updates=2, batch_size=4))
        >>> summary = train(config, "run")
        >>> run = Run("run")
        >>> run.saved_update, type(run.model()).__name__
        (2, 'SequenceModel')
    """

    def __init__(self, folder: str | Path) -> None:
        self.files = RunFolder(folder)
        self.about = self.files.description()

    @property
    def path(self) -> Path:
        """The folder."""
        return self.files.path

    @property
    def config(self) -> RunConfig:
        """The configuration of the run; refused if its model or task was the user's own."""
        return self.about.config(self.path)

    @property
    def task(self) -> Task:
        """The task of the run's configuration."""
        return self.config.task

    def metrics(self) -> list[MetricsRecord]:
        """Return the records of metrics.jsonl."""
        return read_metrics(self.files.metrics)

    def summary(self) -> Summary | None:
        """Return how the run ended, or None if it has not."""
        return read_summary(self.files.summary) if self.files.summary.exists() else None

    @property
    def saved_update(self) -> int:
        """The update of the newest checkpoint; 0 if there is none."""
        return max((int(path.stem) for path in checkpoints(self.files.checkpoints)), default=0)

    def model(self, which: CheckpointName | int = "last") -> SequenceModel:
        """Return the network with its last weights, the best ones on held-out batches, or those of a snapshot.

        A snapshot is named by its update: `model(0)` has the weights that training began with.
        """
        model = initial_model(self.config)
        if isinstance(which, int):
            weights = self.snapshot(which)
            kept = self.config.fit.snapshot_weights
            if kept:
                raise MnemoscopeError(f"{self.path} has kept only {', '.join(kept)} in its snapshots: no whole network")
            check_tensors_match(weights, model.state_dict(), str(self.files.snapshots))
        else:
            weights = tensors_under(self.checkpoint(which), "model")
            check_tensors_match(weights, model.state_dict(), str(self.files.checkpoints))
        model.load_state_dict(weights)
        return model

    def checkpoint(self, which: CheckpointName = "last") -> Checkpoint:
        """Return the newest checkpoint that is not damaged, or the best one."""
        if which not in get_args(CheckpointName):
            raise MnemoscopeError(f"which = {which!r} is not allowed; it must be 'last', 'best' or a snapshot's update")
        if which == "best":
            return read_checkpoint(self.files.checkpoints / BEST)
        checkpoint = self.files.latest()
        if checkpoint is None:
            raise MnemoscopeError(f"{self.path} has no checkpoint yet")
        return checkpoint

    def snapshots(self) -> list[int]:
        """Return the updates of which there is a snapshot, in ascending order; see `FitConfig.snapshot_every`."""
        return recorded_updates(self.files.snapshots)

    def snapshot(self, update: int) -> dict[str, Tensor]:
        """Return the weights after an update, by their names in the model's `state_dict()`."""
        return read_snapshot(self.files.snapshots, update)

    def trajectory(self) -> tuple[list[int], Tensor]:
        """Return the recorded updates, and the parameters after each of them (updates, parameters)."""
        return read_trajectory(self.files.trajectory)
