"""A task of the user's own, from any source of (inputs, targets)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sized
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal, cast

import torch.nn.functional as F
from torch import Tensor

from mnemoscope.errors import MnemoscopeError
from mnemoscope.tasks._task import Batch, Split, Task, at_least, require

Pair = tuple[Tensor, Tensor]
Source = Callable[[int, int, Split], Pair] | Iterable[Pair]
IGNORED = -100  # the class that torch's cross-entropy leaves out


@dataclass(frozen=True)
class Custom(Task):
    """Batches from a function `source(step, size, split)`, or from an iterable of batches (a list, a DataLoader).

    Inputs are (T, B, input_size), or (T, B) int64 ids with `token_input=True`. Targets with a time dimension are
    compared with the read-out at every step, others with that of the last: (T, B) or (B,) int64 for classes, of which
    -100 counts for nothing, and (T, B, output_size) or (B, output_size) for numbers.

    A function should depend on its arguments alone, so that a stopped run can be resumed. An iterable is gone through
    from its start to the batch that is asked for, and keeps its own batch size; `valid` and `test` need their own.
    """

    name = "custom"

    source: Source
    """Training batches, and those of the other splits where it is a function."""
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
    """How many steps back the task needs; left out, as many as the sequence has."""
    solved: float | None = field(default=None, kw_only=True)
    """The accuracy or mean squared error at which the task counts as solved."""
    baseline: float | None = field(default=None, kw_only=True)
    """The loss without memory, where it is known."""
    _open: dict[str, tuple[int, Iterator[Pair]]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        at_least(self, input_size=1, output_size=1, length=1, needs=0)
        require(self.answer in ("classes", "numbers"), "answer", self.answer, "'classes' or 'numbers'")
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
        own = {"train": self.source, "valid": self.valid, "test": self.test}[split]
        if own is None and not callable(self.source):
            raise MnemoscopeError(f"no {split} batches: give Custom {split}=…, or a function as its source")
        return self.source if own is None else own

    def _advance(self, source: Iterable[Pair], step: int, split: Split) -> Pair:
        """Batch `step` of an iterable, from where it stands if it has not passed that batch already."""
        if isinstance(source, Sized):
            require(len(source) > 0, f"number of {split} batches", 0, "1 or more")
            step %= len(source)
        opened = self._open.get(split)
        if opened is not None and opened[0] > step and isinstance(source, Iterator):
            raise MnemoscopeError(f"the {split} batches have passed number {step}; give a list or a function")
        place, batches = opened if opened is not None and opened[0] <= step else (0, iter(source))
        pair = next(islice(batches, step - place, None), None)
        if pair is None:
            raise MnemoscopeError(f"the {split} batches end before number {step}; give a list or a function")
        self._open[split] = (step + 1, batches)
        return pair

    def _checked(self, pair: Any) -> Batch:
        if not (isinstance(pair, (tuple, list)) and len(pair) == 2 and all(isinstance(part, Tensor) for part in pair)):
            raise MnemoscopeError(f"a batch must be a pair of tensors (inputs, targets), not {type(pair).__name__}")
        inputs, targets = cast(Pair, tuple(pair))
        fits = inputs.dim() == 2 if self.token_input else inputs.dim() == 3 and inputs.shape[-1] == self.input_size
        wanted = "(T, B)" if self.token_input else f"(T, B, {self.input_size})"
        require(fits, "shape of inputs", tuple(inputs.shape), wanted)
        dims = (1, 2) if self.answer == "classes" else (2, 3)
        require(targets.dim() in dims, "dimensions of targets", targets.dim(), f"{dims[0]} (at the end) or {dims[1]}")
        return Batch(inputs, targets)

    def _answered(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The read-outs that targets are compared with, without a time dimension of their own."""
        every_step = targets.dim() == outputs.dim() - (self.answer == "classes")
        return outputs.flatten(0, 1) if every_step else outputs[-1]

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        answered = self._answered(outputs, targets)
        if self.answer == "numbers":
            return F.mse_loss(answered, targets.reshape(answered.shape))
        return F.cross_entropy(answered, targets.flatten(), ignore_index=IGNORED)

    def metrics(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        loss = self.loss(outputs, targets).item()
        if self.answer == "numbers":
            return {"loss": loss, "mse": loss}
        correct = self._answered(outputs, targets).argmax(-1) == targets.flatten()
        return {"loss": loss, "accuracy": correct.sum().item() / max(self.weight(targets), 1)}

    def weight(self, targets: Tensor) -> int:
        return targets.numel() if self.answer == "numbers" else int((targets != IGNORED).sum())
