"""How a sweep's progress is shown: one bar, one line for each run that has ended; and how Ctrl-C stops it."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as ProgressBar

from mnemoscope.cli._console import terminal
from mnemoscope.sweeps import SweepProgress, field_value


class SweepView:
    """Shows the progress of a sweep: call it with the `SweepProgress` whenever a run has ended."""

    title = "sweep"

    def __init__(self, axes: Sequence[str], total: int, quiet: bool) -> None:
        self.axes = axes
        self.total = total
        self.quiet = quiet
        self.console = terminal()
        self.signal_number = 0  # of the signal that stopped the sweep
        self._bar: ProgressBar | None = None
        self._bar_task: Any = None
        if self.console.is_terminal and not quiet:
            columns = (
                TextColumn("{task.description}", markup=False),
                BarColumn(None),
                MofNCompleteColumn(),
                TextColumn("{task.fields[left]}", markup=False),
            )
            self._bar = ProgressBar(*columns, console=self.console)

    def __call__(self, progress: SweepProgress) -> None:
        if self.quiet:
            return
        self.console.print(self._line(progress), highlight=False, soft_wrap=True)
        if self._bar is not None:
            title = f"{self.title} · {progress.stage}" if progress.stage else self.title
            left = f"{progress.running} running, {_clock(progress.seconds_left)} left"
            self._bar.update(
                self._bar_task, description=title, completed=progress.done, total=progress.total, left=left
            )

    def _line(self, progress: SweepProgress) -> str:
        ending = progress.ending
        what = " ".join(f"{axis.partition('.')[2]}={field_value(progress.job.config, axis)}" for axis in self.axes)
        how = ending.message if ending.outcome == "ended" else f"{ending.outcome}: {ending.message}"
        if progress.retry:
            how += f"; attempt {progress.retry} goes on from its last checkpoint"
        parts = [f"{progress.done}/{progress.total}", what, f"{how}; {ending.seconds:.1f} s", progress.job.name]
        if self._bar is None:
            parts.append(f"{_clock(progress.seconds_left)} left")
        return "  ".join(part for part in parts if part)

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Draw, and turn Ctrl-C and a termination signal into a stop of all runs; the second one kills them."""
        handlers = {number: signal.signal(number, self._catch) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            if self._bar is None:
                yield
            else:
                with self._bar:
                    self._bar_task = self._bar.add_task(self.title, total=self.total, left="")
                    yield
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def _catch(self, number: int, frame: FrameType | None) -> None:
        if not self.signal_number:
            self.console.print("stopping: running runs save their state; once more kills them", highlight=False)
        self.signal_number = number
        raise KeyboardInterrupt


def _clock(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
