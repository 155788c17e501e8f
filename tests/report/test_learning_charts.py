"""The numbers in the curves of training runs."""

import numpy as np

from mnemoscope.report import RunRow, learning_charts, learning_finding

same = np.testing.assert_array_equal


def described(markers):
    return [(marker.axis, marker.at, marker.text) for marker in markers]


def row(run="a", metric="accuracy", baseline=0.9, curve=((10, 1.0, 0.2), (20, 0.5, 0.8)), **changes):
    known = dict(task="copy", model="LSTM", parameters=500, updates=20, outcome="solved", best=0.8125, best_update=10)
    records = [{"update": update, "loss": loss, metric: value} for update, loss, value in curve]
    return RunRow(run=run, metric=metric, baseline=baseline, curve=records, **known | changes)


def test_learning_finding_has_the_curve_and_the_figures_of_its_run():
    finding = learning_finding(row())
    assert finding.sentence == "Training solved the task after 20 updates; best held-out accuracy 0.8125 at update 10."
    assert finding.figures == {"best": 0.8125, "best_update": 10, "baseline": 0.9, "updates": 20, "parameters": 500}
    assert {name: values.tolist() for name, values in finding.series.items()} == {
        "update": [10, 20],
        "loss": [1.0, 0.5],
        "metric": [0.2, 0.8],
    }


def test_learning_finding_of_a_run_that_goes_on():
    finding = learning_finding(row(outcome="unfinished", best=None, best_update=None, baseline=None, parameters=None))
    assert finding.sentence == "Training is unfinished after 20 updates."
    assert finding.figures == {"updates": 20}
    assert learning_finding(row(curve=())) is None


def test_evaluations_without_a_value_leave_gaps():
    finding = learning_finding(row(curve=((10, 1.0, None), (20, None, 0.5), (30, 0.5, 0.75))))
    same(finding.series["update"], [10, 30])
    same(finding.series["metric"], [np.nan, 0.75])
    assert "metric" not in learning_finding(row(curve=((10, 1.0, None),))).series


def test_levels_without_memory_say_whose_they_are():
    other = {"d": row(T=20, baseline=0.5), "e": row(task="denoise", T=20, baseline=0.5)}
    loss, _ = learning_charts({"a": row(T=10), "b": row(T=10), "c": row(T=10)})
    assert described(loss.markers) == [("y", 0.9, "without memory")]
    loss, _ = learning_charts({"a": row(T=10), **other})
    assert described(loss.markers) == [
        ("y", 0.5, "without memory: copy, T = 20; denoise, T = 20"),
        ("y", 0.9, "without memory: copy, T = 10"),
    ]


def test_learning_curves_of_runs_with_several_metrics():
    rows = {
        "a": row(),
        "b": row(metric="bits", baseline=0.5),
        "c": row(metric="loss", curve=((10, 1.0, 1.0),)),
        "d": row(curve=()),
    }
    loss, accuracy, bits = learning_charts(rows)
    assert [chart.key for chart in (loss, accuracy, bits)] == ["learning-loss", "learning-accuracy", "learning-bits"]
    assert [(line.name, line.style.color) for line in loss.marks] == [("a", 0), ("b", 1), ("c", 2)]
    assert [line.name for line in bits.marks] == ["b"]
    same(loss.marks[0].x, [10, 20])
    same(loss.marks[0].y, [1, 0.5])
    same(accuracy.marks[0].y, [0.2, 0.8])
    assert described(loss.markers) == [("y", 0.5, "without memory: copy"), ("y", 0.9, "without memory: copy")]
    assert loss.y.log
    assert not accuracy.y.log


def test_at_most_three_baselines_are_marked():
    rows = {str(value): row(baseline=value) for value in (9.0, 8.0, 2.0, 3.0)}
    assert [marker.at for marker in learning_charts(rows)[0].markers] == [2, 3, 8]
