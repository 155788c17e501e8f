"""Levine et al.'s studies."""

from __future__ import annotations

import pytest

from mnemoscope.studies import Cells, Note, load

ACCURACY = load()["levine/accuracy"]


@pytest.mark.parametrize(("from_span", "said"), [(4, "from span 4 on"), (8, "from span 8 on"), (12, "")])
def test_circuits_that_diverge_at_once_are_told(from_span, said):
    """Only of the full size, and only where there are any."""
    spans = (2, 4, 6, 8, 10)
    deep = {(str(span), "RAC, depth 3"): Note("diverged", 0.5) if span >= from_span else 0.99 for span in spans}
    sentence = ACCURACY.surprise(Cells({}, {}), Cells(deep | {("10", "RAC, depth 1"): 1.0}, {}))
    assert said in sentence
    assert bool(sentence) == bool(said)
    assert "gets 100 % at span 10" in sentence or not said


def test_depths_that_were_not_run_have_no_line():
    (drawn,) = ACCURACY.derived_charts({0: Cells({("2", "RAC, depth 1"): 1.0})})
    assert [line.name for chart in drawn.charts for line in chart.marks] == ["depth 1"]
