"""Every registered statement of Kerg et al. passes its own check."""

import math

import pytest

import mnemoscope.theory.attention  # noqa: F401  registers the statements
from mnemoscope.theory._statement import STATEMENTS

KERG = sorted(name for name in STATEMENTS if name.startswith("kerg-"))


@pytest.mark.parametrize("name", KERG)
def test_statement_holds(name):
    rows = list(STATEMENTS[name].check())
    assert rows
    for row in rows:
        assert math.isfinite(row.bound)
        assert math.isfinite(row.measured)
        assert row.holds, row


def test_none_of_the_numbered_statements_is_missing():
    numbered = [f"lemma-{i}" for i in range(1, 13)] + [f"proposition-{i}" for i in range(1, 5)]
    numbered += ["corollary-1", "theorem-1", "theorem-2", "remark-4", "remark-5"]
    assert {f"kerg-{name}" for name in numbered} <= set(KERG)


def test_the_corrected_ones_say_what_was_wrong():
    corrected = {name for name in KERG if STATEMENTS[name].status == "corrected"}
    assert corrected >= {"kerg-lemma-2", "kerg-lemma-3", "kerg-proposition-2", "kerg-proposition-4", "kerg-theorem-1"}
    assert all(len(STATEMENTS[name].correction) > 60 for name in corrected)
