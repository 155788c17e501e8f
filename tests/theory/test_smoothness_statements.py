"""Every registered statement of Ribeiro et al. holds in all of its rows."""

import pytest

from mnemoscope import theory
from mnemoscope.theory._statement import STATEMENTS

theory.load()
NAMES = [name for name, found in STATEMENTS.items() if found.paper == "Ribeiro et al. 2019"]


def test_all_of_the_paper_is_there():
    theorem = ["lemma-1", "lemma-2", "theorem-1a", "theorem-1b", "regimes", "invariant-set"]
    others = ["sensitivities", "equation-9", "definition-2", "chaotic-lstm"]
    assert {f"ribeiro-{name}" for name in theorem + others} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_statement_holds(name):
    rows = list(STATEMENTS[name].check())
    assert rows
    assert [row for row in rows if not row.holds] == []
