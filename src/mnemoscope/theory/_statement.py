"""A statement of a paper, with a check that confronts it with numbers.

Each file of `theory/` holds pure functions and, beside them, the statements they carry out::

    @statement("miller-hardt-lemma-1", paper="Miller & Hardt 2018", where="Lemma 1, eq. 3", status="holds",
               claim="the state of a stable system forgets what lies k steps back like lambda^k")
    def lemma_1() -> Iterator[Row]:
        yield Row("tanh RNN, n=16, k=10", bound=..., measured=...)

`mnemoscope theory` lists them and prints bound, measured value and their ratio.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

Status = Literal["holds", "corrected", "open"]
Relation = Literal["<=", "==", ">="]


@dataclass(frozen=True)
class Row:
    """One confrontation of a statement with numbers: `measured` stands in `relation` to `bound`.

    For an equality the two may differ by `tolerance`, relative to the bound.
    """

    case: str
    bound: float
    measured: float
    relation: Relation = "<="
    tolerance: float = 1e-9

    @property
    def ratio(self) -> float:
        """measured / bound: 1 is as tight as can be."""
        return self.measured / self.bound if self.bound else float(self.measured == 0) or float("inf")

    @property
    def holds(self) -> bool:
        slack = self.tolerance * max(abs(self.bound), abs(self.measured), 1e-300)
        match self.relation:
            case "<=":
                return self.measured <= self.bound + slack
            case ">=":
                return self.measured >= self.bound - slack
            case "==":
                return abs(self.measured - self.bound) <= slack


@dataclass(frozen=True)
class Statement:
    """A lemma, proposition, theorem, claim or conjecture, and how it fared."""

    name: str
    paper: str
    where: str
    status: Status
    claim: str
    check: Callable[[], Iterator[Row]]
    correction: str = ""


STATEMENTS: dict[str, Statement] = {}


def statement(
    name: str, *, paper: str, where: str, status: Status, claim: str, correction: str = ""
) -> Callable[[Callable[[], Iterator[Row]]], Callable[[], Iterator[Row]]]:
    """Register the decorated check under `name`; a corrected statement says in `correction` what was wrong."""
    if (status == "corrected") != bool(correction):
        raise ValueError(f"{name}: a correction is given exactly when the status is 'corrected'")

    def register(check: Callable[[], Iterator[Row]]) -> Callable[[], Iterator[Row]]:
        if name in STATEMENTS:
            raise ValueError(f"two statements are named {name!r}")
        STATEMENTS[name] = Statement(name, paper, where, status, claim, check, correction)
        return check

    return register
