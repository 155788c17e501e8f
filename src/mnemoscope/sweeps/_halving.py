"""Successive halving: all runs go to the first rung, the best of them to the next, and so on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

from mnemoscope.errors import MnemoscopeError, is_number, is_whole
from mnemoscope.training import FitConfig, Run, RunConfig, Summary


@dataclass(frozen=True)
class Halving:
    """The rungs, in updates, and the share of runs that goes on from each. The last rung is every run's budget."""

    rungs: tuple[int, ...]
    keep: Fraction = Fraction(1, 2)

    def __post_init__(self) -> None:
        rising = all(map(is_whole, self.rungs)) and all(low < high for low, high in pairwise((0, *self.rungs)))
        if len(self.rungs) < 2 or not rising:
            raise MnemoscopeError(f"halving = {self.rungs} is not allowed; write rising updates, as 100,300,900")
        if not is_number(self.keep) or not 0 < self.keep < 1:
            raise MnemoscopeError(f"keep = {self.keep} is not allowed; it must be a share between 0 and 1, as 1/2")
        object.__setattr__(self, "keep", Fraction(self.keep))

    @staticmethod
    def parse(rungs: str, keep: str = "1/2") -> Halving:
        """Return the rungs in text as "100,300,900", and the share in text as "1/2" or "0.5"."""
        try:
            updates = tuple(int(part) for part in rungs.split(","))
        except ValueError:
            raise MnemoscopeError(f"halving = {rungs!r} is not allowed; write rising updates, as 100,300,900") from None
        return Halving(updates, parse_share(keep))

    def check(self, config: RunConfig) -> None:
        """Refuse a run that cannot be compared at the first rung, or that has another budget than the last."""
        if isinstance(config.fit, FitConfig) and config.fit.epochs:
            raise MnemoscopeError("halving counts updates; leave epochs at 0")
        if config.fit.evaluate_every > self.rungs[0]:
            raise MnemoscopeError(
                f"halving needs an evaluation before its first rung, update {self.rungs[0]}; "
                f"evaluate-every is {config.fit.evaluate_every}"
            )


def parse_share(text: str) -> Fraction:
    """Return the share in text as "1/2" or "0.5"."""
    try:
        if "e" in text.lower():  # the exact fraction of 1e-999999999 would take hours
            raise ValueError
        return Fraction(text)
    except (ValueError, ZeroDivisionError):
        raise MnemoscopeError(f"keep = {text!r} is not allowed; it must be a share between 0 and 1, as 1/2") from None


def survivors(folders: Sequence[Path], configs: Sequence[RunConfig], rung: int, keep: Fraction) -> list[int]:
    """Return which runs go on from a rung: the best share by held-out metric up to its update, in their own order.

    It is decided by the runs' own records, so neither the number of jobs nor a restart changes it. At equality the
    earlier run goes on. A run that failed or diverged before the rung, or has no evaluation, comes last.
    """

    def rank(index: int) -> float:
        value = _best_until(folders[index], configs[index], rung)
        return math.inf if value is None else value

    count = math.ceil(len(folders) * keep)
    return sorted(sorted(range(len(folders)), key=rank)[:count])


def has_reached(folder: Path, rung: int) -> bool:
    """True if the run in `folder` has ended, or has saved its state at `rung` or later."""
    if not (folder / "config.json").is_file():
        return False
    run = Run(folder)
    return run.files.summary.is_file() or run.saved_update >= rung


def _best_until(folder: Path, config: RunConfig, rung: int) -> float | None:
    """The best held-out metric until an update, with its sign changed where more is better."""
    if not (folder / "config.json").is_file():
        return None
    run = Run(folder)
    if _failed_before(run.summary(), rung):
        return None
    sign = -1.0 if config.task.higher_is_better else 1.0
    values = [
        sign * record[config.task.metric]
        for record in run.metrics()
        if record.get("split") == "valid" and record["update"] <= rung and record.get(config.task.metric) is not None
    ]
    return min(values, default=None)


def _failed_before(summary: Summary | None, rung: int) -> bool:
    """True if a run failed before it reached a rung; one that diverged at the very update of the rung did."""
    if summary is None or not summary.is_failure:
        return False
    return summary.updates < rung or (summary.outcome == "diverged" and summary.updates == rung)
