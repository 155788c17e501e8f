"""A model with its optimizer, and one update after another."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from mnemoscope.errors import MnemoscopeError
from mnemoscope.layers import parameter_groups
from mnemoscope.recurrence import State, leaves, rebuild
from mnemoscope.tasks import Batch, Task
from mnemoscope.training._budget import in_updates
from mnemoscope.training._checkpoint import Checkpoint, check_tensors_match
from mnemoscope.training._config import FitConfig
from mnemoscope.training._evaluation import detach_state, evaluate, move_batch, to_float32
from mnemoscope.training._optimization import (
    check_average,
    load_schedule_state,
    make_optimizer,
    make_schedule,
    schedule_state,
    state_names,
)
from mnemoscope.training._projections import Projection, stable_projection
from mnemoscope.training._ranks import Ranks, local_rank
from mnemoscope.training._reproducible import random_state, set_random_state


class _OpaqueState:
    """A state that Fabric does not look into: it would rebuild tuples, and states have types of their own."""

    def __init__(self, state: State | None) -> None:
        self.state = state


class _Objective(nn.Module):
    """The loss of one batch, with back-propagation cut every `bptt` steps (0: never)."""

    def __init__(self, model: nn.Module, task: Task, bptt: int) -> None:
        super().__init__()
        self.model = model
        self.task = task
        self.bptt = bptt

    def forward(
        self, inputs: Tensor, targets: Tensor, carried: _OpaqueState, share: float = 1.0
    ) -> tuple[Tensor, _OpaqueState]:
        """Return the loss times `share`, the part of the batch's predictions that these rows have, and the state."""
        state = carried.state
        outputs = []
        for piece in inputs.split(self.bptt or len(inputs)):
            output, state = self.model(piece, state)
            state = detach_state(state)
            outputs.append(output)
        joined = to_float32(torch.cat(outputs))
        if share == 0:  # the mean over no prediction is not a number
            return joined.sum() * 0, _OpaqueState(state)
        loss = self.task.loss(joined, targets)
        return loss if share == 1 else loss * share, _OpaqueState(state)


def _silence_hints() -> None:
    """Let Fabric not advise a lower precision of float32 on a GPU: what a run computes is in its configuration."""
    from lightning_utilities.core import rank_zero

    rank_zero.log.addFilter(_is_no_hint)


def _is_no_hint(record: logging.LogRecord) -> bool:
    return "Tensor Cores" not in record.getMessage()


