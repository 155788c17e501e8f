"""Measuring one target: progress in the terminal, and what is noted beside the findings."""

from __future__ import annotations

import json
import platform
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from types import FrameType
from typing import Any

import torch
from rich.progress import BarColumn, Progress, TextColumn

from mnemoscope.cli._commands.compare import standing
from mnemoscope.cli._console import terminal
from mnemoscope.cli._sequences import Sequences
from mnemoscope.cli._targets import Target
from mnemoscope.finding import Examination, Finding, arrays
from mnemoscope.scopes import SCOPES, examine


class Bar:
    """Which scope is under way and how long the rest may take: a bar in a terminal, lines elsewhere, or nothing."""

    def __init__(self, scopes: Sequence[str], budget: float, quiet: bool) -> None:
        self.costs = {name: SCOPES[name].cost for name in scopes}
        self.budget, self.console = budget, terminal()
        self._bar = None if quiet or not self.console.is_terminal else self._columns()
        self._lines = not quiet and self._bar is None
        self._name = self._scope = ""
        self._row: Any = None
        self._start = time.monotonic()

    def _columns(self) -> Progress:
        words = TextColumn("{task.description}", markup=False), BarColumn(None), TextColumn("{task.fields[left]}")
        return Progress(*words, console=self.console, transient=True)

    def __call__(self, scope: str, done: float, note: str) -> None:
        if scope != self._scope and self._lines:
            self.console.print(f"{self._name}: {scope}", highlight=False, soft_wrap=True)
        self._scope = scope
        if self._bar is not None:
            share = self._share(scope, done)
            words = f"{self._name} · {scope}" + (f" · {note}" if note else "")
            self._bar.update(self._row, description=words, completed=share, left=self._left(share))

    def _share(self, scope: str, done: float) -> float:
        """How much of all is done: scopes are measured from the cheapest to the dearest."""
        cost = self.costs.get(scope, 0.0)
        before = sum(c for name, c in self.costs.items() if name != scope and c <= cost)
        return (before + done * cost) / max(sum(self.costs.values()), 1e-9)

    def _left(self, share: float) -> str:
        passed = time.monotonic() - self._start
        guess = passed * (1 - share) / share if share > 0.02 else self.budget
        return f"{min(guess, max(self.budget - passed, 0)):.0f} s left at most"

    @contextmanager
    def over(self, name: str) -> Iterator[None]:
        self._name, self._scope, self._start = name, "", time.monotonic()
        if self._bar is None:
            yield
            return
        with self._bar:
            self._row = self._bar.add_task(name, total=1.0, left="")
            yield
            self._bar.remove_task(self._row)


@contextmanager
def stoppable() -> Iterator[list[int]]:
    """Let a termination signal end the measuring as Ctrl-C does; the exit code of the one that came, if one came."""
    codes: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        codes.append(128 + number)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield codes
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def threads(number: int) -> Iterator[None]:
    """Compute with so many CPU threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def measure(
    target: Target,
    sequences: Sequences,
    scopes: Sequence[str],
    budget: float,
    batch_first: bool | None,
    seed: int,
    bar: Bar,
) -> Examination:
    """Look at one target through the scopes; on Ctrl-C what was found so far, marked partial."""
    with bar.over(target.name):
        found = examine(
            target.model, sequences.inputs, sequences.targets, sequences.loss, scopes, budget, needs=sequences.needs,
            batch_first=batch_first, seed=seed, progress=bar,
        )  # fmt: skip
    about = {"name": target.name, "target": target.spec, **found.about, "source of the inputs": sequences.words}
    noted = {**about, "random seed": str(seed), **_configuration(target), **_versions(), **_machine(target)}
    learnt = {} if target.run is None else learning(target)
    return replace(found, about=noted, findings={**found.findings, **learnt})


LEARNING_HELP = (
    "Both curves are of held-out data. A loss that stays on the line “without memory” means that the network has "
    "learnt only what needs no memory."
)


def learning(target: Target) -> dict[str, Finding]:
    """How the run went, as a finding like the others."""
    assert target.run is not None
    row = standing(target.run)
    metric = row["metric"] or "loss"
    curve = [record for record in row["curve"] if record.get("loss") is not None]
    if not curve:
        return {}
    kept = ("best", "best_update", "baseline", "updates", "parameters")
    figures = {key: row[key] for key in kept if row[key] is not None}
    best = f"; best held-out {metric} {row['best']:.4g} at update {row['best_update']}" if "best" in figures else ""
    series = arrays(update=[record["update"] for record in curve], loss=[record["loss"] for record in curve])
    if metric != "loss" and all(record.get(metric) is not None for record in curve):
        series |= arrays(metric=[record[metric] for record in curve])
    sentence = f"{_OUTCOMES.get(row['outcome'], row['outcome'])} after {row['updates']} updates{best}."
    method = "evaluations on held-out batches, from the run's own records"
    labels = {"metric": metric}
    finding = Finding(
        "learning",
        sentence,
        "estimated",
        figures=figures,
        series=series,
        labels=labels,
        method=method,
        question="How did training go?",
        help=(LEARNING_HELP,),
    )
    return {"learning": finding}


_OUTCOMES = {
    "solved": "Training solved the task", "budget spent": "Training had spent its budget",
    "unfinished": "Training has not ended, and stands",
}  # fmt: skip


def _configuration(target: Target) -> dict[str, str]:
    if target.run is None or not isinstance(target.run.about, dict):
        return {}
    sections = {k: v for k, v in target.run.about.items() if isinstance(v, Mapping)}
    return {
        f"configuration/{part}.{name}": value if isinstance(value, str) else json.dumps(value)
        for part, section in sections.items()
        for name, value in section.items()
        if value is not None
    }


def _versions() -> dict[str, str]:
    found = {"versions/python": platform.python_version()}
    for name in ("mnemoscope", "torch", "numpy", "plotly"):
        try:
            found[f"versions/{name}"] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _machine(target: Target) -> dict[str, str]:
    parameters = list(target.model.parameters()) if isinstance(target.model, torch.nn.Module) else []
    device = parameters[0].device if parameters else torch.device("cpu")
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    threads = {"machine/threads": str(torch.get_num_threads())}
    return {"machine/system": platform.system(), "machine/device": f"{device}: {name}", **threads}
