"""Lengths of time in updates. A configuration gives them in updates or, where `epochs` sets its budget, in epochs."""

from __future__ import annotations

import math

from mnemoscope.errors import MnemoscopeError
from mnemoscope.tasks import Task
from mnemoscope.training._config import FitConfig


def total_updates(task: Task, config: FitConfig) -> int:
    """Return the budget in updates. The last update of an epoch budget may go beyond its last epoch."""
    return in_updates(config.epochs or config.updates, task, config)


def in_updates(count: int, task: Task, config: FitConfig) -> int:
    """Return how many updates `count` updates are, or `count` epochs if the configuration counts in epochs."""
    if not config.epochs:
        return count
    batches = task.steps_per_epoch(config.batch_size)
    if batches is None:
        raise MnemoscopeError(f"epochs = {config.epochs} needs a fixed data set; {task.name} generates data endlessly")
    return math.ceil(count * batches / config.accumulate)