class Learner:
    """Everything that an update depends on.

    `tensors` and `numbers` give it to a checkpoint; `restore` reads it back.
    """

    def __init__(
        self,
        model: nn.Module,
        task: Task,
        config: FitConfig,
        projections: Sequence[Projection] = (),
        ranks: Ranks | None = None,
    ) -> None:
        from lightning_fabric import Fabric  # takes longer to import than all the rest, and only training needs it

        self.model = model
        self.task = task
        self.config = config
        self.ranks = ranks or Ranks()
        self.updates_done = 0
        self.ranks.copy_from_first(list(model.state_dict().values()))

        # Projected gradient descent starts inside the set.
        self.projections = list(projections)
        if config.stable is not None:
            self.projections.append(stable_projection(config.stable))
        self._project()

        device = select_device(config)
        devices: Any = [local_rank()] if device == "cuda" and self.ranks.world > 1 else 1
        _silence_hints()
        self.fabric = Fabric(accelerator=device, devices=devices, precision=config.precision)
        milestones = [in_updates(milestone, task, config) for milestone in config.milestones]
        self._optimizer = make_optimizer(parameter_groups(model, config.lr), config)
        self._schedule = make_schedule(self._optimizer, config, milestones)
        self._objective, self._stepper = self.fabric.setup(_Objective(model, task, config.bptt), self._optimizer)
        self._stepper.zero_grad()  # gradients of a backward pass that the caller made are not this run's
        self._carried = _OpaqueState(None)
        model.train()

    def update(self) -> tuple[Tensor, Tensor]:
        """Make one update. Return the loss and the gradient norm before clipping, both still on the device."""
        # Gradients of `accumulate` batches.
        first_batch = self.updates_done * self.config.accumulate
        loss = torch.stack([self._backward(first_batch + i) for i in range(self.config.accumulate)]).mean()
        self.ranks.add_up([loss, *(p.grad for p in self.model.parameters() if p.grad is not None)])
        norm = self.fabric.clip_gradients(
            self._objective, self._stepper, max_norm=self.clip or float("inf"), error_if_nonfinite=False
        )
        assert norm is not None  # it would be for a clip by value

        # Weights, learning rate, projection.
        self._stepper.step()
        self._stepper.zero_grad()
        if not isinstance(self._schedule, ReduceLROnPlateau):
            self._schedule.step()
        self._project()
        self.updates_done += 1
        return loss, norm.detach()

    def _project(self) -> None:
        with torch.no_grad():
            for project in self.projections:
                project(self.model)

    def _backward(self, step: int) -> Tensor:
        batch_size = self.config.batch_size
        batch = self.task.batch(step, batch_size)
        share = 1.0
        if self.ranks.world > 1:
            batch, share = self._own_rows(batch)
        inputs, targets = self.fabric.to_device(batch)
        if self.task.resets_state(step, batch_size):
            self._carried = _OpaqueState(None)
        loss, self._carried = self._objective(inputs, targets, self._carried, share)
        self.fabric.backward(loss / self.config.accumulate)
        return loss.detach()

    def _own_rows(self, batch: Batch) -> tuple[Batch, float]:
        """This rank's sequences of a batch, and their share of its predictions, over which the loss is a mean."""
        rows = self.task.rows(batch, self.ranks.rows(batch.inputs.shape[1]))
        predictions = self.task.weight(batch.targets)
        share = self.task.weight(rows.targets) / predictions if predictions else 1 / self.ranks.world
        return rows, share

    def evaluate(self) -> dict[str, float]:
        """Return the metrics on held-out batches, after a step of the plateau schedule with their loss."""
        with self.fabric.autocast():
            metrics = evaluate(
                self.model,
                self.task,
                batch_size=self.config.batch_size,
                batches=self.config.evaluate_batches,
                ranks=self.ranks,
            )
        if isinstance(self._schedule, ReduceLROnPlateau):
            self._schedule.step(metrics["loss"])
        return metrics

    @property
    def clip(self) -> float:
        """The largest norm that a gradient keeps; 0 if it is not clipped."""
        return self.config.clip * (self.task.answer_share if self.config.scale_clip else 1.0)

    @property
    def lr(self) -> float:
        return float(self._optimizer.param_groups[0]["lr"])

    def tensors(self) -> dict[str, Tensor]:
        """Return weights, optimizer averages, carried states and random states, by name. All ranks call it together.

        Carried and random states are of every rank: those of the first under the usual names, of others as `rank1.…`.
        """
        averages = {
            f"{index}.{name}": tensor
            for index, state in self._optimizer.state_dict()["state"].items()
            for name, tensor in state.items()
            if tensor is not None
        }
        carried: dict[str, Tensor] = {}
        if self.task.carries_state and self._carried.state is not None:
            carried = {str(i): tensor for i, tensor in enumerate(leaves(self._carried.state))}
        parts = {"model": self.model.state_dict(), "optimizer": averages}
        for rank, own in enumerate(self.ranks.gather({"carried": carried, "random": random_state()})):
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
        carried = list(tensors_under(checkpoint, _of_rank("carried", self.ranks.rank)).values())
        inputs = self._first_inputs() if carried else None  # here: an error of the data is not one of the file
        try:
            self._restore_optimizer(tensors_under(checkpoint, "optimizer"), checkpoint.numbers["learner"])
            if inputs is not None:
                self._restore_carried(carried, inputs)
            set_random_state(tensors_under(checkpoint, _of_rank("random", self.ranks.rank)))
        except MnemoscopeError as error:
            raise MnemoscopeError(f"{where} does not fit this run's configuration: {error}") from error
        except (KeyError, ValueError, TypeError, RuntimeError, StopIteration) as error:
            raise MnemoscopeError(f"{where} does not fit this run's configuration: {error!r}") from error
        self.updates_done = checkpoint.update

    def _restore_optimizer(self, averages: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        in_order = [p for group in self._optimizer.param_groups for p in group["params"]]
        parameters = {str(index): parameter for index, parameter in enumerate(in_order)}
        content = self._optimizer.state_dict()
        content["state"] = {}
        for name, tensor in averages.items():
            index, key = name.split(".", 1)
            check_average(name, key, tensor, parameters.get(index))
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

    def _first_inputs(self) -> Tensor:
        batch = self.task.batch(0, self.config.batch_size)
        rows = self.task.rows(batch, self.ranks.rows(batch.inputs.shape[1]))
        return move_batch(rows, self.model).inputs

    def _restore_carried(self, tensors: list[Tensor], inputs: Tensor) -> None:
        # A state made by one step gives the structure that the tensors are put into.
        with torch.no_grad(), self.fabric.autocast():
            _, template = self.model(inputs[:1], None)
        if len(leaves(template)) != len(tensors):
            raise MnemoscopeError(f"{len(tensors)} carried tensors where this model has {len(leaves(template))}")
        for number, (tensor, like) in enumerate(zip(tensors, leaves(template), strict=True)):
            same_kind = tensor.is_floating_point() == like.is_floating_point()
            if not same_kind or tensor.dim() != like.dim() or tensor.shape[:2] != like.shape[:2]:
                raise MnemoscopeError(f"carried.{number} is {_describe(tensor)} where this model has {_describe(like)}")
        device = leaves(template)[0].device
        state = rebuild(template, [tensor.to(device) for tensor in tensors])
        # One step with it: what the model says of a state that does not fit it is said now.
        with torch.no_grad(), self.fabric.autocast():
            self.model(inputs[:1], state)
        self._carried = _OpaqueState(state)


def _describe(tensor: Tensor) -> str:
    return f"{list(tensor.shape)} of {tensor.dtype}"


def _of_rank(part: str, rank: int) -> str:
    return f"rank{rank}.{part}" if rank else part


def tensors_under(checkpoint: Checkpoint, part: str) -> dict[str, Tensor]:
    """Return the tensors of a checkpoint whose names begin with `part` and a dot, without that prefix."""
    prefix = f"{part}."
    named = {name.removeprefix(prefix): t for name, t in checkpoint.tensors.items() if name.startswith(prefix)}
    if part.endswith("carried"):  # numbered: 0, 1, ..., 10, in the order of the state's leaves
        return dict(sorted(named.items(), key=lambda item: (len(item[0]), item[0])))
    return named


def select_device(config: FitConfig) -> str:
    """Return the device, "cuda" or "cpu", on which a configuration trains on this machine."""
    if config.device == "cuda" and not torch.cuda.is_available():
        raise MnemoscopeError("device = 'cuda' is not available on this machine; use cpu or auto")
    if config.device == "cpu" or not torch.cuda.is_available():
        return "cpu"
    return "cuda"
