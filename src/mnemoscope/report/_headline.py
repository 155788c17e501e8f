"""What a page says first: alarms, the verdict, the four figures that matter, and warnings."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from mnemoscope.finding import Examination
from mnemoscope.report._chart import format_number
from mnemoscope.report._view import needs_of
from mnemoscope.wording import all_counted, told_from_one, with_error

OVER_BATCH = "runs over the batch"

UNREPEATED_KINDS = ("changes between calls", "keeps state between calls", "is random")
"""Kinds of model that give other outputs for the same inputs."""

ALARMING_KINDS = (
    *UNREPEATED_KINDS,
    OVER_BATCH,
    "mixes sequences",
    "memoryless",
    "detached",
)
"""Kinds of recurrence that are hardly ever intended, worst first: other findings then mean less, or nothing."""

DYNAMICS = ("lyapunov", "stability")
BETWEEN = " between remembered states"  # what the regime of a model with a memory is about
NEEDS = "the task needs"
USUAL = 1e-2  # the fraction of a gradient, and the error of a window, in findings that do not say theirs


@dataclass(frozen=True)
class Alarm:
    """A model that does not run or remember as it was meant to: what is wrong, and what to do."""

    model: str
    kind: str  # one of ALARMING_KINDS
    sentence: str
    remedy: str

    @property
    def heading(self) -> str:
        """What is wrong, in a few words."""
        repeats = self.kind not in UNREPEATED_KINDS
        wrong = "does not remember as it should" if repeats else "gives other outputs for the same inputs"
        return f"{self.model} {wrong}"


@dataclass(frozen=True)
class ScopeWarning:
    """A warning in one model's finding."""

    model: str
    scope: str
    text: str


@dataclass(frozen=True)
class HeadlineValue:
    """One model's value under a headline: the value, a remark, whether it is good or bad news, status and spread."""

    model: str
    index: int  # of the model among all on the page
    value: str
    remark: str
    tone: str = ""  # "good", "bad" or neither
    status: str = ""  # "certified" or "estimated"; empty if there is no value
    spread: str = ""  # over what was looked at, in words; empty if there is none, as of what is proved

    @property
    def note(self) -> str:
        """The remark and the status, as lists and tables say them after the value."""
        return ", ".join(text for text in (self.remark, self.status) if text)


@dataclass(frozen=True)
class Headline:
    """A figure that matters, of every model, with the scope to link to."""

    title: str
    scope: str
    values: tuple[HeadlineValue, ...]


class HeadlineParts(NamedTuple):
    """What one examination says under a headline, as in `HeadlineValue`."""

    value: str
    remark: str = ""
    tone: str = ""
    status: str = ""


def alarms(examinations: Mapping[str, Examination]) -> list[Alarm]:
    """Return what a page warns of at its top: every model whose recurrence is broken, the worst first."""
    ranked = []
    for name, examination in examinations.items():
        finding = examination.findings.get("recurrence")
        if finding is not None and finding.labels.get("kind") in ALARMING_KINDS:
            kind = str(finding.labels["kind"])
            alarm = Alarm(name, kind, finding.sentence, "; ".join(finding.warnings))
            ranked.append((ALARMING_KINDS.index(kind), alarm))
    return [alarm for _, alarm in sorted(ranked, key=lambda pair: pair[0])]


def warnings(examinations: Mapping[str, Examination]) -> list[ScopeWarning]:
    """Return every warning that is not part of an alarm, in the order of the findings."""
    alarmed = {alarm.model for alarm in alarms(examinations)}
    return [
        ScopeWarning(name, finding.scope, text)
        for name, examination in examinations.items()
        for finding in examination
        for text in finding.warnings
        if not (finding.scope == "recurrence" and name in alarmed)
    ]


def verdict(examinations: Mapping[str, Examination]) -> list[str]:
    """Return one model's verdict; of several models, sentences that compare them.

    They compare how far back each reaches, how each moves, and how short backpropagation through time may be cut.
    """
    if len(examinations) == 1:
        return [examination.verdict for examination in examinations.values()]
    horizon, dynamics, window, _ = headlines(examinations)
    regimes = "; ".join(f"{value.model} {value.value} ({value.note})" for value in dynamics.values)
    windows = "; ".join(f"{value.model} {value.value}" for value in window.values)
    compared = [_compare_horizons(horizon.values), f"Dynamics: {regimes}.", f"Safe BPTT length: {windows}."]
    return [*filter(None, [mixed_layouts(examinations)]), *compared]


