"""What a page says first: alarms, the verdict, warnings, and the four figures that matter."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from mnemoscope.finding import Examination
from mnemoscope.report._chart import figure
from mnemoscope.report._view import needs_of

BROKEN = ("runs over the batch", "mixes sequences", "memoryless", "detached")
"""Kinds of recurrence that are hardly meant: nothing else on the page means much then."""

NEEDS = "the task needs"


@dataclass(frozen=True)
class Warned:
    """A warning and whose it is; `words` say what is wrong, `remedy` what to do."""

    model: str
    words: str
    remedy: str


@dataclass(frozen=True)
class Reading:
    """One model's value under a headline: the value itself, a remark, and whether it is good or bad news."""

    model: str
    place: int
    value: str
    remark: str
    tone: str = ""  # "good", "bad" or neither


@dataclass(frozen=True)
class Headline:
    """A figure that matters, of every model, with a link to the chart behind it."""

    title: str
    scope: str
    readings: tuple[Reading, ...]


def alarms(examinations: Mapping[str, Examination]) -> list[Warned]:
    """Models that do not remember as they were meant to, a forgotten batch_first first of all."""
    found = []
    for name, examination in examinations.items():
        finding = examination.findings.get("recurrence")
        if finding is not None and finding.labels.get("kind") in BROKEN:
            rank = BROKEN.index(str(finding.labels["kind"]))
            found.append((rank, Warned(name, finding.sentence, "; ".join(finding.warnings))))
    return [warned for _, warned in sorted(found, key=lambda pair: pair[0])]


def warnings(examinations: Mapping[str, Examination]) -> list[Warned]:
    """Every other warning, in the order of the findings."""
    alarmed = {alarm.model for alarm in alarms(examinations)}
    return [
        Warned(name, finding.scope, warning)
        for name, examination in examinations.items()
        for finding in examination
        for warning in finding.warnings
        if not (finding.scope == "recurrence" and name in alarmed)
    ]


def verdict(examinations: Mapping[str, Examination]) -> list[str]:
    """The verdict of one model; of several, how far each reaches, how each moves, and how short BPTT may be cut."""
    if len(examinations) == 1:
        return [examination.verdict for examination in examinations.values()]
    columns = headlines(examinations)
    moves = "; ".join(f"{r.model} {r.value} ({r.remark})" for r in columns[1].readings)
    cuts = "; ".join(f"{r.model} {r.value}" for r in columns[2].readings)
    return [_reach(columns[0].readings), f"Dynamics: {moves}.", f"Backpropagation through time: {cuts}."]


def _reach(readings: tuple[Reading, ...]) -> str:
    """How far each reaches; what the task needs is said once, where it is the same for all that reach an end."""
    needs = {r.remark for r in readings if r.remark.startswith(NEEDS)}
    common = needs.pop() if len(needs) == 1 else ""
    said = "; ".join(f"{r.model} {r.value}{_remark(r, common)}" for r in readings)
    return f"How far back gradients reach{f', where {common}' if common else ''}: {said}."


def _remark(reading: Reading, common: str) -> str:
    if reading.remark == common:
        return ", which is not enough" if reading.tone == "bad" else ""
    return f" ({reading.remark})" if reading.remark else ""


def headlines(examinations: Mapping[str, Examination]) -> list[Headline]:
    """Horizon against need, regime, safe BPTT length, gradient at the far end."""
    kinds = (
        ("Memory horizon", "horizon", _horizon), ("Dynamics", "lyapunov", _regime),
        ("Safe BPTT length", "truncation", _window), ("Gradient at the far end", "horizon", _far),
    )  # fmt: skip
    return [
        Headline(title, _linked(scope, examinations), tuple(
            Reading(name, place, *read(examination)) for place, (name, examination) in enumerate(examinations.items())
        ))
        for title, scope, read in kinds
    ]  # fmt: skip


def _linked(scope: str, examinations: Mapping[str, Examination]) -> str:
    others = ("stability",) if scope == "lyapunov" else ()
    seen = [s for s in (scope, *others) for e in examinations.values() if s in e.findings and e.findings[s].has_result]
    return seen[0] if seen else scope


def _number(examination: Examination, scope: str, name: str) -> float:
    finding = examination.findings.get(scope)
    return finding.figures.get(name, math.nan) if finding is not None and finding.has_result else math.nan


def _horizon(examination: Examination) -> tuple[str, str, str]:
    reach, lags = (_number(examination, "horizon", key) for key in ("horizon", "lags"))
    if math.isnan(reach):
        return _missing(examination, "horizon")
    if math.isfinite(_number(examination, "horizon", "explodes_at")):
        return "explodes", f"from {figure(_number(examination, 'horizon', 'explodes_at'))} steps back", "bad"
    needs = needs_of(examination)
    value = f"{figure(max(reach, 0))} steps" if reach < lags else f"all {figure(lags)} steps"
    if needs is None:
        return value, f"of {figure(lags)} looked at" if reach < lags else "", ""
    enough = reach >= min(needs, lags)
    return value, f"{NEEDS} {figure(needs)}", "good" if enough else "bad"


def _regime(examination: Examination) -> tuple[str, str, str]:
    """What was proved; else how states move in the long run; else the largest stretch that one step was seen to do."""
    lam, exponent = _number(examination, "stability", "lambda"), _number(examination, "lyapunov", "largest")
    if not math.isnan(lam) and examination.findings["stability"].status == "certified":
        return _word(examination, "stability"), f"λ = {figure(lam)}, certified", ""
    if not math.isnan(exponent):
        regime, _, memory = _word(examination, "lyapunov").partition(" beside ")
        said = f"exponent {figure(exponent)} a step{f', beside {memory}' if memory else ''}"
        return regime, said, "bad" if regime == "chaotic" else ""
    if not math.isnan(lam):
        return _word(examination, "stability"), f"λ ≈ {figure(lam)}", ""
    return _missing(examination, "lyapunov")


def _word(examination: Examination, scope: str) -> str:
    return str(examination.findings[scope].labels.get("regime", ""))


def _window(examination: Examination) -> tuple[str, str, str]:
    window, steps = (_number(examination, "truncation", key) for key in ("bptt_window", "steps"))
    if math.isnan(window):
        return _missing(examination, "truncation")
    if not window < steps:
        return f"all {figure(steps)} steps", "no shorter one keeps the gradient", ""
    return f"{figure(window)} steps", "keep the gradient to 1 %", ""


def _far(examination: Examination) -> tuple[str, str, str]:
    finding = examination.findings.get("horizon")
    profile = finding.series.get("input_gradient") if finding is not None and finding.has_result else None
    if profile is None or not len(profile) or not profile[0] > 0:
        return _missing(examination, "horizon")
    needs = needs_of(examination)
    lag = len(profile) - 1 if needs is None else min(int(needs), len(profile) - 1)
    share = float(profile[lag] / profile[0])
    tone = "bad" if share < 1e-2 or not share <= 1e2 else "good"
    return figure(share), f"of its size, {figure(lag)} steps back", tone if needs is not None else ""


def _missing(examination: Examination, scope: str) -> tuple[str, str, str]:
    finding = examination.findings.get(scope)
    return "–", "not measured" if finding is None or finding.has_result else finding.status, ""
