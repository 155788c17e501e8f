"""How a run is followed in the terminal, and stopped."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from mnemoscope.cli._console import number, terminal
from mnemoscope.tasks import Task
from mnemoscope.training import Progress as Standing
from mnemoscope.training import Stop

_REDRAW = 0.1  # seconds; reading a loss waits for the device


class Interrupted(Stop):
    """A signal asked for the end of the run."""

    def __init__(self, update: int, number: int) -> None:
        super().__init__(f"stopped at update {update}")
        self.update, self.exit_code = update, 128 + number


class Follower:
    """Shows where a run stands: a bar in a terminal, a line an evaluation elsewhere, nothing if quiet."""

    def __init__(self, task: Task, title: str, quiet: bool) -> None:
        self.task, self.title = task, title
        self.console = terminal()
        self.caught: int | None = None
        self._bar = None if quiet or not self.console.is_terminal else _bar(self.console)
        self._lines = not quiet and self._bar is None
        self._row: Any = None
        self._start: tuple[float, int] | None = None
        self._shown_at = 0.0
        self._shown: dict[str, float | None] | None = None

    def __call__(self, now: Standing) -> None:
        self._start = self._start or (time.perf_counter(), now.update)
        if self._bar is not None:
            self._draw(now)
        elif self._lines and now.held_out is not self._shown:
            self._shown = now.held_out
            line = f"update {now.update}/{now.updates}  {self._figures(now)}"
            self.console.print(line, highlight=False, soft_wrap=True)
        if self.caught is not None:
            raise Interrupted(now.update, self.caught)

    def _draw(self, now: Standing) -> None:
        assert self._bar is not None
        if self._row is None:
            self._row = self._bar.add_task(self.title, total=now.updates, completed=now.update, figures="")
        if now.update == now.updates or time.perf_counter() - self._shown_at > _REDRAW:
            self._bar.update(self._row, completed=now.update, figures=self._figures(now))
            self._shown_at = time.perf_counter()

    def _figures(self, now: Standing) -> str:
        parts = [] if now.loss is None else [f"loss {number(now.loss.item())}"]
        if now.held_out is not None:
            parts.append(f"{self.task.metric} {number(now.held_out.get(self.task.metric))}")
        if self.task.baseline is not None:
            parts.append(f"memoryless loss {number(self.task.baseline)}")
        return "  ".join([*parts, f"{number(self._rate(now))} updates/s"])

    def _rate(self, now: Standing) -> float:
        assert self._start is not None
        return (now.update - self._start[1]) / max(time.perf_counter() - self._start[0], 1e-9)

    @contextmanager
    def following(self) -> Iterator[Follower]:
        """Draw, and turn the first Ctrl-C or termination into a stop at the end of an update."""
        before = {number: signal.signal(number, self._catch) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            if self._bar is None:
                yield self
            else:
                with self._bar:
                    yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _catch(self, number: int, frame: FrameType | None) -> None:
        self.caught = number
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


def _bar(console: Console) -> Progress:
    name, figures = TextColumn("{task.description}", markup=False), TextColumn("{task.fields[figures]}", markup=False)
    columns = (name, BarColumn(None), MofNCompleteColumn(), figures, TimeRemainingColumn())
    return Progress(*columns, console=console, speed_estimate_period=60)
