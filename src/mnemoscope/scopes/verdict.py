"""Three sentences: how far the model remembers, how its dynamics are, and what to do."""

from __future__ import annotations

import math

from mnemoscope.finding import Finding
from mnemoscope.scopes.subject import Subject

BROKEN = ("runs over the batch", "mixes sequences", "memoryless", "detached")


def verdict(findings: dict[str, Finding], subject: Subject) -> str:
    """What the findings come to: memory, dynamics, advice."""
    found = {name: finding for name, finding in findings.items() if finding.found}
    return " ".join([_memory(found, subject), _dynamics(found), _advice(found, subject)])


def _memory(found: dict[str, Finding], subject: Subject) -> str:
    first = found.get("recurrence")
    if first is not None and first.labels.get("kind") in BROKEN:
        return first.sentence
    if "horizon" in found:
        return found["horizon"].sentence
    return first.sentence if first is not None else f"How far back {subject.name} remembers was not measured."


def _dynamics(found: dict[str, Finding]) -> str:
    for name in ("lyapunov", "stability", "smoothness"):
        if name in found:
            return found[name].sentence
    return "Its dynamics were not measured."


def _advice(found: dict[str, Finding], subject: Subject) -> str:
    warnings = [warning for name in ("recurrence", "horizon") if name in found for warning in found[name].warnings]
    warnings += [warning for finding in found.values() for warning in finding.warnings]
    if warnings:
        return f"What to do: {warnings[0]}."
    window = found["truncation"].figures.get("bptt_window", math.nan) if "truncation" in found else math.nan
    if math.isfinite(window) and window < subject.steps:
        return f"Backpropagation may be cut after {window:.0f} steps."
    return "Nothing calls for a change."
