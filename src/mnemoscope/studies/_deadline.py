"""An engine that ends when its time is up."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from mnemoscope.sweeps import Ending, Engine, Job


class TimeUp(Exception):
    """The minutes that a call was given are over."""


class Deadline:
    """Another engine, up to a moment; then `TimeUp` is raised, and the driver has all running jobs save their work.

    Args:
        engine: what runs the jobs.
        moment: of `time.monotonic`.
    """

    def __init__(self, engine: Engine, moment: float) -> None:
        self.engine = engine
        self.moment = moment

    @property
    def slots(self) -> int:
        return self.engine.slots

    def start(self, jobs: Sequence[tuple[Job, Path]], logs: Path) -> None:
        if jobs and time.monotonic() >= self.moment:
            raise TimeUp
        self.engine.start(jobs, logs)

    def wait(self, seconds: float) -> Iterable[tuple[str, Ending]]:
        left = self.moment - time.monotonic()
        if left <= 0:
            raise TimeUp
        return self.engine.wait(min(seconds, left))

    def stop(self) -> None:
        self.engine.stop()
