"""How a run's progress is shown in the terminal, and how Ctrl-C stops it."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as ProgressBar
from rich.text import Text

from mnemoscope.cli._console import format_value, terminal
from mnemoscope.tasks import Task
from mnemoscope.training import Progress, Stop

_REDRAW_SECONDS = 0.1  # reading a loss waits for the device, so not at every update


class Interrupted(Stop):
    """A signal asked for the end of the run."""

    def __init__(self, update: int, signal_number: int) -> None:
        super().__init__(f"stopped at update {update}")
        self.update = update
        self.exit_code = 128 + signal_number


class RunProgress:
    """Shows the progress of a run: a bar in a terminal, a line per evaluation elsewhere, nothing if quiet.

    Call it with the run's `Progress` after every update.
    """

    def __init__(self, task: Task, title: str, quiet: bool) -> None:
        self.task = task
        self.title = title
        self.console = terminal()
        self._signal: int | None = None  # that asked for the end of the run
        self._bar = _bar(self.console) if self.console.is_terminal and not quiet else None
        self._prints_lines = not quiet and self._bar is None
        self._bar_task: Any = None
        self._start: tuple[float, int] | None = None  # time and update at the first call
        self._drawn_at = 0.0
        self._printed: dict[str, float | None] | None = None  # the last evaluation that has its line

    def __call__(self, progress: Progress) -> None:
        if self._start is None:
            self._start = (time.perf_counter(), progress.update)
        if self._bar is not None:
            self._update_bar(self._bar, progress)
        elif self._prints_lines and progress.held_out is not self._printed:
            self._printed = progress.held_out
            line = f"update {progress.update}/{progress.updates}  {self._figures(progress)}"
            self.console.print(line, highlight=False, soft_wrap=True)
        if self._signal is not None:
            raise Interrupted(progress.update, self._signal)

    def _update_bar(self, bar: ProgressBar, progress: Progress) -> None:
        if self._bar_task is None:
            self._bar_task = bar.add_task(self.title, total=progress.updates, completed=progress.update, figures="")
        if progress.update == progress.updates or time.perf_counter() - self._drawn_at > _REDRAW_SECONDS:
            bar.update(self._bar_task, completed=progress.update, figures=self._figures(progress))
            self._drawn_at = time.perf_counter()

    def _figures(self, progress: Progress) -> str:
        parts = []
        if progress.loss is not None:
            parts.append(f"loss {format_value(progress.loss.item())}")
        if progress.held_out is not None:
            held_out = "held-out " if progress.figures else ""
            parts.append(f"{held_out}{self.task.metric} {format_value(progress.held_out.get(self.task.metric))}")
        if "frames" in progress.figures:
            return "  ".join([*parts, *self._figures_of_play(progress)])
        if self.task.baseline is not None:
            parts.append(f"memoryless loss {format_value(self.task.baseline)}")
        parts.append(f"{format_value(self._updates_per_second(progress))} updates/s")
        return "  ".join(parts)

    def _figures_of_play(self, progress: Progress) -> list[str]:
        """How the last episodes of training went, and how fast."""
        figures = progress.figures
        parts = [f"{name} {format_value(figures[name])}" for name in ("return", "success") if name in figures]
        frames_per_update = figures["frames"] / max(progress.update, 1)
        return [*parts, f"{format_value(frames_per_update * self._updates_per_second(progress))} frames/s"]

    def _updates_per_second(self, progress: Progress) -> float:
        assert self._start is not None
        start_time, start_update = self._start
        return (progress.update - start_update) / max(time.perf_counter() - start_time, 1e-9)

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Draw, and turn the first Ctrl-C or termination signal into a stop at the end of an update."""
        handlers = {number: signal.signal(number, self._catch) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            if self._bar is None:
                yield
            else:
                with self._bar:
                    yield
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def _catch(self, number: int, frame: FrameType | None) -> None:
        """Note the signal; the next one of its kind, or one before the first update, ends the process at once."""
        self._signal = number
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        if self._start is None:  # still loading: nothing would be saved by waiting
            signal.raise_signal(number)


class _Bar(ProgressBar):
    """A bar with the run's figures in the line below it: beside it they would leave no room for a bar."""

    def get_renderables(self) -> Iterator[RenderableType]:
        for task in self.tasks:
            yield self.make_tasks_table([task])
            yield Text(task.fields["figures"])


def _bar(console: Console) -> ProgressBar:
    name = TextColumn("{task.description}", markup=False)
    columns = (name, BarColumn(None), MofNCompleteColumn(), TimeRemainingColumn())
    return _Bar(*columns, console=console, speed_estimate_period=60)
