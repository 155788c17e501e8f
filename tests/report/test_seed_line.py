"""Lines over seeds: what they show, what a file keeps of them, and what is said of the number of seeds."""

from __future__ import annotations

import json

import numpy as np
import pytest

from mnemoscope.errors import MnemoscopeError
from mnemoscope.report import (
    Axis,
    Chart,
    Line,
    Panels,
    SeedLine,
    Style,
    charts_from_json,
    charts_to_json,
    with_seed_counts,
)


def line(name, *seeds, points=3):
    return SeedLine(
        name, {seed: (np.arange(float(points)), np.full(points, float(seed))) for seed in seeds}, Style(1, 2)
    )


def chart(*marks, key="c", title="Loss"):
    return Chart(key, title, Axis("x"), Axis("y"), marks)


def stored(drawn):
    return json.loads(json.dumps(charts_to_json([drawn]), allow_nan=False))


def names(drawn):
    return drawn.title, *(mark.name for mark in drawn.marks)


def test_it_is_the_median_in_a_band_from_the_lowest_to_the_highest():
    curves = {
        2: (np.array([0.0, 2.0]), np.array([1.0, 3.0])),
        0: (np.array([1.0, 2.0, 4.0]), np.array([2.0, np.nan, 8.0])),
        1: (np.array([0.0]), np.array([np.nan])),
    }
    both = SeedLine("a", curves, Style())
    assert list(both.curves) == [0, 2]  # nothing is known of seed 1
    assert both.x.tolist() == [0.0, 1.0, 2.0, 4.0]
    assert both.y.tolist() == [1.0, 1.5, 3.0, 5.5]
    assert both.low.tolist() == [1.0, 1.0, 3.0, 3.0]
    assert both.high.tolist() == [1.0, 2.0, 3.0, 8.0]
    assert line("a", 5).low is None
    assert len(SeedLine("a", {}, Style()).x) == 0


def test_a_file_keeps_the_curve_of_each_seed():
    (again,) = charts_from_json(stored(chart(line("a", 3, 10), Line("theory", np.zeros(2), np.ones(2)))), "file")
    mark, theory = again.marks
    assert {seed: y.tolist() for seed, (_, y) in mark.curves.items()} == {3: [3.0] * 3, 10: [10.0] * 3}
    assert (mark.name, mark.style, mark.y.tolist()) == ("a", Style(1, 2), [6.5] * 3)
    assert type(theory) is Line


def test_the_curves_of_many_points_stay_small_in_a_file():
    (again,) = charts_from_json(stored(chart(line("a", *range(5), points=100_000))), "file")
    assert {len(x) for x, _ in again.marks[0].curves.values()} == {400}
    assert again.marks[0].x[-1] == 99_999


@pytest.mark.parametrize("curves", [{"one": [[0], [1]]}, {"0": [[0, 1], [1]]}, {"0": [[[0]], [[1]]]}, {"0": [0]}, [1]])
def test_a_damaged_file_is_refused_in_one_line(curves):
    content = stored(chart(line("a", 0)))
    content[0]["marks"][0]["curves"] = curves
    with pytest.raises(MnemoscopeError, match=r"^file is not a list of charts: [^\n]*$"):
        charts_from_json(content, "file")


def test_the_number_of_seeds_is_said_once_if_it_is_the_same():
    assert names(with_seed_counts(chart(line("a", 0, 1, 2), line("b", 1, 2, 3)))) == ("Loss (3 seeds)", "a", "b")
    assert names(with_seed_counts(chart(line("a", 4)))) == ("Loss (1 seed)", "a")
    panels = Panels("p", "Loss", (chart(line("a", 0, 1), title="one"), chart(line("a", 1, 2), title="two")))
    counted = with_seed_counts(panels)
    assert counted.title == "Loss (2 seeds)"
    assert counted.charts == panels.charts


def test_else_it_is_said_of_each_line_whose_seeds_are_known():
    theory = Line("theory", np.zeros(2), np.ones(2))
    assert names(with_seed_counts(chart(line("a", 0, 1), theory))) == ("Loss", "a (2 seeds)", "theory")
    assert names(with_seed_counts(chart(line("a", 0, 1), line("b", 0)))) == ("Loss", "a (2 seeds)", "b (1 seed)")
    panels = Panels("p", "Loss", (chart(line("a", 0, 1), title="one"), chart(line("a", 1), title="two")))
    counted = with_seed_counts(panels)
    assert (counted.title, *map(names, counted.charts)) == ("Loss", ("one (2 seeds)", "a"), ("two (1 seed)", "a"))


def test_a_line_without_curves_may_know_its_seeds_also_in_a_file():
    old = Line("a", np.zeros(2), np.ones(2), np.zeros(2), np.ones(2), seeds=(1, 2, 4))
    (again,) = charts_from_json(stored(chart(old, line("b", 0))), "file")
    assert [mark.seeds for mark in again.marks] == [(1, 2, 4), (0,)]
    assert names(with_seed_counts(again)) == ("Loss", "a (3 seeds)", "b (1 seed)")


def test_of_lines_without_seeds_nothing_is_said():
    old = chart(Line("a", np.zeros(2), np.ones(2), np.zeros(2), np.ones(2)))
    assert names(with_seed_counts(old)) == ("Loss", "a")
    assert names(with_seed_counts(chart())) == ("Loss",)
