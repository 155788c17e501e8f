"""How well a network does on batches it was not taught."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from mnemoscope.errors import MnemoscopeError
from mnemoscope.recurrence import State, detach
from mnemoscope.tasks import Batch, Split, Task

ENDLESS_BATCHES = 8  # of a task that makes new sequences for ever


@torch.no_grad()
def evaluate(
    model: nn.Module,
    task: Task,
    *,
    batch_size: int = 64,
    batches: int | None = None,
    split: Split = "valid",
    watch: Callable[[int, int], object] = lambda done, total: None,
) -> dict[str, float]:
    """The task's metrics of `model` on held-out batches: all of the split, or 8 where there is no end of them.

    The model is called as `model(inputs, state) -> (outputs, state)`; its mode is left as it was found. `watch` hears
    after each batch how many are done, of how many.
    """
    training = model.training
    model.eval()
    try:
        return _evaluate(model, task, batch_size, held_out_batches(task, batch_size, batches, split), split, watch)
    finally:
        model.train(training)


def _evaluate(
    model: nn.Module, task: Task, size: int, batches: int, split: Split, watch: Callable[[int, int], object]
) -> dict[str, float]:
    state: State | None = None
    found, weights = [], []
    for step in range(batches):
        inputs, targets = place(task.batch(step, size, split), model)
        state = None if task.starts_anew(step, size, split) else state
        outputs, state = model(inputs, state)
        state = cut(state)
        found.append(task.metrics(widen(outputs), targets))
        weights.append(task.weight(targets))
        watch(step + 1, batches)
    return task.combine(found, weights)


def held_out_batches(task: Task, size: int, batches: int | None, split: Split) -> int:
    """How many batches to evaluate on, never more than the split has."""
    there = task.steps_per_epoch(size, split)
    if there is None:
        return batches or ENDLESS_BATCHES
    if there == 0:
        raise MnemoscopeError(f"batch-size = {size} is more than the {split} split of {task.name} has; use less")
    return min(batches or there, there)


def place(batch: Batch, model: nn.Module) -> Batch:
    """The batch where the model is, its real numbers in the model's format."""
    weight = next(model.parameters())
    return Batch(*(t.to(weight.device, weight.dtype if t.is_floating_point() else None) for t in batch))


def cut(state: State | None) -> State | None:
    """The state without its past; a model may have none."""
    return None if state is None else detach(state)


def widen(outputs: Tensor) -> Tensor:
    """Half-precision outputs as float32: a loss is a sum over many steps."""
    return outputs.float() if outputs.dtype in (torch.bfloat16, torch.float16) else outputs
