"""A task of the user's, from any source of (inputs, targets)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sized
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from mnemoscope.errors import MnemoscopeError
from mnemoscope.tasks._task import Batch, Split, Task, require, require_at_least

Pair = tuple[Tensor, Tensor]
Source = Callable[[int, int, Split], Pair] | Iterable[Pair]
IGNORED = -100  # the class that torch's cross-entropy leaves out


@dataclass(frozen=True)
class Custom(Task):
    """Batches from a function `source(step, size, split)`, or from an iterable of batches (a list, a DataLoader).

    Inputs are (T, B, input_size), or (T, B) int64 ids with `token_input=True`. Targets with a time dimension are
    compared with the read-out at every step, others with that of the last step. Classes are (T, B) or (B,) int64, and
    -100 is ignored. Numbers are (T, B, output_size) or (B, output_size).

    A function should depend on its arguments only, so that a stopped run can be resumed. An iterable is advanced from
    its start to the requested batch and sets the batch size itself; `valid` and `test` need iterables of their own.

    Examples:
        >>> from mnemoscope.tasks import Custom
        >>> def first_sign(step, size, split):
        ...     seed = 3 * step + ["train", "valid", "test"].index(split)
        ...     generator = torch.Generator().manual_seed(seed)
        ...     x = torch.randn(30, size, 1, generator=generator)
        ...     return x, (x[0, :, 0] > 0).long()
        >>> task = Custom(first_sign, input_size=1, output_size=2, length=30)
        >>> task.batch(0, 4).inputs.shape
        torch.Size([30, 4, 1])
    """

    name = "custom"

    source: Source
    """Training batches; if it is a function, also those of the other splits."""
    valid: Source | None = None
    """Validation batches."""
    test: Source | None = None
    """Test batches."""
    input_size: int = field(default=0, kw_only=True)
    """Features of an input, or number of ids."""
    output_size: int = field(default=0, kw_only=True)
    """Classes to choose from, or numbers to predict."""
    length: int = field(default=0, kw_only=True)
    """Steps of a sequence."""
    answer: Literal["classes", "numbers"] = field(default="classes", kw_only=True)
    """Cross-entropy and accuracy, or mean squared error."""
    token_input: bool = field(default=False, kw_only=True)
    """Whether inputs are integer ids to embed."""
    needs: int = field(default=0, kw_only=True)
    """How many steps back the task needs; by default length - 1."""
    solved: float | None = field(default=None, kw_only=True)
    """The accuracy or mean squared error at which the task counts as solved."""
    baseline: float | None = field(default=None, kw_only=True)
    """The loss without memory, if it is known."""
    answer_share: float = field(default=1.0, kw_only=True)
    """The share of the targets that ask for an answer, if many are blanks; see `FitConfig.scale_clip`."""
    _open: dict[str, tuple[int, Iterator[Pair]]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        require_at_least(self, input_size=1, output_size=1, length=1, needs=0)
        require(self.answer in ("classes", "numbers"), "answer", self.answer, "'classes' or 'numbers'")
        require(0 < self.answer_share <= 1, "answer_share", self.answer_share, "above 0 and at most 1")
        object.__setattr__(self, "needs", self.needs or self.length - 1)
        if self.answer == "numbers":
            object.__setattr__(self, "metric", "mse")
            object.__setattr__(self, "higher_is_better", False)

    def steps_per_epoch(self, size: int, split: Split = "train") -> int | None:
        source = self._source(split)
        return len(source) if isinstance(source, Sized) and not callable(source) else None

    def _batch(self, step: int, size: int, split: Split) -> Batch:
        source = self._source(split)
        pair = source(step, size, split) if callable(source) else self._advance(source, step, split)
        return self._checked(pair)

    def _source(self, split: Split) -> Source:
        source = {"train": self.source, "valid": self.valid, "test": self.test}[split]
        if source is not None:
            return source
        if not callable(self.source):
            raise MnemoscopeError(f"no {split} batches: give Custom {split}=…, or a function as its source")
        return self.source

    def _advance(self, source: Iterable[Pair], step: int, split: Split) -> Pair:
        """Return batch `step` of an iterable, which is started again only if it is past that batch."""
        if isinstance(source, Sized):
            require(len(source) > 0, f"number of {split} batches", 0, "1 or more")
            step %= len(source)
        position, batches = self._open.get(split, (0, None))
        if position > step and isinstance(source, Iterator):
            raise MnemoscopeError(f"the {split} batches have passed number {step}; give a list or a function")
        if batches is None or position > step:
            position = 0
            batches = iter(source)
        pair = next(islice(batches, step - position, None), None)
        if pair is None:
            raise MnemoscopeError(f"the {split} batches end before number {step}; give a list or a function")
        self._open[split] = (step + 1, batches)
        return pair

    def _checked(self, pair: Any) -> Batch:
        if not (isinstance(pair, (tuple, list)) and len(pair) == 2 and all(isinstance(part, Tensor) for part in pair)):
            raise MnemoscopeError(f"a batch must be a pair of tensors (inputs, targets), not {type(pair).__name__}")
        inputs, targets = cast(Pair, tuple(pair))
        shape = tuple(inputs.shape)
        if self.token_input:
            require(len(shape) == 2, "shape of inputs", shape, "(T, B)")
        else:
            fits = len(shape) == 3 and shape[-1] == self.input_size
            require(fits, "shape of inputs", shape, f"(T, B, {self.input_size})")
        dims = (1, 2) if self.answer == "classes" else (2, 3)
        require(targets.dim() in dims, "dimensions of targets", targets.dim(), f"{dims[0]} (at the end) or {dims[1]}")
        self._check_targets(targets, *shape[:2])
        return Batch(inputs, targets)

    def _check_targets(self, targets: Tensor, time: int, size: int) -> None:
        """Refuse targets that torch's losses would not take, or would read in another order."""
        at_end = (size,) if self.answer == "classes" else (size, self.output_size)
        every_step = (time, *at_end)
        shape = tuple(targets.shape)
        require(shape in (at_end, every_step), "shape of targets", shape, f"{at_end} or {every_step}")
        if self.answer == "numbers":
            require(targets.is_floating_point(), "dtype of targets", targets.dtype, "one of floating point")
            return
        require(targets.dtype in (torch.int64, torch.uint8), "dtype of targets", targets.dtype, "int64")
        wrong = targets[((targets < 0) | (targets >= self.output_size)) & (targets != IGNORED)]
        if len(wrong):
            allowed = f"0 to {self.output_size - 1}, or {IGNORED} to ignore it"
            require(False, "class in targets", int(wrong[0]), allowed)

    def rows(self, batch: Batch, rows: slice) -> Batch:
        every_step = batch.targets.dim() == (2 if self.answer == "classes" else 3)
        return Batch(batch.inputs[:, rows], batch.targets[:, rows] if every_step else batch.targets[rows])

    def _compared_outputs(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the outputs that the targets are compared with: of all steps (T * B, ...) or of the last (B, ...)."""
        every_step = targets.dim() == outputs.dim() - (self.answer == "classes")
        return outputs.flatten(0, 1) if every_step else outputs[-1]

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        answered = self._compared_outputs(outputs, targets)
        if self.answer == "numbers":
            return F.mse_loss(answered, targets.reshape(answered.shape))
        return F.cross_entropy(answered, targets.flatten(), ignore_index=IGNORED)

    def metrics(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        loss = self.loss(outputs, targets).item()
        if self.answer == "numbers":
            return {"loss": loss, "mse": loss}
        correct = self._compared_outputs(outputs, targets).argmax(-1) == targets.flatten()
        return {"loss": loss, "accuracy": correct.sum().item() / max(self.weight(targets), 1)}

    def weight(self, targets: Tensor) -> int:
        return targets.numel() if self.answer == "numbers" else int((targets != IGNORED).sum())
