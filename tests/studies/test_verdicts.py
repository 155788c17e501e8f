"""Verdicts: over seeds and claims, of unknown cells, and which is worse than another."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mnemoscope.studies import Cells, Claim, ScaleResult, SeedResult, Study, StudyVerdict, Verdict, table
from mnemoscope.studies._pages import number_words
from mnemoscope.studies._record import describe, judged
from mnemoscope.studies._verdict import failures_beside, judge_claim, judge_claims, judge_study

AT_HALF = Claim("at least a half", row="a", column="x", at_least=0.5)


def seeds(*values):
    return {seed: Cells({("a", "x"): value}) for seed, value in enumerate(values)}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((0.6, 0.7), "reproduced"),
        ((0.6, 0.4, 0.9), "partly (2 of 3)"),
        ((0.1, 0.4), "contradicted"),
        ((None, float("nan")), "open"),
        ((None, 0.6), "reproduced"),
        ((), "open"),
    ],
)
def test_a_claim_over_seeds(values, expected):
    assert str(judge_claim(AT_HALF, "quick", seeds(*values))) == expected


def test_a_claim_about_the_other_size_is_open_and_not_listed():
    claim = Claim("at least a half", row="a", column="x", at_least=0.5, scale="full")
    assert judge_claim(claim, "quick", seeds(0.9)).word == "open"
    assert judge_claims([claim], "quick", seeds(0.9)) == ()
    assert judge_claim(claim, "full", seeds(0.9)).word == "reproduced"


def test_an_unknown_cell_never_counts():
    expected = list(table(("a", "b"), ("x",)).values)
    everywhere = Claim("everywhere", column="x", at_least=0.5)
    assert everywhere.holds(Cells({("a", "x"): 0.9}, expected)) is None
    assert everywhere.holds(Cells({("a", "x"): 0.1}, expected)) is False
    assert everywhere.holds(Cells({("a", "x"): 0.9, ("b", "x"): 0.5}, expected)) is True
    ordered = Claim("ordered", check=lambda cells: cells["a", "x"] > cells["b", "x"])
    assert ordered.holds(Cells({("a", "x"): 0.9}, expected)) is None


def test_a_claim_of_the_median_and_of_all_seeds():
    median = Claim("at least a half", row="a", column="x", at_least=0.5, over="median")
    assert str(judge_claim(median, "full", seeds(0.1, 0.6, 0.7))) == "reproduced"
    both = Claim("both kinds", over="all", check=lambda cells: len({one["a", "x"] > 0.5 for one in cells}) == 2)
    assert str(judge_claim(both, "full", seeds(0.1, 0.6))) == "reproduced"
    assert str(judge_claim(both, "full", seeds(0.7, 0.6))) == "contradicted"


def verdict(*claims, form="printed"):
    return str(judge_study(judge_claims(claims, "quick", seeds(0.6)), form))


def test_a_study_is_judged_by_its_headline_claims():
    holds, broken = AT_HALF, Claim("above", row="a", column="x", at_least=0.9)
    unknown = Claim("unknown", row="z", column="x", at_least=0.9)
    minor = Claim("above", row="a", column="x", at_least=0.9, headline=False)
    assert verdict(holds) == "reproduced"
    assert verdict(holds, minor) == "reproduced"
    assert verdict(holds, broken) == "contradicted"
    assert verdict(holds, unknown) == "partly (1 of 2)"
    assert verdict(unknown) == "open"


def test_what_holds_only_as_corrected_is_contradicted_as_printed():
    corrected = Claim("at least a half", row="a", column="x", at_least=0.5, form="corrected")
    broken = Claim("above", row="a", column="x", at_least=0.9, form="corrected")
    unknown = Claim("unknown", row="z", column="x", at_least=0.9, form="corrected")
    assert verdict(AT_HALF, corrected) == "contradicted"
    assert verdict(AT_HALF, corrected, form="corrected") == "reproduced"
    assert verdict(corrected) == "contradicted"
    assert verdict(AT_HALF, unknown) == "partly (1 of 2)"
    assert verdict(AT_HALF, broken, form="corrected") == "contradicted"


def test_what_fails_beside_the_headline_is_counted():
    minor = Claim("above", row="a", column="x", at_least=0.9, headline=False)
    printed = Claim("above 2", row="a", column="x", at_least=0.9, headline=False, form="printed")
    corrected = Claim("half", row="a", column="x", at_least=0.5, headline=False, form="corrected")
    for claims, count in (((AT_HALF, minor), 1), ((printed, corrected), 1), ((corrected,), 1), ((AT_HALF,), 0)):
        assert failures_beside(judge_claims(claims, "quick", seeds(0.6))) == count
    result = ScaleResult(claims=judge_claims((AT_HALF, minor), "quick", seeds(0.6)))
    assert result.beside == "1 claim beside the headline fails"


def test_a_drawing_is_drawn():
    study = Study("miller/test", "Test", "test", lambda *_: {}, lambda *_: {}, drawing=True)
    assert judged(study, "quick", ScaleResult((SeedResult(0, (), ()),))).verdict.word == "drawn"
    assert judged(study, "quick", ScaleResult()).verdict.word == "open"
    assert not Verdict("drawn").is_worse_than(Verdict("reproduced", 1, 1))


def test_a_surprise_is_said_of_what_was_run():
    result = ScaleResult((SeedResult(0, (), (("a", "x", 0.6),)),))
    plain = Study("miller/test", "Test", "test", lambda *_: {}, lambda *_: {}, surprise="Odd.")
    assert describe(plain).surprise == ""
    assert describe(plain, result).surprise == "Odd."
    full = replace(plain, surprise=lambda quick, full: f"It is {full['a', 'x']}.")
    assert describe(full, result).surprise == ""
    assert describe(full, None, result).surprise == "It is 0.6."


def test_a_study_that_holds_as_corrected_says_so():
    reproduced, contradicted = Verdict("reproduced", 2, 2), Verdict("contradicted", 0, 2)
    assert str(StudyVerdict(contradicted)) == "contradicted"
    assert str(StudyVerdict(contradicted, reproduced)) == "contradicted as printed; reproduced as corrected"
    assert str(StudyVerdict(contradicted, Verdict("contradicted", 1, 2))) == "contradicted"


def test_printed_and_corrected_claims_are_judged_side_by_side():
    printed = Claim("above", row="a", column="x", at_least=0.9, form="printed")
    corrected = Claim("above", row="a", column="x", at_least=0.5, form="corrected")
    assert verdict(AT_HALF, printed, corrected) == "contradicted"
    assert verdict(AT_HALF, printed, corrected, form="corrected") == "reproduced"


@pytest.mark.parametrize(
    ("now", "before", "worse"),
    [
        (Verdict("contradicted", 0, 1), Verdict("reproduced", 1, 1), True),
        (Verdict("partly", 1, 3), Verdict("partly", 2, 3), True),
        (Verdict("partly", 4, 6), Verdict("partly", 2, 3), False),
        (Verdict("partly", 3, 10), Verdict("partly", 2, 4), True),
        (Verdict(), Verdict("reproduced", 1, 1), True),
        (Verdict(), Verdict("contradicted", 0, 1), False),
        (Verdict("contradicted", 0, 1), Verdict(), False),
        (Verdict("reproduced", 1, 1), Verdict("contradicted", 0, 1), False),
    ],
)
def test_worse_than_recorded(now, before, worse):
    assert now.is_worse_than(before) is worse


def test_numbers_of_a_table_are_written_out_as_far_as_people_read_them():
    """Frames of a kilo and of a million stand beside each other."""
    assert [number_words(number) for number in (999.5, 204_800.0, 1_001_472.0)] == ["999.5", "204,800", "1,001,472"]
    assert number_words(2.5e9) == "2.5e+09"
    assert number_words(None) == "–"
    assert number_words(0.9965, percent=True) == "99.65 %"
