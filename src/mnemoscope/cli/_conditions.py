"""--fail-if "horizon<100": conditions on the figures of findings, for continuous integration."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from mnemoscope.errors import MnemoscopeError
from mnemoscope.finding import Examination
from mnemoscope.scopes import SCOPES

_SIGNS: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le, ">=": operator.ge, "==": operator.eq, "!=": operator.ne, "<": operator.lt, ">": operator.gt,
}  # fmt: skip


@dataclass(frozen=True)
class Condition:
    """``figure < number``, where the figure is ``scope.figure``, a scope's own (``horizon``), or any one's."""

    text: str
    name: str
    sign: str
    bound: float

    def failed(self, model: str, examination: Examination) -> str:
        """Why the model fails under this condition; empty if it does not. What was not measured cannot pass."""
        places = [(f"{f.scope}.{key}", value) for f in examination for key, value in f.figures.items()]
        wanted = {self.name, f"{self.name}.{self.name}"}
        exact = [value for key, value in places if key in wanted]
        values = exact or [value for key, value in places if key.partition(".")[2] == self.name]
        if not values:
            return f"{model}: {self.text} cannot be told: {self._missing(examination)}"
        if math.isnan(values[0]):
            return f"{model}: {self.text} cannot be told: {self.name} is not a number here"
        holds = _SIGNS[self.sign](values[0], self.bound)
        return f"{model}: {self.text} ({self.name} is {values[0]:.6g})" if holds else ""

    def _missing(self, examination: Examination) -> str:
        scope = self.name.partition(".")[0]
        if scope in examination.findings:
            finding = examination.findings[scope]
            if not finding.has_result:
                return finding.sentence.rstrip(".")
        elif scope in SCOPES:
            return f"{scope} was not measured"
        known = sorted({f"{f.scope}.{key}" for f in examination for key in f.figures})
        raise MnemoscopeError(f"fail-if: there is no figure {self.name!r}; there are {', '.join(known) or 'none'}")


def read_conditions(texts: Sequence[str]) -> list[Condition]:
    """Conditions as they were written: ``NAME<NUMBER``, with <, <=, >, >=, == or !=."""
    return [_read(text) for text in texts]


def _read(text: str) -> Condition:
    match = re.fullmatch(r"\s*([A-Za-z_][\w.]*)\s*(<=|>=|==|!=|<|>)\s*(\S+)\s*", text)
    try:
        if match is None:
            raise ValueError
        return Condition(text.strip(), match[1], match[2], float(match[3]))
    except ValueError:
        allowed = "a figure, one of < <= > >= == !=, and a number, as in 'horizon<100'"
        raise MnemoscopeError(f"fail-if = {text!r} is not allowed; it must be {allowed}") from None


def failures(conditions: Sequence[Condition], examinations: Mapping[str, Examination]) -> list[str]:
    """Every condition that holds, or cannot be told, for any model."""
    found = [c.failed(name, examination) for name, examination in examinations.items() for c in conditions]
    return [said for said in found if said]
