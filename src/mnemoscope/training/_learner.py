"""A model with its optimizer: everything that the next update depends on, for a checkpoint and back."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from mnemoscope.errors import MnemoscopeError
from mnemoscope.layers import parameter_groups
from mnemoscope.tasks import Task
from mnemoscope.training._checkpoint import Checkpoint, check_tensors_match
from mnemoscope.training._config import LoopConfig
from mnemoscope.training._optimization import (
    check_optimizer_state,
    load_schedule_state,
    make_optimizer,
    make_schedule,
    schedule_state,
    state_names,
)
from mnemoscope.training._projections import Projection, stable_projection
from mnemoscope.training._ranks import Ranks
from mnemoscope.training._reproducible import random_state, set_random_state


class Learner(ABC):
    """Everything that an update depends on.

    `tensors` and `numbers` give it to a checkpoint; `restore` reads it back. A subclass says what an update is, what
    else it carries from one to the next, and how the network is evaluated.
    """

    config: LoopConfig

    def __init__(
        self, model: nn.Module, task: Task, projections: Sequence[Projection] = (), ranks: Ranks | None = None
    ) -> None:
        self.model = model
        self.task = task
        self.ranks = ranks or Ranks()
        self.updates_done = 0
        self.ranks.broadcast(list(model.state_dict().values()))

        # Projected gradient descent starts inside the set.
        self.projections = list(projections)
        if self.config.stable is not None:
            self.projections.append(stable_projection(self.config.stable))
        self._project()

        self._optimizer = make_optimizer(parameter_groups(model, self.config.lr), self.config)
        milestones = [self.in_updates(milestone) for milestone in self.config.milestones]
        self._schedule = make_schedule(self._optimizer, self.config, milestones)
        model.train()

    @property
    @abstractmethod
    def total(self) -> int:
        """The budget in updates."""

    @abstractmethod
    def update(self) -> tuple[Tensor, Tensor]:
        """Make one update. Return the loss and the gradient norm before clipping, both still on the device."""

    @abstractmethod
    def evaluate(self) -> dict[str, float]:
        """Return the metrics on held-out data, after a step of the plateau schedule."""

    def evaluate_training_data(self) -> dict[str, float] | None:
        """Return the metrics on the training data, if they are to be recorded too."""
        return None

    def in_updates(self, milestone: int) -> int:
        """Return a milestone of the configuration in updates, if it is counted in something else."""
        return milestone

    def figures(self) -> dict[str, float]:
        """Return what else the record of an update says, by name."""
        return {}

    @abstractmethod
    def carried(self) -> dict[str, Tensor]:
        """Return the tensors that one update hands to the next beside weights and optimizer state, by number."""

    @abstractmethod
    def restore_carried(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        """Take back what `carried` and `numbers` returned; what does not fit raises an error."""

    def advance_schedule(self) -> None:
        """Set the learning rate of the next update, and keep the weights inside their set."""
        if not isinstance(self._schedule, ReduceLROnPlateau):
            self._schedule.step()
        self._project()
        self.updates_done += 1

    def note_evaluation(self, loss: float) -> None:
        """Tell the plateau schedule how an evaluation went."""
        if isinstance(self._schedule, ReduceLROnPlateau):
            self._schedule.step(loss)

    def _project(self) -> None:
        with torch.no_grad():
            for project in self.projections:
                project(self.model)

    @property
    def clip(self) -> float:
        """The largest norm that a gradient keeps; 0 if it is not clipped."""
        return self.config.clip

    @property
    def may_skip(self) -> int:
        """How many updates in a row may leave the weights alone because their gradient is not finite."""
        return 0

    @property
    def lr(self) -> float:
        """The learning rate of the next update."""
        return float(self._optimizer.param_groups[0]["lr"])

    def tensors(self) -> dict[str, Tensor]:
        """Return weights, optimizer state, carried states and random states, by name. All ranks call it together.

        Carried and random states are of every rank: those of the first under the usual names, of others as `rank1.…`.
        """
        optimizer_state = {
            f"{index}.{name}": tensor
            for index, state in self._optimizer.state_dict()["state"].items()
            for name, tensor in state.items()
            if tensor is not None
        }
        parts = {"model": self.model.state_dict(), "optimizer": optimizer_state}
        for rank, own in enumerate(self.ranks.all_gather({"carried": self.carried(), "random": random_state()})):
            parts |= {_of_rank(part, rank): named for part, named in own.items()}
        return {f"{part}.{name}": tensor for part, named in parts.items() for name, tensor in named.items()}

    def numbers(self) -> dict[str, Any]:
        """Return what else the next update depends on, for JSON."""
        rates = [group["lr"] for group in self._optimizer.param_groups]
        return {"lr": rates, "schedule": schedule_state(self._schedule)}

    def restore(self, checkpoint: Checkpoint, where: str) -> None:
        """Continue from `checkpoint`, which was read from the file `where`."""
        weights = tensors_under(checkpoint, "model")
        check_tensors_match(weights, self.model.state_dict(), where)
        self.model.load_state_dict(weights)
        carried = tensors_under(checkpoint, _of_rank("carried", self.ranks.rank))
        try:
            numbers = checkpoint.numbers["learner"]
            self._restore_optimizer(tensors_under(checkpoint, "optimizer"), numbers)
            self.restore_carried(carried, numbers)
            set_random_state(tensors_under(checkpoint, _of_rank("random", self.ranks.rank)))
        except MnemoscopeError as error:
            raise MnemoscopeError(f"{where} does not fit this run's configuration: {error}") from error
        except (KeyError, ValueError, TypeError, RuntimeError, StopIteration) as error:
            raise MnemoscopeError(f"{where} does not fit this run's configuration: {error!r}") from error
        self.updates_done = checkpoint.update

    def _restore_optimizer(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        in_order = [p for group in self._optimizer.param_groups for p in group["params"]]
        parameters = {str(index): parameter for index, parameter in enumerate(in_order)}
        content = self._optimizer.state_dict()
        content["state"] = {}
        for name, tensor in tensors.items():
            index, key = name.split(".", 1)
            check_optimizer_state(name, key, tensor, parameters.get(index))
            content["state"].setdefault(int(index), {})[key] = tensor
        names = state_names(self.config)
        for index, state in content["state"].items():
            if state.keys() != names:
                raise MnemoscopeError(
                    f"optimizer.{index} has {', '.join(sorted(state))} where {self.config.optimizer} has "
                    f"{', '.join(sorted(names))}"
                )
        for group, rate in zip(content["param_groups"], numbers["lr"], strict=True):
            group["lr"] = float(rate)
        self._optimizer.load_state_dict(content)
        load_schedule_state(self._schedule, numbers["schedule"])


def _of_rank(part: str, rank: int) -> str:
    return f"rank{rank}.{part}" if rank else part


def tensors_under(checkpoint: Checkpoint, part: str) -> dict[str, Tensor]:
    """Return the tensors of a checkpoint whose names begin with `part` and a dot, without that prefix."""
    prefix = f"{part}."
    named = {name.removeprefix(prefix): t for name, t in checkpoint.tensors.items() if name.startswith(prefix)}
    if part.endswith("carried"):  # numbered: 0, 1, ..., 10, in the order of the state's leaves
        return dict(sorted(named.items(), key=lambda item: (len(item[0]), item[0])))
    return named


def device_name(device: str = "cuda") -> str:
    """Return the name of this machine's GPU, or, without one or for "cpu", how many CPUs it has."""
    if device == "cuda" and torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return f"{os.cpu_count()} CPUs"


def select_device(config: LoopConfig) -> str:
    """Return the device, "cuda" or "cpu", on which a configuration trains on this machine."""
    if config.device == "cuda" and not torch.cuda.is_available():
        raise MnemoscopeError("device = 'cuda' is not available on this machine; use cpu or auto")
    if config.device == "cpu" or not torch.cuda.is_available():
        return "cpu"
    return "cuda"
