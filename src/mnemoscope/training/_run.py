"""Runs by their folders: begin one, continue one, read one."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from mnemoscope.errors import MnemoscopeError
from mnemoscope.tasks import Task
from mnemoscope.training._checkpoint import Checkpoint, fit_tensors, read_checkpoint
from mnemoscope.training._config import RunConfig
from mnemoscope.training._fit import fit
from mnemoscope.training._folder import RunFolder
from mnemoscope.training._learner import part_of
from mnemoscope.training._metrics import Record, read_metrics
from mnemoscope.training._model import SequenceModel
from mnemoscope.training._progress import Summary, Watch, read_summary
from mnemoscope.training._run_description import refuse_own
from mnemoscope.training._trajectory import read_trajectory

Which = Literal["last", "best"]


def train(config: RunConfig, folder: str | Path | None = None, watch: Watch | None = None) -> Summary:
    """Make the network of a configuration and teach it; the same configuration gives the same run."""
    return fit(_first_model(config), config.task, config.fit, folder, watch=watch)


def resume(folder: str | Path, watch: Watch | None = None) -> Summary:
    """Continue a run that was stopped or killed; of one that has ended, its summary."""
    config = Run(folder).config
    return fit(_first_model(config), config.task, config.fit, folder, watch=watch, resume=True)


def _first_model(config: RunConfig) -> SequenceModel:
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(config.fit.seed)
        return SequenceModel.for_task(config.task, config.network)


class Run:
    """A run's folder, read only.

    Everything in it is checked as it is read; what is damaged or is no run raises one line that says so.
    """

    def __init__(self, folder: str | Path) -> None:
        self.files = RunFolder(folder)
        self.about = self.files.read_config()

    @property
    def path(self) -> Path:
        return self.files.path

    @property
    def config(self) -> RunConfig:
        """What was run, where it was made of this library's parts."""
        refuse_own(self.about, str(self.path))
        return RunConfig.from_plain(self.about, str(self.files.config))

    @property
    def task(self) -> Task:
        return self.config.task

    def metrics(self) -> list[Record]:
        """The records of metrics.jsonl."""
        return read_metrics(self.files.metrics)

    def summary(self) -> Summary | None:
        """How the run ended, or None if it has not."""
        return read_summary(self.files.summary) if self.files.summary.exists() else None

    def model(self, which: Which = "last") -> SequenceModel:
        """The network with its last weights, or those with which it did best on held-out batches."""
        model, checkpoint = _first_model(self.config), self.checkpoint(which)
        weights = part_of(checkpoint, "model")
        fit_tensors(weights, model.state_dict(), str(self.files.checkpoints))
        model.load_state_dict(weights)
        return model

    def checkpoint(self, which: Which = "last") -> Checkpoint:
        """The newest sound checkpoint, or the best one."""
        best = self.files.checkpoints / "best.json"
        found = read_checkpoint(best) if which == "best" else self.files.latest(lambda checkpoint: None)
        if found is None:
            raise MnemoscopeError(f"{self.path} has no checkpoint yet")
        return found

    def trajectory(self) -> tuple[list[int], Tensor]:
        """The recorded updates and the parameters after each, (updates, parameters)."""
        return read_trajectory(self.files.trajectory)
