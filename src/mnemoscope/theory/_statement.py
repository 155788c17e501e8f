"""A statement of a paper, with a check against numbers.

Each file of `theory/` holds pure functions and, beside them, the statements that they carry out::

    @statement(
        "miller-hardt-lemma-1",
        paper=PAPERS["stability"],
        where="Lemma 1, eq. 3",
        status="holds",
        claim="the state of a stable system forgets what lies k steps back like lambda^k",
    )
    def lemma_1() -> Iterator[Row]:
        yield Row("tanh RNN, n=16, k=10", bound=..., measured=...)

`mnemoscope theory` lists them and prints bound, measured value and their ratio.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

PAPERS = {
    "attention": "Kerg et al. 2020",
    "stability": "Miller & Hardt 2018",
    "smoothness": "Ribeiro et al. 2019",
    "separation": "Levine et al. 2018",
    "foundations": "Nabli 2019",
}
"""Each package of the room, and the paper that it carries out."""

Status = Literal["holds", "corrected", "open"]
Relation = Literal["<=", "==", ">="]


@dataclass(frozen=True)
class Row:
    """One check of a statement against numbers: `measured` `relation` `bound`, up to a relative `tolerance`."""

    case: str
    bound: float
    measured: float
    relation: Relation = "<="
    tolerance: float = 1e-9

    @property
    def ratio(self) -> float:
        """measured / bound: 1 is as tight as can be; for a bound of 0, 1 if it is met and infinity if not."""
        if self.bound:
            return self.measured / self.bound
        return 1.0 if self.measured == 0 else float("inf")

    @property
    def holds(self) -> bool:
        """True if the relation holds, up to `tolerance` times the larger of the two."""
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
    """A lemma, proposition, theorem, claim or conjecture: where the paper has it, and the check of it."""

    name: str
    paper: str
    where: str
    status: Status
    claim: str
    check: Callable[[], Iterator[Row]]
    correction: str = ""
    remark: str = ""


STATEMENTS: dict[str, Statement] = {}


def statement(
    name: str, *, paper: str, where: str, status: Status, claim: str, correction: str = "", remark: str = ""
) -> Callable[[Callable[[], Iterator[Row]]], Callable[[], Iterator[Row]]]:
    """Register the decorated check under `name`; a corrected statement says in `correction` what was wrong.

    A statement is corrected only if it is false as printed. What its O(.) hides, a constant that could be better or a
    slip in its proof is a `remark`.
    """
    if (status == "corrected") != bool(correction):
        raise ValueError(f"{name}: a correction is given exactly when the status is 'corrected'")

    def register(check: Callable[[], Iterator[Row]]) -> Callable[[], Iterator[Row]]:
        if name in STATEMENTS:
            raise ValueError(f"two statements are named {name!r}")
        STATEMENTS[name] = Statement(name, paper, where, status, claim, check, correction, remark)
        return check

    return register
