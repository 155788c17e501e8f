"""What a run tells while it lasts, and when it is over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from torch import Tensor

from mnemoscope.errors import MnemoscopeError
from mnemoscope.files import read_json
from mnemoscope.training._schema import from_plain


@dataclass(frozen=True)
class Progress:
    """Where a run stands after an update; handed to the `watch` of `fit`."""

    update: int
    updates: int
    loss: Tensor | None
    """The last update's loss, still on the device: read it when it is shown, not at every update."""
    held_out: dict[str, float | None] | None
    """The metrics of the last evaluation."""


@dataclass(frozen=True)
class Summary:
    """How a run ended; what summary.json holds."""

    outcome: Literal["solved", "budget spent"]
    updates: int
    metric: str
    """The task's headline metric, whose best value is `best`."""
    best: float | None
    best_update: int
    held_out: dict[str, float | None]
    """All metrics of the last evaluation."""
    baseline: float | None
    """The loss of the best model without memory, where it is known."""
    parameters: int
    seconds: float
    """Of the process that ended the run."""
    updates_per_second: float


Watch = Callable[[Progress], object]


def read_summary(path: Path) -> Summary:
    """The summary in a summary.json."""
    return from_plain(Summary, read_json(path), str(path))


class Stop(Exception):
    """Raise it from `watch` to end a run after the present update; its state is saved first."""


class Diverged(MnemoscopeError):
    """The loss or its gradient is no longer a number, or grew beyond all bounds."""

    exit_code = 3

    def __init__(self, update: int, what: str, checkpoint: Path | None, hint: str) -> None:
        saved = f"last good checkpoint: {checkpoint}" if checkpoint else "no checkpoint was kept"
        super().__init__(f"diverged at update {update}: {what}; {saved}; {hint}")
        self.update, self.checkpoint = update, checkpoint
