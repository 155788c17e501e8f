"""Every registered statement of Levine et al. holds in all of its rows."""

import pytest

from mnemoscope.theory import load

pytest.importorskip("flint")
pytest.importorskip("opt_einsum")

NAMES = [name for name, found in load().items() if found.paper == "Levine et al. 2018"]


def test_all_of_the_paper_is_there():
    claims = [f"levine-claim-{i}" for i in range(1, 7)]
    lemmas = [f"levine-lemma-{i}" for i in range(1, 4)]
    assert {*claims, *lemmas, "levine-theorem-1-shallow", "levine-theorem-1-deep", "levine-conjecture-1"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_statement_holds(name):
    rows = list(load()[name].check())
    assert rows
    assert [row for row in rows if not row.holds] == []
