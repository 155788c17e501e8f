"""docs/theory.md has a row for every statement, and says of each whether it was corrected."""

from __future__ import annotations

from pathlib import Path

import pytest

from mnemoscope import theory

DOCS = Path(__file__).parents[2] / "docs" / "theory.md"


@pytest.mark.parametrize("paper", list(theory.PAPERS.values()))
def test_every_statement_has_its_row(paper: str) -> None:
    statements = [s for s in theory.load().values() if s.paper.split(" ")[0] == paper.split(" ")[0]]
    rows = [line for line in DOCS.read_text().splitlines() if line.startswith(f"| {paper} |")]
    assert len(rows) == len(statements)
    assert {row.split("`")[1] for row in rows} == {s.name for s in statements}
    assert sum("*corrected*" in row for row in rows) == sum(s.status == "corrected" for s in statements)
