"""Our cells beside the published ones: numbers, spreads and words, and which of them agree."""

from __future__ import annotations

from dataclasses import replace

import pytest
import study_jobs
from test_reproduce import run

from mnemoscope.studies import Note, ScaleResult, SeedResult, read_record, table
from mnemoscope.studies._pages import comparison, two_values
from mnemoscope.studies._record import describe


def test_a_published_cell_that_was_tried_again_counts_once(tmp_path):
    values = {("a", "x"): 0.5, ("b", "x"): 0.9, ("a", "x again"): 0.99, ("b", "x again"): 0.2}
    published = table(("a", "b"), ("x", "x again"), [[1.0, 1.0], [1.0, 1.0]], percent=True, within=0.02)
    study = study_jobs.numbers({0: values}, published=replace(published, again={"x again": "x"}))
    assert comparison(read_record(run(study, tmp_path / "out") / study.id)) == "1 of 2 cells agree (quick)"


@pytest.mark.parametrize(("within", "words"), [(0.05, "a, x: 498, ours 4.582 (quick)"), (0.0, "")])
def test_numbers_are_compared_only_where_they_should_be_near(tmp_path, within, words):
    published = table(("a",), ("x",), [[498.0]], within=within)
    study = study_jobs.numbers({0: {("a", "x"): 4.582}}, published=published)
    assert comparison(read_record(run(study, tmp_path / "out") / study.id)) == words


def test_what_is_said_of_a_cell_stands_below_its_number(tmp_path):
    study = study_jobs.numbers({0: {("a", "x"): 0.5}}, published=table(("a",), ("x",), [[0.5]], percent=True))
    study = replace(study, cells=lambda scale, done: {("a", "x"): Note("our settings", 0.5, failed=False)})
    record = read_record(run(study, tmp_path / "out") / study.id)
    ((_, (cell,)),) = two_values(record, record.quick)[1]
    assert (cell.ours, cell.remark) == ("50 %", "our settings")


def test_a_cell_has_the_lowest_and_the_highest_seed_where_they_differ(tmp_path):
    study = study_jobs.numbers({seed: {("a", "x"): 1.0 + seed, ("a", "y"): 2.0} for seed in range(3)})
    record = read_record(run(study, tmp_path / "out", seeds=3) / study.id)
    columns, ((_, cells),) = two_values(record, record.quick)
    spreads = {column: cell.spread for column, cell in zip(columns, cells, strict=True)}
    assert spreads == {"x": "[1, 3]", "y": ""}


def test_a_cell_that_there_cannot_be_is_left_blank():
    published = table((1, 2), ("x", "y"), without=[(2, "y")])
    record = describe(study_jobs.numbers({0: {}}, published=published))
    rows = dict(two_values(record, ScaleResult((SeedResult(0, (), (("1", "x", 3.0),)),)))[1])
    assert [(cell.ours, cell.agreement) for cell in rows["1"]] == [("3", ""), ("–", "unknown")]
    assert [(cell.ours, cell.agreement) for cell in rows["2"]] == [("–", "unknown"), ("", "")]


def test_a_published_word_differs_from_a_number_alone():
    published = table(("a", "b"), ("x",), [["OOM"], ["OOM"]], percent=True)
    record = describe(study_jobs.numbers({0: {}}, published=published))
    cells = (("a", "x", 0.5), ("b", "x", Note("out of memory", 0.125)))
    rows = dict(two_values(record, ScaleResult((SeedResult(0, (), cells),)))[1])
    assert [rows[name][0].agreement for name in "ab"] == ["differs", ""]