def mixed_layouts(examinations: Mapping[str, Examination]) -> str:
    """Say that one model took for time what another took for the batch; empty if none did."""
    read = {name: examination.about.get("inputs", "") for name, examination in examinations.items()}
    for name, inputs in read.items():
        for other, turned in read.items():
            if inputs != turned and re.findall(r"\d+", inputs) == re.findall(r"\d+", turned)[::-1]:
                return (
                    f"{name} read {inputs}, {other} {turned}: what is time to one is the batch to the other, and their "
                    "figures cannot be compared. Read both the same way: batch_first=, --batch-first or --time-first."
                )
    return ""


def _compare_horizons(values: tuple[HeadlineValue, ...]) -> str:
    """Mention what the task needs once if it is the same for all models."""
    needs = {value.remark for value in values if value.remark.startswith(NEEDS)}
    common = needs.pop() if len(needs) == 1 else ""
    where = f", where {common}" if common else ""
    compared = "; ".join(f"{value.model} {value.value}{_horizon_remark(value, common)}" for value in values)
    return f"How far back gradients reach{where}: {compared}."


def _horizon_remark(value: HeadlineValue, common: str) -> str:
    if value.remark == common:
        return ", which is not enough" if value.tone == "bad" else ""
    return f" ({value.remark})" if value.remark else ""


def headlines(examinations: Mapping[str, Examination]) -> list[Headline]:
    """Return four headlines: horizon against need, regime, safe BPTT length, gradient at the far end."""
    return [
        _headline("Memory horizon", ("horizon",), _horizon, _horizon_spread, examinations),
        _headline("Dynamics", DYNAMICS, _regime, _regime_spread, examinations),
        _headline("Safe BPTT length", ("truncation",), _window, _window_spread, examinations),
        _headline("Gradient at the far end", ("horizon",), _far_gradient, _far_gradient_spread, examinations),
    ]


def _headline(
    title: str,
    scopes: tuple[str, ...],
    read: Callable[[Examination], HeadlineParts],
    read_spread: Callable[[Examination], str],
    examinations: Mapping[str, Examination],
) -> Headline:
    """A headline links to the first of `scopes` that any model has a finding of."""
    found = [scope for scope in scopes if any(_has(examination, scope) for examination in examinations.values())]
    values = []
    for index, (name, examination) in enumerate(examinations.items()):
        parts = read(examination)
        if scopes != DYNAMICS and _kind(examination) == OVER_BATCH:  # lags are sequences then, not steps
            parts = HeadlineParts("–", f"it {OVER_BATCH}", "bad")
        spread = read_spread(examination) if parts.status == "estimated" else ""
        values.append(HeadlineValue(name, index, *parts, spread))
    return Headline(title, found[0] if found else scopes[0], tuple(values))


def _kind(examination: Examination) -> str:
    """The kind of recurrence that was found; empty if none was looked for."""
    return str(examination.findings["recurrence"].labels.get("kind", "")) if _has(examination, "recurrence") else ""


def _has(examination: Examination, scope: str) -> bool:
    return scope in examination.findings and examination.findings[scope].has_result


def _figure(examination: Examination, scope: str, name: str) -> float:
    """A figure of a scope's finding; NaN if it is not there."""
    if not _has(examination, scope):
        return math.nan
    return examination.findings[scope].figures.get(name, math.nan)


def _fraction(examination: Examination) -> float:
    """The fraction of the largest gradient of the past, below which a gradient counts as gone."""
    fraction = _figure(examination, "horizon", "fraction")
    return USUAL if math.isnan(fraction) else fraction


def _status(examination: Examination, scope: str, figure: str) -> str:
    """The status of a figure of a scope's finding."""
    return examination.findings[scope].status_of(figure)


