"""Three sentences: how far the model remembers, how its dynamics are, and what to do."""

from __future__ import annotations

import math

from mnemoscope.finding import Finding
from mnemoscope.scopes._frame.subject import Subject

BROKEN = ("runs over the batch", "mixes sequences", "memoryless", "detached")


def verdict(findings: dict[str, Finding], subject: Subject) -> str:
    """What the findings come to: memory, dynamics, advice."""
    found = {name: finding for name, finding in findings.items() if finding.has_result}
    tried = [findings[name] for name in ("recurrence", "horizon") if name in findings and "horizon" not in found]
    failed = [finding.why for finding in tried if finding.status == "failed"]
    return " ".join([_memory(found, failed, subject), _dynamics(found), _advice(found, failed, subject)])


def _memory(found: dict[str, Finding], failed: list[str], subject: Subject) -> str:
    first = found.get("recurrence")
    if first is not None and first.labels.get("kind") in BROKEN:
        return first.sentence
    if "horizon" in found:
        return found["horizon"].sentence
    if failed:
        return f"How far back {subject.name} remembers could not be measured: {failed[0]}."
    return first.sentence if first is not None else f"How far back {subject.name} remembers was not measured."


def _dynamics(found: dict[str, Finding]) -> str:
    for name in ("lyapunov", "stability", "smoothness"):
        if name in found:
            return found[name].sentence
    return "Its dynamics were not measured."


def _advice(found: dict[str, Finding], failed: list[str], subject: Subject) -> str:
    if failed:
        return "What to do: mend what could not be measured first."
    warnings = [warning for name in ("recurrence", "horizon") if name in found for warning in found[name].warnings]
    warnings += [warning for finding in found.values() for warning in finding.warnings]
    if warnings:
        return f"What to do: {warnings[0]}."
    window = found["truncation"].figures.get("bptt_window", math.nan) if "truncation" in found else math.nan
    if math.isfinite(window) and window < subject.steps:
        return f"Backpropagation may be cut after {window:.0f} steps."
    return "Nothing calls for a change."
