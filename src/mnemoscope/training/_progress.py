"""What a run reports after each update, and at its end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from torch import Tensor

from mnemoscope.errors import MnemoscopeError
from mnemoscope.files import read_json
from mnemoscope.schema import from_dict
from mnemoscope.training._environment import Change


@dataclass(frozen=True)
class Progress:
    """The state of a run after an update; `fit` passes it to its callback."""

    update: int
    updates: int
    loss: Tensor | None
    """The last update's loss, still on the device. Reading it waits for the device: do so only to show it."""
    held_out: dict[str, float | None] | None
    """The metrics of the last evaluation."""
    figures: dict[str, float] = field(default_factory=dict)
    """What the learner says of its last update: an agent's return, success and frames so far."""


Outcome = Literal["solved", "budget spent", "stopped early", "diverged", "failed"]


@dataclass(frozen=True)
class Summary:
    """How a run ended: the content of summary.json."""

    outcome: Outcome
    """A run in a sweep that ended with an error has "failed"; outside of a sweep it has no summary."""
    updates: int
    """Those that were made; of a run that diverged, the first whose loss or gradient was bad."""
    metric: str
    """The task's headline metric, whose best value is `best`."""
    best: float | None
    best_update: int
    held_out: dict[str, float | None]
    """All metrics of the last evaluation."""
    baseline: float | None
    """The loss of the best model without memory, or None if it is not known."""
    parameters: int | None
    """None if the run failed before it had a model."""
    seconds: float
    """How long the process that ended the run took."""
    updates_per_second: float
    changes: tuple[Change, ...] = ()
    """What was different when the run was resumed: data, versions, metrics.jsonl."""
    message: str = ""
    """What went wrong, if the run diverged or failed."""
    skipped: int = 0
    """Updates whose gradient was not finite, so that they left the weights as they were."""
    device: str = ""
    """What the process that ended it ran on: the name of a GPU, or how many CPUs; empty in old runs."""

    @property
    def is_failure(self) -> bool:
        """True if the run diverged or failed: `resume` tries it again from its last good checkpoint."""
        return self.outcome in ("diverged", "failed")


ProgressCallback = Callable[[Progress], object]


def read_summary(path: Path) -> Summary:
    """Return the summary in a summary.json."""
    return from_dict(Summary, read_json(path), str(path))


class Stop(Exception):
    """Raise this from a callback to end a run after the current update; its state is saved first."""


class Enough(Stop):
    """Raise this from a callback to end a run for good: its summary says that it was stopped early."""


class Diverged(MnemoscopeError):
    """The loss or its gradient is NaN or infinite, or the loss exceeds `FitConfig.diverged`."""

    exit_code = 3

    def __init__(self, update: int, what: str, checkpoint: Path | None, hint: str) -> None:
        saved = f"last good checkpoint: {checkpoint}" if checkpoint else "no checkpoint was kept"
        super().__init__(f"diverged at update {update}: {what}; {saved}; {hint}")
        self.update = update
        self.checkpoint = checkpoint
