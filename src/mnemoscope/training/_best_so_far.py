"""How well a run has done so far on held-out batches."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mnemoscope.tasks import Task


@dataclass(frozen=True)
class Standing:
    """The metrics of the last evaluation, and the best value of the headline metric."""

    held_out: dict[str, float | None] | None = None
    best: float | None = None
    best_update: int = 0

    def after(self, metrics: dict[str, float], update: int, task: Task) -> Standing:
        """The standing after an evaluation; a metric that is no number counts as none."""
        held_out = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
        value = held_out[task.metric]
        if value is None or (self.best is not None and not _better(value, self.best, task)):
            return Standing(held_out, self.best, self.best_update)
        return Standing(held_out, value, update)

    def solves(self, task: Task) -> bool:
        """Whether the last evaluation reached the task's threshold."""
        value = (self.held_out or {}).get(task.metric)
        if value is None or task.solved is None:
            return False
        return value == task.solved or _better(value, task.solved, task)


def _better(value: float, other: float, task: Task) -> bool:
    return value > other if task.higher_is_better else value < other
