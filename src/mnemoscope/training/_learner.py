"""A model, its optimiser, and one update after another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from mnemoscope.errors import MnemoscopeError
from mnemoscope.layers import parameter_groups
from mnemoscope.recurrence import State, leaves, rebuild
from mnemoscope.tasks import Task
from mnemoscope.training._checkpoint import Checkpoint, fit_tensors
from mnemoscope.training._config import FitConfig
from mnemoscope.training._evaluation import cut, evaluate, place, widen
from mnemoscope.training._optimization import make_optimizer, make_schedule, schedule_numbers, set_schedule_numbers
from mnemoscope.training._projections import Projection, stable_projection
from mnemoscope.training._reproducible import random_state, set_random_state


class _Carried:
    """A state that Fabric does not look into: it would take tuples apart, and states have types of their own."""

    def __init__(self, state: State | None) -> None:
        self.state = state


class _Objective(nn.Module):
    """The loss of one batch, back-propagation cut every `bptt` steps (0: never)."""

    def __init__(self, model: nn.Module, task: Task, bptt: int) -> None:
        super().__init__()
        self.model, self.task, self.bptt = model, task, bptt

    def forward(self, inputs: Tensor, targets: Tensor, carried: _Carried) -> tuple[Tensor, _Carried]:
        state, outputs = carried.state, []
        for piece in inputs.split(self.bptt or len(inputs)):
            output, state = self.model(piece, state)
            state = cut(state)
            outputs.append(output)
        return self.task.loss(widen(torch.cat(outputs)), targets), _Carried(state)


class Learner:
    """All that an update depends on: `tensors` and `numbers` give it to a checkpoint, `restore` takes it back."""

    def __init__(self, model: nn.Module, task: Task, config: FitConfig, projections: Sequence[Projection] = ()) -> None:
        from lightning_fabric import Fabric  # takes longer to import than all the rest, and only training needs it

        self.model, self.task, self.config = model, task, config
        self.projections = [*projections, *([] if config.stable is None else [stable_projection(config.stable)])]
        self.done = 0  # updates
        self._project()  # projected descent starts inside the set
        self.fabric = Fabric(accelerator=device_of(config), devices=1, precision=config.precision)
        self._optimizer = make_optimizer(parameter_groups(model, config.lr), config)
        self._schedule = make_schedule(self._optimizer, config)
        self._objective, self._stepper = self.fabric.setup(_Objective(model, task, config.bptt), self._optimizer)
        self._stepper.zero_grad()  # what a caller's own backward left behind is not this run's
        self._carried = _Carried(None)
        model.train()

    def update(self) -> tuple[Tensor, Tensor]:
        """One update; the loss and the norm of its gradient before clipping, both still on the device."""
        losses = [self._backward(self.done * self.config.accumulate + i) for i in range(self.config.accumulate)]
        limit = self.config.clip or float("inf")
        norm = self.fabric.clip_gradients(self._objective, self._stepper, max_norm=limit, error_if_nonfinite=False)
        self._stepper.step()
        self._stepper.zero_grad()
        if not isinstance(self._schedule, ReduceLROnPlateau):
            self._schedule.step()
        self._project()
        self.done += 1
        assert norm is not None  # it is for a clip by value only
        return torch.stack(losses).mean(), norm.detach()

    def _project(self) -> None:
        with torch.no_grad():
            for project in self.projections:
                project(self.model)

    def _backward(self, step: int) -> Tensor:
        size = self.config.batch_size
        inputs, targets = self.fabric.to_device(self.task.batch(step, size))
        carried = _Carried(None) if self.task.starts_anew(step, size) else self._carried
        loss, self._carried = self._objective(inputs, targets, carried)
        self.fabric.backward(loss / self.config.accumulate)
        return loss.detach()

    def evaluate(self) -> dict[str, float]:
        """The metrics on held-out batches; the plateau schedule hears of them."""
        with self.fabric.autocast():
            metrics = evaluate(
                self.model, self.task, batch_size=self.config.batch_size, batches=self.config.evaluate_batches
            )
        if isinstance(self._schedule, ReduceLROnPlateau):
            self._schedule.step(metrics["loss"])
        return metrics

    @property
    def lr(self) -> float:
        return float(self._optimizer.param_groups[0]["lr"])

    def tensors(self) -> dict[str, Tensor]:
        """Weights, the optimiser's averages, carried state and random state, by name."""
        averages = {
            f"{index}.{name}": tensor
            for index, state in self._optimizer.state_dict()["state"].items()
            for name, tensor in state.items()
            if tensor is not None
        }
        kept = self.task.carries_state and self._carried.state is not None
        carried = {str(i): tensor for i, tensor in enumerate(leaves(self._carried.state))} if kept else {}
        parts = {"model": self.model.state_dict(), "optimizer": averages, "carried": carried, "random": random_state()}
        return {f"{part}.{name}": tensor for part, named in parts.items() for name, tensor in named.items()}

    def numbers(self) -> dict[str, Any]:
        """What else the next update depends on, for JSON."""
        rates = [group["lr"] for group in self._optimizer.param_groups]
        return {"lr": rates, "schedule": schedule_numbers(self._schedule)}

    def restore(self, checkpoint: Checkpoint, where: str) -> None:
        """Become the learner that wrote `checkpoint`."""
        fit_tensors(part_of(checkpoint, "model"), self.model.state_dict(), where)
        self.model.load_state_dict(part_of(checkpoint, "model"))
        try:
            self._restore_optimizer(part_of(checkpoint, "optimizer"), checkpoint.numbers["learner"])
            self._restore_carried(list(part_of(checkpoint, "carried").values()))
            set_random_state(part_of(checkpoint, "random"))
        except MnemoscopeError:
            raise
        except (KeyError, ValueError, TypeError, RuntimeError, StopIteration) as error:
            raise MnemoscopeError(f"{where} does not fit this run's configuration: {error!r}") from error
        self.done = checkpoint.update

    def _restore_optimizer(self, averages: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        parameters = [p for group in self._optimizer.param_groups for p in group["params"]]
        content = self._optimizer.state_dict()
        content["state"] = {}
        for name, tensor in averages.items():
            index, key = name.split(".", 1)
            if tensor.dim() and tensor.shape != parameters[int(index)].shape:
                raise ValueError(f"{name} is {list(tensor.shape)}")
            content["state"].setdefault(int(index), {})[key] = tensor
        for group, rate in zip(content["param_groups"], numbers["lr"], strict=True):
            group["lr"] = float(rate)
        self._optimizer.load_state_dict(content)
        set_schedule_numbers(self._schedule, numbers["schedule"])

    def _restore_carried(self, tensors: list[Tensor]) -> None:
        if not tensors:
            return
        inputs, _ = place(self.task.batch(0, self.config.batch_size), self.model)
        with torch.no_grad(), self.fabric.autocast():
            _, template = self.model(inputs[:1], None)  # only its structure is used
        if len(leaves(template)) != len(tensors):
            raise ValueError(f"{len(tensors)} carried tensors where this model has {len(leaves(template))}")
        device = leaves(template)[0].device
        self._carried = _Carried(rebuild(template, [tensor.to(device) for tensor in tensors]))


def part_of(checkpoint: Checkpoint, part: str) -> dict[str, Tensor]:
    """The tensors of a checkpoint under one heading, in the order they were put in."""
    named = {name.partition(".")[2]: t for name, t in checkpoint.tensors.items() if name.startswith(f"{part}.")}
    return dict(sorted(named.items(), key=lambda item: (len(item[0]), item[0]))) if part == "carried" else named


def device_of(config: FitConfig) -> str:
    """Where a configuration trains on this machine."""
    if config.device == "cuda" and not torch.cuda.is_available():
        raise MnemoscopeError("device = 'cuda' is not available on this machine; use cpu or auto")
    return "cuda" if config.device != "cpu" and torch.cuda.is_available() else "cpu"
