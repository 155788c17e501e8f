"""Going on where a record has results whose runs are gone: what is run then, and what the record has afterwards."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import study_jobs
from test_reproduce import Killer, content, run

from mnemoscope.report import Axis, Bars, Chart, Line, Panels, SeedLine, Style, charts_to_json
from mnemoscope.studies import Note, ScaleResult, SeedResult, _pages, band, read_record
from mnemoscope.studies import _study as registry
from mnemoscope.studies._merge import merge_charts, merge_seeds, with_derived_cells
from mnemoscope.studies._not_run import CHANGED, _in_words, command, not_run
from mnemoscope.studies._pages import write_pages
from mnemoscope.studies._record import read_charts, read_costs

VALUES = {("a", "x"): 2.0, ("b", "x"): 3.0, ("c", "x"): 4.0}


def jobs_in(out):
    return sorted(folder.name for folder in (out / "runs").iterdir() if (folder / "summary.json").exists())


def stopped(study, out, after, **options):
    """A folder with the record of a study that was stopped after some jobs, without the runs."""
    with pytest.raises(KeyboardInterrupt):
        run(study, out, engine=Killer(after), **options)
    shutil.rmtree(out / "runs")
    return out


def test_only_what_is_missing_is_run_and_nothing_recorded_is_lost(tmp_path):
    study = study_jobs.numbers({0: VALUES})
    whole = run(study, tmp_path / "whole")
    out = stopped(study, tmp_path / "out", 2)
    run(study, out, missing=True)
    (outcome,) = run.outcomes
    assert outcome.missing == 0
    assert jobs_in(out) == [study.jobs("quick", 0)["c", "x"].name]
    assert content(out, study.id)["cells.csv"] == content(whole, study.id)["cells.csv"]
    assert read_record(out / study.id).quick.is_complete
    assert read_costs(out / study.id)["quick"].jobs == 3

    # Nothing is missing any more: nothing is run, and not a byte changes.
    shutil.rmtree(out / "runs")
    before = content(out, study.id)
    run(study, out, missing=True)
    assert not (out / "runs").exists() or jobs_in(out) == []
    assert content(out, study.id) == before


def test_what_follows_from_cells_is_made_of_those_of_all_calls(tmp_path):
    def total(cells):
        return {("sum", "x"): sum(cells[key] for key in VALUES)} if set(VALUES) <= set(cells) else {}

    def bars(cells):
        done = [one for one in cells.values() if ("sum", "x") in one]
        heights = np.array([cells["sum", "x"] for cells in done])
        return [Chart("sums", "Sums", Axis("seed"), Axis("sum"), (Bars("sum", tuple("ab"[: len(done)]), heights),))]

    values = {0: VALUES, 1: {key: 10 * value for key, value in VALUES.items()}}
    study = study_jobs.numbers(values, derived_cells=total, derived_charts=bars)
    out = stopped(study, tmp_path / "out", 5, seeds=2)
    (chart,) = read_charts(out / study.id)["quick"]
    assert chart.marks[0].labels == ("a",)
    run(study, out, missing=True)
    assert [one.values["sum", "x"] for one in read_record(out / study.id).quick.seeds] == [9.0, 90.0]
    (chart,) = read_charts(out / study.id)["quick"]
    assert chart.marks[0].labels == ("a", "b")


def test_what_follows_from_curves_is_made_of_those_of_all_calls(tmp_path):
    """A ratio of two runs, of which either call made one; what `cells` gives itself is not rounded, and stays."""

    def charts(scale, done):
        lines = [
            band(name, {one.seed: ([1.0], [one[name, "x"]["value"]]) for one in done if (name, "x") in one}, number)
            for number, name in enumerate("abc")
        ]
        return [Chart("values", "Values", Axis("x"), Axis("y"), tuple(line for line in lines if line.curves))]

    def ratio(scale, charts, seed):
        (chart,) = charts
        found = {line.name: line.curves[seed][1][0] for line in chart.marks if seed in line.curves}
        return {("b / a", "x"): found["b"] / found["a"], ("a", "x"): 0.0} if {"a", "b"} <= found.keys() else {}

    study = study_jobs.numbers({0: VALUES}, charts=charts, cells_of_charts=ratio)
    out = stopped(study, tmp_path / "out", 1)
    assert ("b / a", "x") not in read_record(out / study.id).quick.seeds[0].values
    run(study, out, missing=True)
    found = read_record(out / study.id).quick.seeds[0].values
    assert found["b / a", "x"] == 1.5
    assert found["a", "x"] == 2.0


def test_what_follows_from_curves_follows_new_ones():
    """A run that was made again has another curve: the recorded ratio stayed that of the old one."""

    def last(scale, charts, seed):
        return {(line.name, "last"): line.curves[seed][1][-1] for (chart,) in (charts,) for line in chart.marks}

    study = study_jobs.numbers({0: VALUES}, cells_of_charts=last)
    recorded = SeedResult(0, ("a", "b"), (("a", "last", 0.10004), ("b", "last", 0.10004)))
    old = [chart("c", "C", seeds("a", 0), seeds("b", 0))]
    new = [chart("c", "C", seeds("a", 0), seeds("b", 0, start=5.0))]
    assert with_derived_cells(study, "quick", recorded, old, old) == recorded  # numbers in charts are rounded
    found = with_derived_cells(study, "quick", recorded, new, old).values
    assert found == {("a", "last"): 0.10004, ("b", "last"): 5.1}
    assert with_derived_cells(study, "quick", recorded, new, []) == recorded


def test_pages_draw_what_follows_from_cells_from_the_record_as_it_is(tmp_path):
    """Also where charts.json is of fewer seeds, or of another version: that of the T-maze was of seed 0 alone."""

    def bars(cells):
        heights = np.array([one["a", "x"] for one in cells.values()])
        return [Chart("heights", "Heights", Axis("seed"), Axis("x"), (Bars("x", tuple(map(str, cells)), heights),))]

    study = study_jobs.numbers({0: VALUES, 1: VALUES}, derived_charts=bars)
    out = run(study, tmp_path / "out", seeds=2)
    folder = out / study.id
    before = content(out, study.id)
    registry.STUDIES[study.id] = study
    try:
        write_pages(out)
        figure = (folder / "figure-1.svg").read_bytes()
        assert content(out, study.id) == before
        (folder / "charts.json").write_text(json.dumps({"quick": charts_to_json(bars({0: {("a", "x"): 5.0}}))}))
        write_pages(out)
    finally:
        del registry.STUDIES[study.id]
    assert content(out, study.id) == before
    assert (folder / "figure-1.svg").read_bytes() == figure


def test_figures_are_drawn_again_when_charts_or_drawing_change(tmp_path, monkeypatch):
    """In a clone all files are of the same age, and after a change of the code that draws, figures are newer."""

    def bars(cells):
        heights = np.array([one["a", "x"] for one in cells.values()])
        return [Chart("heights", "Heights", Axis("seed"), Axis("x"), (Bars("x", tuple(map(str, cells)), heights),))]

    study = study_jobs.numbers({0: VALUES}, derived_charts=bars)
    out = run(study, tmp_path / "out", seeds=1)
    folder = out / study.id
    monkeypatch.setitem(registry.STUDIES, study.id, study)
    write_pages(out)
    figure = (folder / "figure-1.svg").read_bytes()

    (folder / "figure-1.svg").write_bytes(b"mine")
    write_pages(out)
    assert (folder / "figure-1.svg").read_bytes() == b"mine"  # drawn already
    monkeypatch.setattr(_pages, "figures_hash", lambda charts: "by other code")
    write_pages(out)
    assert (folder / "figure-1.svg").read_bytes() == figure


def test_a_line_is_over_the_seeds_of_all_calls(tmp_path):
    def charts(scale, done):
        curves = {one.seed: (np.arange(2.0), [one["a", "x"]["value"]] * 2) for one in done}
        return [Chart("values", "Values", Axis("step"), Axis("value"), (band("a", curves),))]

    study = study_jobs.numbers({seed: {("a", "x"): float(seed)} for seed in range(5)}, charts=charts)
    out = run(study, tmp_path / "out", seeds=3)
    shutil.rmtree(out / "runs")
    for seeds, drawn, middle in (([0], [0, 1, 2], 1.0), ([4], [0, 1, 2, 4], 1.5), ([3, 4], [0, 1, 2, 3, 4], 2.0)):
        run(study, out, seeds=seeds)
        (chart,) = read_charts(out / study.id)["quick"]
        assert list(chart.marks[0].curves) == drawn
        assert chart.marks[0].y.tolist() == [middle, middle]
        assert (chart.marks[0].low[0], chart.marks[0].high[0]) == (0.0, drawn[-1])


def test_without_the_option_everything_is_run_and_what_was_recorded_stays_until_then(tmp_path):
    study = study_jobs.numbers({0: VALUES})
    out = stopped(study, tmp_path / "out", 2)
    with pytest.raises(KeyboardInterrupt):
        run(study, out, engine=Killer(1))
    assert len(read_record(out / study.id).quick.seeds[0].cells) == 2
    run(study, out)
    assert len(jobs_in(out)) == 3


def test_what_a_missing_measurement_needs_is_run_again(tmp_path):
    study = study_jobs.trained()
    jobs = study.jobs("quick", 0)
    out = stopped(study, tmp_path / "out", 3)  # both runs, and one of the two measurements
    missing = read_record(out / study.id).quick.seeds[0].missing
    (key,) = [key for key, job in jobs.items() if job.name in missing]
    run(study, out, missing=True)
    assert jobs_in(out) == sorted([jobs[key[0]].name, jobs[key].name])
    assert read_record(out / study.id).quick.is_complete


def test_a_job_that_was_run_again_costs_once(tmp_path):
    study = study_jobs.numbers({0: VALUES})
    out = stopped(study, tmp_path / "out", 2)
    with pytest.raises(KeyboardInterrupt):
        run(study, out, engine=Killer(1))  # the first one again
    run(study, out, missing=True)
    assert read_costs(out / study.id)["quick"].jobs == 3


def test_by_default_it_is_of_the_seeds_that_are_recorded(tmp_path):
    study = study_jobs.numbers({seed: {key: value + 10 * seed for key, value in VALUES.items()} for seed in range(3)})
    out = stopped(study, tmp_path / "out", 5, seeds=[0, 2])
    run(study, out, missing=True)
    record = read_record(out / study.id)
    assert [one.seed for one in record.quick.seeds] == [0, 2]
    assert record.quick.is_complete
    assert len(jobs_in(out)) == 1


def test_results_of_other_settings_are_not_taken_for_recorded(tmp_path):
    out = stopped(study_jobs.numbers({0: VALUES}), tmp_path / "out", 2)
    changed = study_jobs.numbers({0: VALUES | {("c", "x"): 5.0}})
    run(changed, out, missing=True)
    assert len(jobs_in(out)) == 3
    assert read_record(out / changed.id).quick.is_complete


def test_two_results_of_a_seed_are_joined_cell_by_cell():
    names = ("run-a", "run-b", "run-c")
    old = SeedResult(0, names, (("a", "x", 1.0), ("b", "x", 2.0)), missing=("run-c",), diverged=("run-a: at 3",))
    new = SeedResult(
        0, names, (("b", "x", 20.0), ("c", "x", Note("odd"))), missing=("run-a",), diverged=("run-c: at 5",)
    )
    both = merge_seeds(old, new)
    assert both.cells == (("a", "x", 1.0), ("b", "x", 20.0), ("c", "x", Note("odd")))
    assert both.diverged == ("run-a: at 3", "run-c: at 5")
    assert both.is_complete

    # One that has all that had ended stands for itself; one that has less does not replace a complete one.
    again = SeedResult(0, names, (("a", "x", 9.0),), missing=("run-c",))
    assert merge_seeds(old, again) is again
    assert merge_seeds(both, new) is both
    assert merge_seeds(None, new) is new

    # A job that failed this time has the result that it had.
    failed = SeedResult(0, names, (), missing=("run-b",), failed=("run-a: no space", "run-c: no space"))
    assert merge_seeds(old, failed).failed == ("run-c: no space",)
    assert merge_seeds(old, failed).missing == ()


def line(name, *values):
    return Line(name, np.arange(float(len(values))), np.array(values))


def seeds(name, *numbers, start=0.0):
    """A line over seeds; the curve of each is its number, and a tenth more a step later."""
    curves = {seed: (np.arange(2.0), start + seed + np.array([0.0, 0.1])) for seed in numbers}
    return SeedLine(name, curves, Style())


def chart(key, title, *marks):
    return Chart(key, title, Axis("x"), Axis("y"), marks)


def values(chart):
    return {mark.name: mark.y.tolist() for mark in chart.marks}


def test_charts_are_joined_mark_by_mark():
    old = [
        Panels("p", "Loss, T = 100", (chart("p-a", "a", line("one", 1.0)), chart("p-b", "b", line("one", 2.0)))),
        chart("old", "Old", line("one", 5.0)),
    ]
    new = [
        Panels("p", "Loss, T = 300", (chart("p-b", "b", line("two", 3.0)), chart("p-c", "c", line("one", 4.0)))),
        chart("new", "New", line("one", 6.0)),
    ]
    panels, *others = merge_charts(old, new, [0], [0])
    assert panels.title == "Loss"
    drawn = {one.key: values(one) for one in panels.charts}
    assert drawn == {"p-a": {"one": [1.0]}, "p-b": {"one": [2.0], "two": [3.0]}, "p-c": {"one": [4.0]}}
    assert [one.key for one in others] == ["old", "new"]
    assert merge_charts([], new, [], [0]) == new


def test_a_line_over_seeds_is_made_again_from_all_of_them():
    (joined,) = merge_charts(
        [chart("c", "C", seeds("a", 0, 1, 2))], [chart("c", "C", seeds("a", 2, 3, start=10))], [0, 1, 2], [2, 3]
    )
    (mark,) = joined.marks
    assert list(mark.curves) == [0, 1, 2, 3]
    assert (mark.y.tolist(), mark.low.tolist(), mark.high.tolist()) == ([6.5, 6.6], [0.0, 0.1], [13.0, 13.1])


def test_a_mark_whose_seeds_are_not_known_gives_way_to_one_of_as_many_only():
    old, whole = [chart("c", "C", line("a", 1.0))], [chart("c", "C", seeds("a", 0, 1, 2))]
    (kept,) = merge_charts(old, [chart("c", "C", line("a", 2.0))], [0, 1, 2], [0, 1])
    assert values(kept) == {"a": [1.0]}
    (replaced,) = merge_charts(old, [chart("c", "C", line("a", 2.0))], [0, 1, 2], [0, 1, 2])
    assert values(replaced) == {"a": [2.0]}

    # Beside a line over seeds it stays until that one is of as many seeds as were recorded.
    (both,) = merge_charts(old, [chart("c", "C", seeds("a", 1))], [0, 1, 2], [1])
    assert values(both) == {"a": [1.0, 1.1], "a, other runs": [1.0]}
    (more,) = merge_charts([both], [chart("c", "C", seeds("a", 2))], [0, 1, 2], [2])
    assert {mark.name: len(getattr(mark, "curves", ())) for mark in more.marks} == {"a": 2, "a, other runs": 0}
    (all_three,) = merge_charts([more], [chart("c", "C", seeds("a", 0))], [0, 1, 2], [0])
    assert values(all_three) == {"a": [1.0, 1.1]}
    (at_once,) = merge_charts(old, whole, [0, 1, 2], [0, 1, 2])
    assert values(at_once) == values(whole[0])


def test_a_line_whose_seeds_are_known_gives_way_to_one_of_all_of_them_only():
    """As many others took its place: three of five seeds are not the three that were recorded."""
    of_two = replace(line("a", 1.0), seeds=(0, 1))
    old = [chart("c", "C", of_two)]
    (kept,) = merge_charts(old, [chart("c", "C", replace(line("a", 2.0), seeds=(1, 2)))], [0, 1, 2], [1, 2])
    assert values(kept) == {"a": [1.0]}
    (replaced,) = merge_charts(old, [chart("c", "C", replace(line("a", 2.0), seeds=(0, 1)))], [0, 1, 2], [0, 1])
    assert values(replaced) == {"a": [2.0]}

    (both,) = merge_charts(old, [chart("c", "C", seeds("a", 1, 2))], [0, 1, 2], [1, 2])
    assert [(mark.name, mark.seeds) for mark in both.marks] == [("a", (1, 2)), ("a, other runs", (0, 1))]
    (whole,) = merge_charts([both], [chart("c", "C", seeds("a", 0))], [0, 1, 2], [0])
    assert [(mark.name, mark.seeds) for mark in whole.marks] == [("a", (0, 1, 2))]


def test_a_plain_line_of_the_only_recorded_seed_is_its_curve():
    """The legend said "(1 seed)" of the new lines alone."""
    old = [Panels("p", "Loss", (chart("p-a", "a", line("one", 1.0)), chart("p-b", "b", line("one", 2.0))))]
    new = [Panels("p", "Loss", (chart("p-b", "b", seeds("two", 4)),))]
    (panels,) = merge_charts(old, new, [4], [4])
    found = [(mark.name, {seed: y.tolist() for seed, (_, y) in mark.curves.items()}) for mark in marks(panels)]
    assert found == [("one", {4: [1.0]}), ("one", {4: [2.0]}), ("two", {4: [4.0, 4.1]})]
    assert all(type(mark) is Line for mark in marks(merge_charts(old, new, [3, 4], [4])[0]) if mark.name == "one")

    x = np.arange(3.0)
    others = (Line("band", x, x, low=x, high=x), Line("gap", np.array([0, np.nan, 1]), x))  # of a drawing, say
    (kept,) = merge_charts([chart("c", "C", *others)], [chart("c", "C", seeds("two", 4))], [4], [4])
    assert {mark.name: type(mark) for mark in kept.marks} == {"band": Line, "gap": Line, "two": SeedLine}


def marks(panels):
    return [mark for panel in panels.charts for mark in panel.marks]


def test_what_was_not_run_is_said_with_the_command():
    study = study_jobs.trained()
    names = {key: job.name for key, job in study.jobs("full", 0).items()}
    two = tuple(study.jobs("full", seed)["RNN"].name for seed in (1, 2))
    run_and_norm = (names["LSTM"], names["LSTM", "norm"])
    norms = (names["RNN", "norm"], *run_and_norm)
    seeds = [SeedResult(0, (), (), norms), *(SeedResult(1 + n, (), (), (name,)) for n, name in enumerate(two))]
    found = not_run(study, "full", ScaleResult((*seeds, SeedResult(4, (), ()))))
    assert [str(one) for one in found] == ["seed 0: RNN: norm; LSTM", "seeds 1, 2: RNN"]
    both = [job.name for key, job in study.jobs("full", 1).items() if key in (("RNN", "norm"), ("LSTM", "norm"))]
    alike = not_run(study, "full", ScaleResult((seeds[0], SeedResult(1, (), (), tuple(both)))))
    assert [str(one) for one in alike] == ["seeds 0, 1: RNN: norm", "seed 0: LSTM", "seed 1: LSTM: norm"]
    alike = not_run(study, "full", ScaleResult((SeedResult(1, (), (), tuple(both)),)))
    assert [str(one) for one in alike] == ["seed 1: RNN, LSTM: norm"]
    assert _in_words([("run A", "x"), ("run B", "x"), ("", "y")]) == ("run A, B: x", "y")
    changed = not_run(study_jobs.trained(updates=7), "full", ScaleResult((seeds[1],)))
    assert [str(one) for one in changed] == [f"seed 1: {CHANGED}"]
    complete = SeedResult(2, tuple(job.name for job in study.jobs("full", 2).values()), ())
    assert not_run(study, "full", ScaleResult((complete,))) == []
    changed = not_run(study_jobs.trained(updates=7), "full", ScaleResult((complete,)))
    assert [str(one) for one in changed] == [f"seed 2: {CHANGED}"]
    assert command(study.id, "quick") == "mnemoscope reproduce miller/test"
    assert command(study.id, "full", missing=True) == "mnemoscope reproduce miller/test --full --missing"
