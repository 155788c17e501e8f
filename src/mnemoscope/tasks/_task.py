"""The base class of tasks: sizes, batches that can be made in any order, a loss, metrics and a baseline."""

from __future__ import annotations

import reprlib
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
    """One batch, time first: `inputs` (T, B, input_size) float32, or (T, B) int64 ids if `task.token_input`."""

    inputs: Tensor
    targets: Tensor


@dataclass(frozen=True)
class Task(ABC):
    """Sequences to remember, with a loss and metrics.

    A task is a frozen dataclass whose fields are its configuration. A batch depends on `(seed, split, step)` only. So a
    run can be resumed at any step, and train, valid and test never share random numbers.
    """

    name = "task"
    token_input = False
    """Whether inputs are integer ids to embed, not features."""
    carries_state = False
    """Whether batch `step + 1` continues the sequences of batch `step`, with the hidden state carried over."""
    metric = "accuracy"
    """The headline metric, a key of `metrics`."""
    higher_is_better = True

    seed: int = field(default=0, kw_only=True)
    """Seed of the data: the same seed gives the same batches everywhere."""

    @property
    @abstractmethod
    def input_size(self) -> int:
        """Features of one input step, or the number of distinct ids if `token_input`."""

    @property
    @abstractmethod
    def output_size(self) -> int:
        """Features of the read-out at each step."""

    @property
    @abstractmethod
    def length(self) -> int:
        """Steps of a sequence, or of the longest if they differ."""

    @property
    def needs(self) -> int | None:
        """How many steps back a model must remember to solve the task; None if that is not known."""
        return self.length - 1

    @property
    def solved(self) -> float | None:
        """The value of the headline metric at which the task counts as solved, or None if there is none."""
        return None

    @property
    def baseline(self) -> float | None:
        """The loss without memory: that of the best prediction which is the same for every sequence.

        For data sets it is computed on the training split. None if no closed form is known.
        """
        return None

    @property
    def answer_share(self) -> float:
        """The share of the loss's terms that ask for an answer: below 1 if it is a mean over steps that ask nothing.

        The gradient is smaller by as much: `FitConfig.scale_clip` clips it at a norm that is, too.
        """
        return 1.0

    @property
    def data_sha256(self) -> str | None:
        """A hash of data that can change: a text of the user's own. None for generated data and published files."""
        return None

    def batch(self, step: int, size: int, split: Split = "train") -> Batch:
        """Return batch number `step` of `size` sequences. It is the same whenever and in whatever order it is made."""
        require(step >= 0, "step", step, "0 or more")
        require(size >= 1, "size", size, "1 or more")
        require(split in get_args(Split), "split", split, "one of 'train', 'valid', 'test'")
        return self._batch(step, size, split)

    @abstractmethod
    def _batch(self, step: int, size: int, split: Split) -> Batch:
        """`batch`, with arguments that have been checked."""

    @abstractmethod
    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss to train on, a scalar, from the read-out at every step (T, B, output_size)."""

    @abstractmethod
    def metrics(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        """Return `loss`, the headline `metric` and others for one batch."""

    def weight(self, targets: Tensor) -> int:
        """Return the number of predictions in a batch, its weight in `combine`."""
        return targets.numel()

    def combine(self, metrics: Sequence[dict[str, float]], weights: Sequence[float]) -> dict[str, float]:
        """Return the metrics of several batches as if they were one: their mean, weighted by each batch's `weight`.

        One of weight 0 does not count: its mean over no prediction is NaN.
        """
        counted = [(m, w) for m, w in zip(metrics, weights, strict=True) if w]
        if not counted:
            raise MnemoscopeError(f"{self.name}: no target of these batches counts")
        total = sum(w for _, w in counted)
        return {name: sum(m[name] * w for m, w in counted) / total for name in metrics[0]}

    def rows(self, batch: Batch, rows: slice) -> Batch:
        """Return some sequences of a batch: what one of several processes trains on.

        Targets with the inputs' time dimension are (T, B, ...), others (B, ...). A task whose targets are laid out
        otherwise overrides this.
        """
        every_step = batch.targets.shape[:2] == batch.inputs.shape[:2]
        return Batch(batch.inputs[:, rows], batch.targets[:, rows] if every_step else batch.targets[rows])

    def steps_per_epoch(self, size: int, split: Split = "train") -> int | None:
        """Return the number of batches of `size` in one pass over the data, or None if data are generated endlessly."""
        return None

    def evaluation_steps(self, size: int, split: Split) -> int | None:
        """Return the number of batches in one evaluation of a whole split, or None if data are generated endlessly."""
        return self.steps_per_epoch(size, split)

    def evaluation_batch(self, step: int, size: int, split: Split) -> Batch:
        """Return batch `step` of an evaluation: all of them together hold every sequence of the split once."""
        return self.batch(step, size, split)

    def resets_state(self, step: int, size: int, split: Split = "train") -> bool:
        """True if the hidden state is to be reset before batch `step`: always, unless the task `carries_state`."""
        return True

    def with_length(self, T: int) -> Self:
        """Return the same task at another T, to see whether a trained model generalizes to it."""
        if "T" not in {f.name for f in fields(self)}:
            raise MnemoscopeError(f"{self.name} has one length, {self.length} steps; T = {T} cannot be asked of it")
        return replace(self, T=T)  # type: ignore[call-arg]

    def generator(self, *purpose: str | int) -> torch.Generator:
        """Return the random generator of this task and seed for one purpose, usually `(split, step)`."""
        return generator(self.name, self.seed, *purpose)


def require_at_least(task: Task, **bounds: int) -> None:
    """Refuse a task with a field that is not a whole number or is below its bound."""
    for name, bound in bounds.items():
        value = getattr(task, name)
        whole = isinstance(value, int) and not isinstance(value, bool)
        require(whole and bound <= value < 2**63, name, value, f"a whole number, {bound} or more")


def require(condition: bool, name: str, value: object, allowed: str) -> None:
    """Unless `condition` holds, raise one line: what was wrong, what was given, what is allowed."""
    if not condition:
        raise MnemoscopeError(f"{name} = {reprlib.repr(value)} is not allowed: {name} must be {allowed}")
