"""Progress on standard error where no callback was given: nothing in the first seconds, then a line now and again."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

SILENT = 5.0  # seconds before the first line
BETWEEN = 10.0  # seconds between lines


class LateProgress:
    """Call it as the `progress` of `examine`."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._start = now()
        self._next = self._start + SILENT

    def __call__(self, scope: str, done: float, note: str) -> None:
        if self._now() < self._next or done >= 1:
            return
        self._next = self._now() + BETWEEN
        seconds = self._now() - self._start
        print(f"mnemoscope: {scope}, {100 * done:.0f} % done, {seconds:.0f} s so far", file=sys.stderr)
