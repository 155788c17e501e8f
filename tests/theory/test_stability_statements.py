"""Every registered statement of Miller & Hardt holds in all of its rows."""

import pytest

from mnemoscope import theory
from mnemoscope.theory._statement import STATEMENTS

theory.load()
NAMES = [name for name, found in STATEMENTS.items() if found.paper == "Miller & Hardt 2018"]


def test_all_of_the_paper_is_there():
    lemmas, propositions = ([f"miller-hardt-{kind}-{i}" for i in range(1, 6)] for kind in ("lemma", "proposition"))
    assert {*lemmas, *propositions, "miller-hardt-theorem-1"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_statement_holds(name):
    rows = list(STATEMENTS[name].check())
    assert rows
    assert [row for row in rows if not row.holds] == []
