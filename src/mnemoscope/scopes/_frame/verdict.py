"""The verdict in three sentences: how far the model remembers, how its dynamics are, and what to do."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import get_args

from mnemoscope.finding import Finding
from mnemoscope.scopes._frame.repeat import Kind
from mnemoscope.scopes._frame.scope import MIXING
from mnemoscope.scopes._frame.subject import Subject
from mnemoscope.wording import counted

UNREPEATED = tuple(kind for kind in get_args(Kind) if kind)
"""Kinds of model that give other outputs for the same inputs: said first."""

BROKEN = (*MIXING, "memoryless", "detached")
"""Kinds of model, found by the scope `recurrence`, for which a memory horizon means nothing."""

FEW_STEPS = 10  # fewer are seldom meant as a sequence

DYNAMICS = ("lyapunov", "stability", "smoothness")
"""Scopes whose sentence describes the dynamics, the most telling first."""


def verdict(findings: Mapping[str, Finding], subject: Subject) -> str:
    """Return three sentences on memory, dynamics and advice; one more before them if outputs are not repeated."""
    results = {name: finding for name, finding in findings.items() if finding.has_result}
    failures = [] if "horizon" in results else _failures(findings)
    memory = _memory(results, failures, subject)
    advice = _advice(results, failures, subject)
    return f"{memory} {_dynamics(results)} {advice}"


def _failures(findings: Mapping[str, Finding]) -> list[str]:
    """Return why `recurrence` and `horizon` failed, in this order."""
    tried = [findings[name] for name in ("recurrence", "horizon") if name in findings]
    return [finding.why for finding in tried if finding.status == "failed"]


def _memory(results: Mapping[str, Finding], failures: list[str], subject: Subject) -> str:
    recurrence = results.get("recurrence")
    kind = "" if recurrence is None else recurrence.labels.get("kind")
    if recurrence is not None and kind in UNREPEATED:
        horizon = f" {results['horizon'].sentence}" if "horizon" in results else ""
        return f"{recurrence.sentence}{horizon}"
    if recurrence is not None and kind in BROKEN:
        return recurrence.sentence
    if "horizon" in results:
        return results["horizon"].sentence
    if failures:
        return f"How far back {subject.name} remembers could not be measured: {failures[0]}."
    if recurrence is not None:
        return recurrence.sentence
    return f"How far back {subject.name} remembers was not measured."


def _dynamics(results: Mapping[str, Finding]) -> str:
    for name in DYNAMICS:
        if name in results:
            return results[name].sentence
    return "Its dynamics were not measured."


def _advice(results: Mapping[str, Finding], failures: list[str], subject: Subject) -> str:
    """Return the first warning; warnings of `recurrence` come first, then those of `horizon`, then by cost."""
    if failures:
        return "What to do: fix what could not be measured first."
    first = [results[name] for name in ("recurrence", "horizon") if name in results]
    for finding in [*first, *results.values()]:
        if finding.warnings and finding.scope == "horizon" and _outputs_reach_further(results, subject):
            depend = "outputs depend on inputs as far back as the task needs, as of units that are on or off"
            return f"What to do: nothing if it solves the task: {depend}; else, {finding.warnings[0]}."
        if finding.warnings:
            return f"What to do: {finding.warnings[0]}."
    if subject.steps < FEW_STEPS and subject.steps < subject.batch:
        turned = f"if they are {subject.steps} of {subject.batch}, pass the other batch_first"
        return (
            f"What to do: look at the layout: these are {subject.batch} sequences of {subject.steps} steps; {turned}."
        )
    window = math.inf
    if "truncation" in results:
        window = results["truncation"].figures.get("bptt_window", math.inf)
    reach = results["horizon"].figures.get("horizon", 0.0) if "horizon" in results else 0.0
    if reach < window <= subject.steps / 2:  # if not, gradients come from further back, by a way around the layer
        return f"Backpropagation may run in chunks of {counted(window, 'step')}."
    if "horizon" not in results:
        return "What to do cannot be said without its horizon."
    if subject.needs is None:
        return "Whether that is enough depends on the task: say how many steps back it needs (needs)."
    return "Nothing calls for a change."


def _outputs_reach_further(results: Mapping[str, Finding], subject: Subject) -> bool:
    """True if no gradient reaches as far as the task needs, but what is read there changes outputs."""
    if subject.needs is None or "truncation" not in results:
        return False
    figures, window = results["horizon"].figures, results["truncation"].figures.get("window", 0.0)
    reach = figures.get("horizon", math.inf)
    return reach < min(subject.needs, figures.get("lags", math.inf)) and window > subject.needs
