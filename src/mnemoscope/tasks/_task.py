"""What every task has: sizes, batches that can be made in any order, a loss, metrics and a baseline."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Literal, NamedTuple, Self, get_args

import torch
from torch import Tensor

from mnemoscope.errors import MnemoscopeError
from mnemoscope.tasks._seeded import generator

Split = Literal["train", "valid", "test"]


class Batch(NamedTuple):
    """One batch, time first: `inputs` (T, B, input_size) float32, or (T, B) int64 ids where `task.token_input`."""

    inputs: Tensor
    targets: Tensor


@dataclass(frozen=True)
class Task(ABC):
    """Something to remember.

    A task is a frozen dataclass whose fields are its configuration. Batches come from `(seed, split, step)` alone, so a
    run may be resumed at any step, and train, valid and test never share their random numbers.
    """

    name = "task"
    token_input = False
    """Whether inputs are integer ids to embed instead of features."""
    carries_state = False
    """Whether batch `step + 1` continues the sequences of batch `step`, so that the hidden state is carried over."""
    metric = "accuracy"
    """The headline among `metrics`."""
    higher_is_better = True

    seed: int = field(default=0, kw_only=True)
    """Seed of the data: the same seed gives the same batches everywhere."""

    @property
    @abstractmethod
    def input_size(self) -> int:
        """Features of one input step, or the number of distinct ids where `token_input`."""

    @property
    @abstractmethod
    def output_size(self) -> int:
        """Features that the read-out must give at each step."""

    @property
    @abstractmethod
    def length(self) -> int:
        """Steps of a sequence (of the longest, where they differ)."""

    @property
    def needs(self) -> int:
        """How many steps back a model must remember to solve the task."""
        return self.length - 1

    @property
    def solved(self) -> float | None:
        """The value of the headline metric at which the task counts as solved, or None where there is no such value."""
        return None

    @property
    def baseline(self) -> float | None:
        """The loss without memory: of the best answers that are the same for every sequence, in closed form.

        On data it is taken over the training split. None where no closed form is known.
        """
        return None

    def batch(self, step: int, size: int, split: Split = "train") -> Batch:
        """Batch number `step` of `size` sequences, the same whenever and in whatever order it is asked for."""
        require(step >= 0, "step", step, "0 or more")
        require(size >= 1, "size", size, "1 or more")
        require(split in get_args(Split), "split", split, "one of 'train', 'valid', 'test'")
        return self._batch(step, size, split)

    @abstractmethod
    def _batch(self, step: int, size: int, split: Split) -> Batch:
        """`batch`, of arguments that are already known to be right."""

    @abstractmethod
    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss to train on, a scalar; `outputs` (T, B, output_size) are the read-out at every step."""

    @abstractmethod
    def metrics(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        """`loss`, the headline `metric` and others, for one batch."""

    def weight(self, targets: Tensor) -> int:
        """How many predictions a batch counts for in `combine`."""
        return targets.numel()

    def combine(self, metrics: Sequence[dict[str, float]], weights: Sequence[float]) -> dict[str, float]:
        """The metrics of several batches as if they were one: `weights` are each batch's `weight`."""
        total = sum(weights)
        return {key: sum(m[key] * w for m, w in zip(metrics, weights, strict=True)) / total for key in metrics[0]}

    def steps_per_epoch(self, size: int, split: Split = "train") -> int | None:
        """Batches of `size` until the data repeat, or None for a task that makes new ones for ever."""
        return None

    def starts_anew(self, step: int, size: int, split: Split = "train") -> bool:
        """Whether the hidden state is to be reset before batch `step`: always, unless the task `carries_state`."""
        return True

    def with_length(self, T: int) -> Self:
        """The same task at another T, to see whether what was learnt carries over."""
        if "T" not in {f.name for f in fields(self)}:
            raise MnemoscopeError(f"{self.name} has one length, {self.length} steps; T = {T} cannot be asked of it")
        return replace(self, T=T)  # type: ignore[call-arg]

    def generator(self, *purpose: str | int) -> torch.Generator:
        """The random numbers of this task and seed for one purpose, usually `(split, step)`."""
        return generator(self.name, self.seed, *purpose)


def at_least(task: Task, **least: int) -> None:
    """Refuse a task one of whose fields is below what it must at least be."""
    for name, bound in least.items():
        given = getattr(task, name)
        whole = isinstance(given, int) and not isinstance(given, bool)
        require(whole and given >= bound, name, given, f"a whole number, {bound} or more")


def require(condition: bool, name: str, given: object, allowed: str) -> None:
    """Refuse a wrong value in one line: what was wrong, what was given, what is allowed."""
    if not condition:
        raise MnemoscopeError(f"{name} = {given!r} is not allowed: {name} must be {allowed}")
