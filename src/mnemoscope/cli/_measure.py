"""Examine one target: progress in the terminal, and what is recorded beside the findings."""

from __future__ import annotations

import json
import platform
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from types import FrameType
from typing import Any

import torch
from rich.progress import BarColumn, Progress, TextColumn
from torch import Tensor

from mnemoscope.cli._console import terminal
from mnemoscope.cli._run_row import run_row
from mnemoscope.cli._sequences import Reading, Sequences
from mnemoscope.cli._targets import Target
from mnemoscope.errors import MnemoscopeError, type_and_line
from mnemoscope.files import visible
from mnemoscope.finding import Examination, Finding
from mnemoscope.report import learning_finding
from mnemoscope.rl import Environment, Policy, film
from mnemoscope.scopes import SCOPES, examine


class ScopeProgress:
    """Shows which scope runs and how long the rest may take: a bar in a terminal, lines elsewhere, nothing if quiet.

    Call it as the `progress` of `examine`.
    """

    def __init__(self, scopes: Sequence[str], budget: float, quiet: bool) -> None:
        self.costs = {name: SCOPES[name].cost for name in scopes}
        self.budget = budget
        self.console = terminal()
        self._bar = self._make_bar() if self.console.is_terminal and not quiet else None
        self._prints_lines = not quiet and self._bar is None
        self._bar_task: Any = None
        self._model = ""
        self._scope = ""
        self._start = time.monotonic()

    def _make_bar(self) -> Progress:
        name = TextColumn("{task.description}", markup=False)
        left = TextColumn("{task.fields[left]}")
        return Progress(name, BarColumn(None), left, console=self.console, transient=True)

    def __call__(self, scope: str, done: float, note: str) -> None:
        if scope != self._scope and self._prints_lines:
            self.console.print(f"{self._model}: {scope}", highlight=False, soft_wrap=True)
        self._scope = scope
        if self._bar is not None:
            fraction = self._fraction(scope, done)
            description = f"{self._model} · {scope}" + (f" · {note}" if note else "")
            self._bar.update(self._bar_task, description=description, completed=fraction, left=self._left(fraction))

    def _fraction(self, scope: str, done: float) -> float:
        """How much of all scopes is done; they run cheapest first."""
        cost = self.costs.get(scope, 0.0)
        before = sum(other for name, other in self.costs.items() if name != scope and other <= cost)
        return (before + done * cost) / max(sum(self.costs.values()), 1e-9)

    def _left(self, fraction: float) -> str:
        elapsed = time.monotonic() - self._start
        estimate = elapsed * (1 - fraction) / fraction if fraction > 0.02 else self.budget
        return f"{min(estimate, max(self.budget - elapsed, 0)):.0f} s left at most"

    @contextmanager
    def shown(self, model: str) -> Iterator[None]:
        """Show the progress over one model."""
        self._model = visible(model)
        self._scope = ""
        self._start = time.monotonic()
        if self._bar is None:
            yield
            return
        with self._bar:
            self._bar_task = self._bar.add_task(self._model, total=1.0, left="")
            yield
            self._bar.remove_task(self._bar_task)


@contextmanager
def stoppable() -> Iterator[list[int]]:
    """Let a termination signal end the measuring as Ctrl-C does; yields a list that gets the signal's exit code."""
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
def num_threads(number: int) -> Iterator[None]:
    """Compute with `number` CPU threads."""
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
    options: dict[str, dict[str, Any]],
    budget: float,
    reading: Reading,
    seed: int,
    progress: ScopeProgress,
) -> Examination:
    """Examine one target; after Ctrl-C return what was found so far, marked partial."""
    model, inputs = _behind_categories(target.model, sequences.inputs)
    with progress.shown(target.name):
        examination = examine(
            model,
            inputs,
            sequences.targets,
            sequences.loss,
            scopes,
            budget,
            needs=sequences.needs,
            seed=seed,
            progress=progress,
            options=options,
            **reading.options(),
        )

    # What was examined, for the page.
    about = {
        "name": target.name,
        "target": target.spec,
        **examination.about,
        "source of the inputs": sequences.description,
        "random seed": str(seed),
        **_known_answers(sequences),
        **_configuration(target),
        **_versions(),
        **_machine(target),
    }

    # How the run learned, and an episode of an agent, are findings beside those of the scopes.
    findings = dict(examination.findings)
    learning = None if target.run is None else learning_finding(run_row(target.run))
    if learning is not None:
        findings["learning"] = learning
    if isinstance(target.model, Policy) and isinstance(sequences.task, Environment):
        findings["episode"] = _episode(target.model, sequences.task, seed)
    return replace(examination, about=about, findings=findings)


def _episode(policy: Policy, task: Environment, seed: int) -> Finding:
    """An episode of an agent. An environment that fails now must not cost the findings that there are."""
    try:
        return film(policy, task, seed=seed)
    except Exception as error:
        why = str(error) if isinstance(error, MnemoscopeError) else type_and_line(error)
        return Finding("episode", f"episode failed: {why}.", "failed", why=why)


def _behind_categories(model: Any, inputs: Tensor) -> tuple[Any, Tensor]:
    """An agent that sees categories behind its encoder, and its features: there are no gradients by categories."""
    if not isinstance(model, Policy) or (model.spec.cells is None and not model.spec.words):
        return model, inputs
    with torch.no_grad():
        return model.behind_encoder(), model.embed(inputs)


def _known_answers(sequences: Sequences) -> dict[str, str]:
    """What is known of a system, beside which its findings are read."""
    return {
        f"known answers/{answer.scope}.{answer.figure}": f"{answer.value:.6g}, {answer.source}"
        for answer in sequences.known
    }


def _configuration(target: Target) -> dict[str, str]:
    if target.run is None:
        return {}
    return {
        f"configuration/{section_name}.{name}": value if isinstance(value, str) else json.dumps(value)
        for section_name, section in target.run.about.sections.items()
        for name, value in section.items()
        if value is not None
    }


def _versions() -> dict[str, str]:
    versions = {"versions/python": platform.python_version()}
    for name in ("mnemoscope", "torch", "numpy", "plotly"):
        try:
            versions[f"versions/{name}"] = version(name)
        except PackageNotFoundError:
            continue
    return versions


def _machine(target: Target) -> dict[str, str]:
    parameters = list(target.model.parameters()) if isinstance(target.model, torch.nn.Module) else []
    device = parameters[0].device if parameters else torch.device("cpu")
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    return {
        "machine/system": platform.system(),
        "machine/device": f"{device}: {name}",
        "machine/threads": str(torch.get_num_threads()),
    }
