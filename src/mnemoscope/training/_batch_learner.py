"""Updates from batches: what `fit` makes of a model, a task and an optimizer."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mnemoscope.errors import MnemoscopeError
from mnemoscope.recurrence import State, leaves, rebuild
from mnemoscope.tasks import Batch, Split, Task
from mnemoscope.training._budget import in_updates, total_updates
from mnemoscope.training._checkpoint import Checkpoint
from mnemoscope.training._config import FitConfig
from mnemoscope.training._evaluation import (
    check_memory,
    detach_state,
    evaluate,
    move_batch,
    to_float32,
    with_carried_memory,
)
from mnemoscope.training._learner import Learner, select_device
from mnemoscope.training._projections import Projection
from mnemoscope.training._ranks import Ranks, local_rank


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
        joined = to_float32(torch.cat(outputs) if len(outputs) > 1 else outputs[0])  # logits of words are large
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


class BatchLearner(Learner):
    """Updates by the gradient of a task's loss on batches."""

    config: FitConfig

    def __init__(
        self,
        model: nn.Module,
        task: Task,
        config: FitConfig,
        projections: Sequence[Projection] = (),
        ranks: Ranks | None = None,
    ) -> None:
        from lightning_fabric import Fabric  # takes longer to import than all the rest, and only training needs it

        self.config = config
        check_memory(model, task, config.carry_memory)
        super().__init__(model, task, projections, ranks)
        device = select_device(config)
        devices: Any = [local_rank()] if device == "cuda" and self.ranks.world > 1 else 1
        _silence_hints()
        precision = "32-true" if config.precision == "tf32-true" else config.precision  # `fit` has set TF32
        self.fabric = Fabric(accelerator=device, devices=devices, precision=precision)
        self._objective, self._stepper = self.fabric.setup(_Objective(model, task, config.bptt), self._optimizer)
        self._stepper.zero_grad()  # gradients of a backward pass that the caller made are not this run's
        self._carried = _OpaqueState(None)

    @property
    def total(self) -> int:
        return total_updates(self.task, self.config)

    def in_updates(self, milestone: int) -> int:
        return in_updates(milestone, self.task, self.config)

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

        # Weights, learning rate, projection. With skip_nonfinite every gradient is checked, which waits for the device.
        if not self.may_skip or bool(norm.isfinite()):
            self._stepper.step()
            self.advance_schedule()
        else:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step")  # before any optimizer.step
                self.advance_schedule()
        self._stepper.zero_grad()
        return loss, norm.detach()

    def _backward(self, step: int) -> Tensor:
        batch_size = self.config.batch_size
        batch = self.task.batch(step, batch_size)
        share = 1.0
        if self.ranks.world > 1:
            batch, share = self._own_rows(batch)
        inputs, targets = self.fabric.to_device(batch)
        if self.task.resets_state(step, batch_size):
            self._carried = _OpaqueState(None)
        loss, after = self._objective(inputs, targets, self._carried, share)
        if self.task.carries_state:
            self._carried = _OpaqueState(with_carried_memory(after.state, self.config.carry_memory))
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
        metrics = self._evaluate("valid")
        self.note_evaluation(metrics["loss"])
        return metrics

    def evaluate_training_data(self) -> dict[str, float] | None:
        return self._evaluate("train") if self.config.evaluate_train else None

    def _evaluate(self, split: Split) -> dict[str, float]:
        with self.fabric.autocast():
            return evaluate(
                self.model,
                self.task,
                batch_size=self.config.batch_size,
                batches=self.config.evaluate_batches,
                split=split,
                carry_memory=self.config.carry_memory,
                ranks=self.ranks,
            )

    @property
    def clip(self) -> float:
        """The largest norm that a gradient keeps; 0 if it is not clipped."""
        return self.config.clip * (self.task.answer_share if self.config.scale_clip else 1.0)

    @property
    def may_skip(self) -> int:
        return self.config.skip_nonfinite

    def carried(self) -> dict[str, Tensor]:
        if not self.task.carries_state or self._carried.state is None:
            return {}
        return {str(i): tensor for i, tensor in enumerate(leaves(self._carried.state))}

    def restore(self, checkpoint: Checkpoint, where: str) -> None:
        # Made here: an error of the data is not one of the file.
        self._inputs = self._first_inputs() if self.task.carries_state else None
        super().restore(checkpoint, where)

    def restore_carried(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        if tensors and self._inputs is not None:
            self._restore_state(list(tensors.values()), self._inputs)

    def _first_inputs(self) -> Tensor:
        batch = self.task.batch(0, self.config.batch_size)
        rows = self.task.rows(batch, self.ranks.rows(batch.inputs.shape[1]))
        return move_batch(rows, self.model).inputs

    def _restore_state(self, tensors: list[Tensor], inputs: Tensor) -> None:
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
