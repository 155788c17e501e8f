"""The room as a whole: names found where they live, nothing loaded before it is needed, every statement whole."""

import subprocess
import sys
from collections import Counter

import pytest

from mnemoscope import theory


def test_public_names_come_from_their_packages():
    assert theory.lstm_certificate is theory.stability.lstm_certificate
    assert theory.chaotic_lstm is theory.smoothness.chaotic_lstm
    assert "dropout_minimizer" in dir(theory)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = theory.nonsense


def test_no_name_belongs_to_two_packages():
    counts = Counter(name for package in theory.PAPERS for name in getattr(theory, package).__all__)
    assert [name for name, count in counts.items() if count > 1] == []


def test_nothing_is_loaded_before_it_is_used():
    code = "import sys, mnemoscope.theory as t; print([m for m in sys.modules if m.startswith('mnemoscope.theory.')])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "['mnemoscope.theory._statement']"


def test_statements_come_in_the_order_of_the_papers():
    names = list(theory.load())
    papers = [theory.load()[name].paper for name in names]
    assert list(dict.fromkeys(papers)) == list(theory.PAPERS.values())
    lemmas = [name for name in names if name.startswith("kerg-lemma")]
    assert lemmas == [f"kerg-lemma-{i}" for i in range(1, 13)]


def test_every_statement_says_what_and_where():
    found = theory.load()
    assert len(found) > 70
    for name, statement in found.items():
        assert statement.name == name
        assert statement.paper in theory.PAPERS.values()
        assert statement.where
        assert statement.claim
        assert bool(statement.correction) == (statement.status == "corrected")
