"""Verdicts: of a claim over the seeds, of a study over its claims, and whether one is worse than another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from mnemoscope.studies._cells import Cells, medians
from mnemoscope.studies._study import Claim, Form, Scale

Word = Literal["reproduced", "partly", "contradicted", "open", "drawn"]
_RANK = {"contradicted": 0, "partly": 1, "reproduced": 2, "drawn": 2}


@dataclass(frozen=True)
class Verdict:
    """What our numbers say: reproduced, partly (`holds` of `asked`), contradicted, or open; a drawing is drawn."""

    word: Word = "open"
    holds: int = 0
    asked: int = 0

    def __str__(self) -> str:
        return f"partly ({self.holds} of {self.asked})" if self.word == "partly" else self.word

    def is_worse_than(self, recorded: Verdict) -> bool:
        """True if less holds than was recorded. Where nothing was known before, nothing can be worse."""
        if recorded.word == "open" or self == recorded:
            return False
        if self.word == "open":
            return recorded.word != "contradicted"
        if self.word == recorded.word == "partly":
            return self.holds * recorded.asked < recorded.holds * self.asked
        return _RANK[self.word] < _RANK[recorded.word]


OPEN = Verdict()


@dataclass(frozen=True)
class StudyVerdict:
    """A study's verdict as printed and, if some of its claims are corrected, as corrected."""

    printed: Verdict
    corrected: Verdict | None = None

    def __str__(self) -> str:
        if self.corrected is None or self.corrected.word == self.printed.word:
            return str(self.printed)
        return f"{self.printed} as printed; {self.corrected} as corrected"


@dataclass(frozen=True)
class ClaimVerdict:
    """A claim, and its verdict at one size of the study."""

    text: str
    form: Form
    headline: bool
    verdict: Verdict


def judge_claim(claim: Claim, scale: Scale, cells: Mapping[int, Cells]) -> Verdict:
    """Return a claim's verdict from the cells of each seed; open if it is about the other size."""
    if claim.scale not in (scale, "both"):
        return Verdict()
    by_seed = list(cells.values())
    match claim.over:
        case "each":
            answers = [claim.holds(one) for one in by_seed]
        case "median":
            answers = [claim.holds(medians(by_seed))] if by_seed else []
        case "all":
            answers = [claim.holds(by_seed)] if by_seed else []
    known = [answer for answer in answers if answer is not None]
    return _from_counts(sum(known), len(known))


def judge_claims(claims: Sequence[Claim], scale: Scale, cells: Mapping[int, Cells]) -> tuple[ClaimVerdict, ...]:
    """Return the verdict of each claim that is about this size of the study."""
    return tuple(
        ClaimVerdict(claim.text, claim.form, claim.headline, judge_claim(claim, scale, cells))
        for claim in claims
        if claim.scale in (scale, "both")
    )


def judge_study(claims: Sequence[ClaimVerdict], form: Literal["printed", "corrected"] = "printed") -> Verdict:
    """Return a study's verdict: that of its headline claims, as they are printed or as they are corrected.

    Reproduced if all of them are, contradicted if one is, open if none is known, else partly: in so many of the cases
    that were asked, a claim of a seed being one.
    """
    headline = [claim for claim in claims if claim.headline]
    if form == "printed":
        counted = [claim.verdict for claim in as_printed(headline)]
    else:
        counted = [claim.verdict for claim in headline if claim.form != "printed"]
    words = {verdict.word for verdict in counted}
    holds = sum(verdict.holds for verdict in counted)
    asked = sum(max(verdict.asked, 1) for verdict in counted)
    if "contradicted" in words:
        return Verdict("contradicted", holds, asked)
    if words == {"reproduced"}:
        return Verdict("reproduced", holds, asked)
    return Verdict() if words <= {"open"} else Verdict("partly", holds, asked)


def as_printed(claims: Sequence[ClaimVerdict]) -> list[ClaimVerdict]:
    """Return the claims as the paper has them.

    Where it is wrong, that is the printed claim. If there is none to check, a corrected one that holds says that what
    is printed does not.
    """
    has_printed = any(claim.form == "printed" for claim in claims)
    found = [claim for claim in claims if claim.form != "corrected"]
    if not has_printed:
        corrected = [claim for claim in claims if claim.form == "corrected"]
        found += [replace(claim, verdict=_opposite(claim.verdict)) for claim in corrected]
    return found


def _opposite(corrected: Verdict) -> Verdict:
    """Of a printed claim, from the verdict of the corrected one: contradicted where that holds, else not known."""
    return Verdict("contradicted", 0, corrected.asked) if corrected.word == "reproduced" else OPEN


def failures_beside(claims: Sequence[ClaimVerdict]) -> int:
    """Return how many claims fail, as printed, that do not count for the study's verdict."""
    beside = as_printed([claim for claim in claims if not claim.headline])
    return sum(claim.verdict.word == "contradicted" for claim in beside)


def _from_counts(holds: int, asked: int) -> Verdict:
    if not asked:
        return Verdict()
    if holds == asked:
        return Verdict("reproduced", holds, asked)
    return Verdict("partly" if holds else "contradicted", holds, asked)
