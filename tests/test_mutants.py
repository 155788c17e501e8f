"""The list of `make mutants` is in step with the source, and its runner tells a noticed change from one that is not."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from mutants.mutant import Mutant
from mutants.run import BROKEN, KILLED, SURVIVED, mutate, verdict
from mutants.table import MUTANTS

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_original_text_of_a_mutant_occurs_once(mutant: Mutant) -> None:
    text = (ROOT / "src" / "mnemoscope" / mutant.file).read_text()
    assert mutate(text, mutant) != text
    for test in mutant.tests.split():
        path, _, name = test.partition("::")
        assert f"def {name}(" in (ROOT / path).read_text() if name else (ROOT / path).is_file(), test


def test_mutants_are_many_and_have_different_names() -> None:
    assert len(MUTANTS) >= 80
    assert max(Counter(mutant.name for mutant in MUTANTS).values()) == 1
    assert max(Counter((mutant.file, mutant.original, mutant.replacement) for mutant in MUTANTS).values()) == 1
    for room in ("scopes", "theory", "layers", "training", "report"):
        assert sum(mutant.file.startswith(f"{room}/") for mutant in MUTANTS) >= 9, room


def test_text_that_occurs_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="occurs 2 times"):
        mutate("a + a", Mutant("x", "x.py", "a", "b", "tests"))


def test_verdict_of_an_exit_code() -> None:
    assert [verdict(code) for code in (0, 1, 2, 4, 5, -14)] == [SURVIVED, KILLED, BROKEN, BROKEN, BROKEN, KILLED]
