"""The last and the best held-out evaluation of a run."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mnemoscope.tasks import Task


@dataclass(frozen=True)
class BestSoFar:
    """The metrics of the last evaluation, and the best value of the headline metric so far."""

    held_out: dict[str, float | None] | None = None
    best: float | None = None
    best_update: int = 0

    def after(self, metrics: dict[str, float], update: int, task: Task) -> BestSoFar:
        """Return the record after one more evaluation.

        A metric that is NaN or infinite becomes None. At equality the earlier update stays the best one.
        """
        held_out = finite_or_none(metrics)
        headline = held_out[task.metric]
        if headline is not None and (self.best is None or _is_better(headline, self.best, task)):
            return BestSoFar(held_out, headline, update)
        return BestSoFar(held_out, self.best, self.best_update)

    def solves(self, task: Task) -> bool:
        """True if the last evaluation reached the task's threshold, exactly or better."""
        headline = (self.held_out or {}).get(task.metric)
        if headline is None or task.solved is None:
            return False
        return headline == task.solved or _is_better(headline, task.solved, task)


def finite_or_none(metrics: dict[str, float]) -> dict[str, float | None]:
    """Return the metrics for JSON, which has neither NaN nor infinity."""
    return {name: value if math.isfinite(value) else None for name, value in metrics.items()}


def _is_better(value: float, other: float, task: Task) -> bool:
    return value > other if task.higher_is_better else value < other
