"""Updates from batches: what `fit` makes of a model, a task and an optimizer."""

from __future__ import annotations

import math
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
    call,
    check_memory,
    detach_state,
    evaluate,
    move_batch,
    to_float32,
    with_carried_memory,
)
from mnemoscope.training._learner import Learner, select_device
from mnemoscope.training._model import SequenceModel
from mnemoscope.training._placement import Placement
from mnemoscope.training._projections import Projection
from mnemoscope.training._ranks import Ranks, local_rank


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
        self.config = config
        check_memory(model, task, config.carry_memory)
        super().__init__(model, task, projections, ranks)
        self._placement = Placement(config.precision, _device(config, self.ranks))
        self._placement.move_model(model)
        self._optimizer.zero_grad()  # gradients of a backward pass that the caller made are not this run's
        self._carried: State | None = None

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
        self.ranks.all_reduce([loss, *(p.grad for p in self.model.parameters() if p.grad is not None)])
        parameters = [p for group in self._optimizer.param_groups for p in group["params"]]
        norm = nn.utils.clip_grad_norm_(parameters, self.clip or math.inf)

        # Weights, learning rate, projection. With skip_nonfinite every gradient is checked, which waits for the device.
        if not self.may_skip or bool(norm.isfinite()):
            self._optimizer.step()
            self.advance_schedule()
        else:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step")  # before any optimizer.step
                self.advance_schedule()
        self._optimizer.zero_grad()
        return loss, norm.detach()

    def _backward(self, step: int) -> Tensor:
        batch_size = self.config.batch_size
        batch = self.task.batch(step, batch_size)
        share = 1.0
        if self.ranks.world_size > 1:
            batch, share = self._own_rows(batch)
        if self.task.resets_state(step, batch_size):
            self._carried = None
        loss, state = self._loss(self._placement.move_batch(batch), self._carried, share)
        if self.task.carries_state:
            self._carried = with_carried_memory(state, self.config.carry_memory)
        (loss / self.config.accumulate).backward()
        return loss.detach()

    def _loss(self, batch: Batch, state: State | None, share: float) -> tuple[Tensor, State | None]:
        """Return the loss of a batch and the state after it.

        The loss is multiplied by `share`, the part of the whole batch's predictions that these rows have.
        """
        with self._placement.computing():
            outputs, state = self._run_model(batch.inputs, state)
            joined = to_float32(outputs)  # logits of words are large
            if share == 0:  # the mean over no prediction is not a number
                loss = joined.sum() * 0
            else:
                loss = self.task.loss(joined, batch.targets)
                loss = loss if share == 1 else loss * share
        return self._placement.to_loss(loss), state

    def _run_model(self, inputs: Tensor, state: State | None) -> tuple[Tensor, State | None]:
        """Return the outputs and the state after them, with back-propagation cut every `bptt` steps (0: never).

        Our own network cuts its recurrent layer alone: its embedding and read-out, of many words the most of the work,
        then run once, and so do their gradients, which are as large as they are. Any other model, one that was wrapped
        included, is called piece by piece.
        """
        bptt = self.config.bptt or len(inputs)
        if bptt < len(inputs) and getattr(self.model.forward, "__func__", None) is SequenceModel.forward:
            outputs, state = call(self.model, inputs, state, bptt=bptt)
            return outputs, detach_state(state)
        pieces = []
        for piece in inputs.split(bptt):
            output, state = call(self.model, piece, state)
            state = detach_state(state)
            pieces.append(output)
        return torch.cat(pieces) if len(pieces) > 1 else pieces[0], state

    def _own_rows(self, batch: Batch) -> tuple[Batch, float]:
        """This rank's sequences of a batch, and their share of its predictions, over which the loss is a mean."""
        rows = self.task.rows(batch, self.ranks.rows(batch.inputs.shape[1]))
        predictions = self.task.weight(batch.targets)
        share = self.task.weight(rows.targets) / predictions if predictions else 1 / self.ranks.world_size
        return rows, share

    def evaluate(self) -> dict[str, float]:
        """Return the metrics on held-out batches, after a step of the plateau schedule with their loss."""
        metrics = self._evaluate("valid")
        self.note_evaluation(metrics["loss"])
        return metrics

    def evaluate_training_data(self) -> dict[str, float] | None:
        return self._evaluate("train") if self.config.evaluate_train else None

    def _evaluate(self, split: Split) -> dict[str, float]:
        with self._placement.computing():
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
        if not self.task.carries_state or self._carried is None:
            return {}
        return {str(i): tensor for i, tensor in enumerate(leaves(self._carried))}

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
        with torch.no_grad(), self._placement.computing():
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
        with torch.no_grad(), self._placement.computing():
            self.model(inputs[:1], state)
        self._carried = state


def _device(config: FitConfig, ranks: Ranks) -> torch.device:
    """The device of this process: the CPU, the current GPU or, of several processes on a machine, a GPU of its own."""
    if select_device(config) == "cpu":
        return torch.device("cpu")
    return torch.device("cuda", local_rank() if ranks.world_size > 1 else torch.cuda.current_device())


def _describe(tensor: Tensor) -> str:
    return f"{list(tensor.shape)} of {tensor.dtype}"
