"""--fail-if "horizon<100": conditions on the figures of findings, for continuous integration.

"stability.lambda>0.9:certified" also fails if the figure is only estimated.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from mnemoscope.errors import MnemoscopeError, did_you_mean
from mnemoscope.finding import Examination, Status
from mnemoscope.scopes import SCOPES

_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
}

BESIDE_SCOPES = {
    "learning": {"best", "best_update", "baseline", "updates", "parameters"},
    "episode": {"steps", "return", "first_step", "cue_last_seen", "decision", "attention_to_cue"},
}
"""Figures of the findings that a run has beside those of the scopes."""


@dataclass(frozen=True)
class Condition:
    """``NAME < NUMBER``. NAME is ``scope.figure``, a scope whose figure has its name, or a figure of one scope alone.

    With ``:certified`` after the number, a figure that is not proved cannot pass.
    """

    text: str
    name: str
    operator: str
    bound: float
    certified: bool = False

    def failure(self, model: str, examination: Examination) -> str:
        """Return why the model fails, or "" if it passes. A figure that was not measured cannot pass."""
        found = self._figure(examination)
        if found is None:
            return f"{model}: {self.text} cannot be decided: {self._missing(examination)}"
        value, status = found
        if self.certified and status != "certified":
            return f"{model}: {self.text} cannot be decided: {self.name} is {status}, not certified"
        if math.isnan(value):
            return f"{model}: {self.text} cannot be decided: {self.name} is NaN here"
        if _OPERATORS[self.operator](value, self.bound):
            return f"{model}: {self.text} ({self.name} is {value:.6g})"
        return ""

    def _figure(self, examination: Examination) -> tuple[float, Status] | None:
        """Return the value and the status of the figure that is meant; None if there is none."""
        figures = {
            f"{finding.scope}.{key}": (value, finding.status_of(key))
            for finding in examination
            for key, value in finding.figures.items()
        }
        for name in (self.name, f"{self.name}.{self.name}"):
            if name in figures:
                return figures[name]
        return next((figure for name, figure in figures.items() if name.partition(".")[2] == self.name), None)

    def _missing(self, examination: Examination) -> str:
        """Why there is no such figure; a name that no scope could have is a user error."""
        scope = self.name.partition(".")[0]
        if scope in examination.findings:
            finding = examination.findings[scope]
            if not finding.has_result:
                return finding.sentence.rstrip(".")
        elif scope in SCOPES:
            return f"{scope} was not measured"
        for finding in examination:
            if self.name in _documented(finding.scope):
                without = f"{finding.scope} has no {self.name} of this model"
                return without if finding.has_result else finding.sentence.rstrip(".")
        known = sorted({f"{finding.scope}.{key}" for finding in examination for key in finding.figures})
        raise MnemoscopeError(f"fail-if: there is no figure {self.name!r}; there are {', '.join(known) or 'none'}")


def read_conditions(texts: Sequence[str]) -> list[Condition]:
    """Parse conditions as users write them: ``NAME<NUMBER[:certified]``, with <, <=, >, >=, == or !=.

    A name that no scope has, or that several have, is refused here, before anything is measured.
    """
    conditions = [_read_condition(text) for text in texts]
    for condition in conditions:
        _check_name(condition.name)
    return conditions


def _check_name(name: str) -> None:
    known = {scope: _documented(scope) for scope in SCOPES} | BESIDE_SCOPES
    bare = {figure for figures in known.values() for figure in figures}
    whole = {f"{scope}.{figure}" for scope, figures in known.items() for figure in figures}
    owners = sorted(scope for scope in SCOPES if name in _figures(scope))
    owners += [scope for scope, figures in BESIDE_SCOPES.items() if name in figures]
    if len(owners) > 1 and name not in SCOPES:  # which of them a model has would decide what the condition means
        choices = " or ".join(f"{scope}.{name}" for scope in owners)
        raise MnemoscopeError(f"fail-if: several scopes have a figure {name!r}: say {choices}")
    if name in bare | whole:
        return
    hint = did_you_mean(name, sorted(whole if "." in name else bare)) or "; docs/scopes.md and findings.json name them"
    raise MnemoscopeError(f"fail-if: there is no figure {name!r}{hint}")


def _documented(scope: str) -> set[str]:
    """The names that the text of a scope gives to what it finds: its figures, and some more."""
    return set(re.findall(r"`(?:figures\[\")?(\w+)(?:\"\])?`", SCOPES[scope].measure.__doc__ or ""))


def _figures(scope: str) -> set[str]:
    """The names of a scope's figures, without its series and options: those after "Figures:" in its text."""
    parts = re.split(r"\b(Figures|Series|Labels|Spread|Args|Examples)\b[^:`]*:", SCOPES[scope].measure.__doc__ or "")
    texts = [text for title, text in zip(parts[1::2], parts[2::2], strict=True) if title == "Figures"]
    return {name for text in texts for name in re.findall(r"`(\w+)`", text)}


def _read_condition(text: str) -> Condition:
    match = re.fullmatch(r"\s*([A-Za-z_][\w.]*)\s*(<=|>=|==|!=|<|>)\s*([^\s:]+)(:certified)?\s*", text)
    try:
        if match is None or math.isnan(float(match[3])):  # nothing is below or above NaN: it would never fail
            raise ValueError
        return Condition(text.strip(), match[1], match[2], float(match[3]), certified=match[4] is not None)
    except ValueError:
        allowed = (
            "a figure, one of < <= > >= == !=, and a number, as in 'horizon<100'; ':certified' may follow the number"
        )
        raise MnemoscopeError(f"fail-if = {text!r} is not allowed; it must be {allowed}") from None


def failures(conditions: Sequence[Condition], examinations: Mapping[str, Examination]) -> list[str]:
    """Return a line for every condition that holds, or cannot be decided, for any model."""
    lines = []
    for name, examination in examinations.items():
        for condition in conditions:
            line = condition.failure(name, examination)
            if line:
                lines.append(line)
    return lines
