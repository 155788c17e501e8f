"""Evaluation of a network on held-out batches, or on those that it was trained on."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from mnemoscope.errors import MnemoscopeError, check_count
from mnemoscope.layers import Layer, trim_memory
from mnemoscope.recurrence import State, detach
from mnemoscope.schema import convert
from mnemoscope.tasks import Batch, Split, Task
from mnemoscope.training._config import check_task
from mnemoscope.training._method import method_of
from mnemoscope.training._ranks import Ranks

DEFAULT_BATCHES = 8  # for a task that generates data endlessly

BatchCallback = Callable[[int, int], object]


@torch.no_grad()
def evaluate(
    model: nn.Module,
    task: Task,
    *,
    batch_size: int = 64,
    batches: int | None = None,
    split: Split = "valid",
    callback: BatchCallback = lambda done, total: None,
    carry_memory: int | None = None,
    ranks: Ranks | None = None,
) -> dict[str, float]:
    """Return the task's metrics for `model` on one split.

    Args:
        model: called as `model(inputs, state) -> (outputs, state)` in eval mode; its mode is restored afterwards.
        task: source of the batches and of the metrics.
        batch_size: sequences in a batch.
        batches: how many batches; by default all of the split, or 8 if the task generates data endlessly.
        split: "train", "valid" or "test". Every sequence of it counts, also those that training drops because they do
            not fill a batch.
        callback: called as `callback(done, total)` after each batch.
        carry_memory: states that an attentive layer's memory keeps from one batch of running text to the next; by
            default all, which is refused where the memory would grow without end.
        ranks: the processes that share the work; by default this one has it all.

    Examples:
        >>> from mnemoscope.tasks import Copy
        >>> from mnemoscope.training import NetworkConfig, SequenceModel, evaluate
        >>> task = Copy(T=5)
        >>> model = SequenceModel.for_task(task, NetworkConfig("GRU", hidden_size=16))
        >>> sorted(evaluate(model, task, batch_size=4, batches=1))
        ['accuracy', 'loss']
    """
    check_task(task)
    check_count("batch_size", batch_size)
    for name, value, least in (("batches", batches, 1), ("carry_memory", carry_memory, 0)):
        if value is not None:
            check_count(name, value, least)
    convert(Split, split, "split")
    training = model.training
    method = method_of(task)
    model.eval()
    try:
        if method is not None:
            return method.evaluate(model, task, batch_size=batch_size, batches=batches, split=split, callback=callback)
        check_memory(model, task, carry_memory)
        total = held_out_batches(task, batch_size, batches, split)
        return _evaluate(model, task, batch_size, total, split, callback, carry_memory, ranks or Ranks())
    finally:
        model.train(training)


def _evaluate(
    model: nn.Module,
    task: Task,
    batch_size: int,
    batches: int,
    split: Split,
    callback: BatchCallback,
    carry_memory: int | None,
    ranks: Ranks,
) -> dict[str, float]:
    """Evaluate this rank's batches, or its rows of each where the state is carried from batch to batch; combine all."""
    state: State | None = None
    measured: list[_Measured] = []
    for step in range(batches):
        if not task.carries_state and step % ranks.world_size != ranks.rank:
            continue
        batch = task.evaluation_batch(step, batch_size, split)
        if task.carries_state and ranks.world_size > 1:
            batch = task.rows(batch, ranks.rows(batch.inputs.shape[1]))
        inputs, targets = move_batch(batch, model)
        if task.resets_state(step, batch_size, split):
            state = None
        outputs, state = call(model, inputs, state)
        state = with_carried_memory(detach_state(state), carry_memory)
        measured.append(_Measured(step, task.metrics(to_float32(outputs), targets), task.weight(targets)))
        callback(step + 1, batches)
    together = sorted((part for parts in ranks.all_gather(measured) for part in parts), key=lambda part: part.step)
    return task.combine([part.metrics for part in together], [part.weight for part in together])


class _Measured(NamedTuple):
    """The metrics of one batch, or of a rank's rows of it."""

    step: int
    metrics: dict[str, float]
    weight: float


def call(model: nn.Module, inputs: Tensor, state: State | None, **options: int) -> tuple[Tensor, State | None]:
    """Return a model's outputs and its state; refuse one that returns something else, such as its outputs alone."""
    result = model(inputs, state, **options)
    if not isinstance(result, tuple | list) or len(result) != 2:
        given = f"a {type(result).__name__}" + (f" of {len(result)}" if isinstance(result, tuple | list) else "")
        name = type(model).__name__
        raise MnemoscopeError(f"{name} returned {given}; a model that is trained must return (outputs, state)")
    outputs, state = result
    return outputs, state


def held_out_batches(task: Task, batch_size: int, batches: int | None, split: Split) -> int:
    """Return how many batches to evaluate on: what was asked for, but never more than the split has."""
    available = task.evaluation_steps(batch_size, split)
    if available is None:
        return batches or DEFAULT_BATCHES
    if available == 0:
        raise MnemoscopeError(f"batch-size = {batch_size} is more than the {split} split of {task.name} has; use less")
    return min(batches or available, available)


def move_batch(batch: Batch, model: nn.Module) -> Batch:
    """Return the batch on the model's device, its floating-point tensors in the model's dtype."""
    weight = next(model.parameters())

    def move(tensor: Tensor) -> Tensor:
        return tensor.to(weight.device, weight.dtype if tensor.is_floating_point() else None)

    return Batch(move(batch.inputs), move(batch.targets))


def detach_state(state: State | None) -> State | None:
    """Return the state cut off from the graph; None for a model without a state."""
    return None if state is None else detach(state)


def with_carried_memory(state: State | None, carry_memory: int | None) -> State | None:
    """Return a state as the next batch gets it: with the newest `carry_memory` states in its memory; None keeps all."""
    return state if state is None or carry_memory is None else trim_memory(state, carry_memory)


def check_memory(model: nn.Module, task: Task, carry_memory: int | None) -> None:
    """Refuse to carry a memory that keeps every state through a running text: each batch would take longer."""
    if not task.carries_state or carry_memory is not None:
        return
    for layer in model.modules():
        if isinstance(layer, Layer) and not layer.constant_state_size:
            raise MnemoscopeError(
                f"{type(layer).__name__} keeps every state, and {task.name} carries its memory from batch to batch: it "
                "would grow without end; set carry-memory = 0 to empty it before each, or to the states to keep"
            )


def to_float32(outputs: Tensor) -> Tensor:
    """Return half-precision outputs as float32, because a loss is a sum over many steps."""
    return outputs.float() if outputs.dtype in (torch.bfloat16, torch.float16) else outputs