def _short(number: float) -> str:
    """A measured number, to 3 significant digits: the spread below it leaves no more."""
    return format_number(float(f"{number:.3g}"))


def _factor(number: float) -> str:
    """The same of a factor per step: whether it is below 1 can be seen."""
    return told_from_one(number) if f"{number:.3g}" == "1" else _short(number)


def _steps(number: float) -> str:
    """A number of steps, as people write it."""
    return f"{format_number(number)} {'step' if number == 1 else 'steps'}"


def _all_steps(number: float) -> str:
    return all_counted(number, "step") if number <= 2 else f"all {_steps(number)}"


def _horizon(examination: Examination) -> HeadlineParts:
    horizon = _figure(examination, "horizon", "horizon")
    lags = _figure(examination, "horizon", "lags")
    explodes_at = _figure(examination, "horizon", "explodes_at")
    if math.isnan(horizon):
        return _missing(examination, "horizon")
    status = _status(examination, "horizon", "horizon")
    if math.isfinite(explodes_at):
        return HeadlineParts("explodes", f"from {_steps(explodes_at)} back", "bad", status)

    # A horizon at the last lag means that the gradient was still there where the sequences began.
    to_the_start = not horizon < lags
    returns_at = _figure(examination, "horizon", "returns_at")
    has_gap = math.isfinite(returns_at)
    if has_gap:
        reach = _figure(examination, "horizon", "first_below") - 1
        again = f"{format_number(returns_at)} to {_steps(horizon)}" if returns_at < horizon else _steps(horizon)
        value = f"{format_number(reach)}, and {again}"
    else:
        value = _all_steps(lags) if to_the_start else _steps(max(horizon, 0))
    needs = needs_of(examination)
    if needs is None:
        remark = "" if to_the_start and not has_gap else f"of {format_number(lags)} looked at"
        return HeadlineParts(value, remark, status=status)
    enough = horizon >= min(needs, lags) and not _figure(examination, "horizon", "at_need") < _fraction(examination)
    tone = "bad"
    if enough:
        tone = "good" if needs <= lags else ""  # nothing is known of steps that were not looked at
    return HeadlineParts(value, f"{NEEDS} {format_number(needs)}", tone, status)


def _horizon_spread(examination: Examination) -> str:
    """The 5 % and 95 % quantiles of the horizons of single sequences and output steps."""
    found = examination.findings["horizon"].spread.get("horizon")
    if found is None or math.isfinite(_figure(examination, "horizon", "explodes_at")):
        return ""
    falls = examination.findings["horizon"].spread.get("first_below")
    if falls is not None and math.isfinite(_figure(examination, "horizon", "returns_at")):
        return f"the first {_range_over(falls - 1, 'sequences and output steps')}"
    return _range_over(found.clip(0), "sequences and output steps")


def _regime(examination: Examination) -> HeadlineParts:
    """What was proved; else how states move in the long run; else the largest stretch that was seen in one step."""
    factor = _figure(examination, "stability", "lambda")
    exponent = _figure(examination, "lyapunov", "largest")
    if not math.isnan(factor) and examination.findings["stability"].status_of("lambda") == "certified":
        regime = _regime_label(examination, "stability")
        return HeadlineParts(regime, f"λ = {_factor(factor)}", status="certified")
    if not math.isnan(exponent):
        label = _regime_label(examination, "lyapunov")
        regime = label.removesuffix(" beside its memory").removesuffix(BETWEEN)  # the former in the first findings
        error = 2 * _figure(examination, "lyapunov", "standard_error")
        remark = f"exponent {with_error(exponent, error)} per step" + (f",{BETWEEN}" if regime != label else "")
        tone = "bad" if regime in ("chaotic", "diverging", "unstable fixed point") else ""
        return HeadlineParts(regime, remark, tone, _status(examination, "lyapunov", "largest"))
    if not math.isnan(factor):
        regime = _regime_label(examination, "stability")
        return HeadlineParts(regime, f"λ ≈ {_factor(factor)}", status="estimated")
    return _missing(examination, "lyapunov")


def _regime_spread(examination: Examination) -> str:
    error = _figure(examination, "lyapunov", "standard_error")
    if math.isfinite(error):
        return "± two standard errors"
    typical = _figure(examination, "stability", "typical_jacobian")
    return f"the largest; {_short(typical)} in the median" if math.isfinite(typical) else ""


def _regime_label(examination: Examination, scope: str) -> str:
    return str(examination.findings[scope].labels.get("regime", ""))


def _window(examination: Examination) -> HeadlineParts:
    window = _figure(examination, "truncation", "bptt_window")
    steps = _figure(examination, "truncation", "steps")
    if math.isnan(window):
        return _missing(examination, "truncation")
    status = _status(examination, "truncation", "bptt_window")
    coarse = _figure(examination, "truncation", "bptt_window_coarse")
    is_measured = not _figure(examination, "truncation", "bptt_window_measured") < window  # else the task needs it
    has_shorter = is_measured and coarse < min(window, steps)
    error = _figure(examination, "truncation", "error")
    percent = 100 * (USUAL if math.isnan(error) else error)
    shorter = f"; {format_number(coarse)} keep it within {10 * percent:g} %" if has_shorter else ""
    kept = f"the gradient within {percent:g} %{shorter}"
    if not window < steps:
        return HeadlineParts(_all_steps(steps), f"no fewer keep {kept}", status=status)
    return HeadlineParts(_steps(window), f"keep {kept}", status=status)


def _window_spread(examination: Examination) -> str:
    """The least and the largest window of groups of sequences; what was measured, if the task needs more."""
    finding = examination.findings["truncation"]
    measured = _figure(examination, "truncation", "bptt_window_measured")
    over = _range_over(finding.spread.get("bptt_window_measured"), str(finding.labels.get("over", "sequences")))
    if math.isnan(measured) or measured == _figure(examination, "truncation", "bptt_window"):
        return over
    return ", ".join(text for text in (f"{format_number(measured)} were measured", over) if text)


def _range_over(found: np.ndarray | None, over: str) -> str:
    """The range of a figure over sequences, in words; empty if it is not known."""
    if found is None or found.shape != (2,):
        return ""
    low, high = found
    if low == high:
        return f"the same for all {over}"
    return f"{format_number(low)} to {format_number(high)} over {over}"


def _far_gradient(examination: Examination) -> HeadlineParts:
    """The gradient at the lag that the task needs, or at the last lag, relative to the largest of the past."""
    gradient = examination.findings["horizon"].series.get("input_gradient") if _has(examination, "horizon") else None
    if gradient is None or gradient.ndim != 1 or len(gradient) < 2 or not np.nanmax(gradient[1:]) > 0:
        return _missing(examination, "horizon")
    needs = needs_of(examination)
    lag = _far_lag(examination, gradient)
    relative = float(gradient[lag] / np.nanmax(gradient[1:]))
    tone = ""
    if needs is not None:
        explodes = math.isfinite(_figure(examination, "horizon", "explodes_at"))
        if explodes or not relative >= _fraction(examination):
            tone = "bad"
        elif needs < len(gradient):
            tone = "good"
    remark = f"times the largest, {_steps(lag)} back"
    return HeadlineParts(_short(relative), remark, tone, "estimated")


def _far_gradient_spread(examination: Examination) -> str:
    """The quartiles over sequences and output steps, on the scale of the value itself."""
    finding = examination.findings["horizon"]
    gradient, quartiles = finding.series["input_gradient"], finding.spread.get("input_gradient")
    if quartiles is None or quartiles.shape != (2, len(gradient)):
        return ""
    low, high = quartiles[:, _far_lag(examination, gradient)] / np.nanmax(gradient[1:])
    return f"{_short(low)} to {_short(high)} in the middle half"


def _far_lag(examination: Examination, gradient: np.ndarray) -> int:
    """The lag that the task needs, or the last one."""
    needs = needs_of(examination)
    last = len(gradient) - 1
    return last if needs is None else min(int(needs), last)


def _missing(examination: Examination, scope: str) -> HeadlineParts:
    finding = examination.findings.get(scope)
    return HeadlineParts("–", "not measured" if finding is None or finding.has_result else finding.status)
