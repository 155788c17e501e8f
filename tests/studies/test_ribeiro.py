"""The studies of Ribeiro et al. 2019: their measurements on small cases with known answers, their cells and charts."""

import numpy as np
import pytest
import torch

from mnemoscope.report import Chart, Panels
from mnemoscope.studies import Cells, Done, Result, load
from mnemoscope.studies._verdict import judge_claims, judge_study
from mnemoscope.studies.ribeiro import _bifurcations, _fig1a, _fig1b, _fig4, _fig6a, _fig6b, _fig6c, _fig7
from mnemoscope.studies.ribeiro._chaotic_lstm import local_minima, network
from mnemoscope.studies.ribeiro._separated_symbols import NETWORK, count, is_fixed, orbits, scenario
from mnemoscope.tasks import Symbols, Words
from mnemoscope.training import FitConfig, NetworkConfig, RunConfig, initial_model, train

STUDIES = {name: found for name, found in load().items() if name.startswith("ribeiro/")}


def drawn(study, done, scale="quick"):
    """The charts of a study; drawing them must not fail."""
    charts = study.charts(scale, [done])
    assert all(isinstance(chart, Chart | Panels) and chart.summary for chart in charts)
    return charts


def test_local_minima():
    cost = np.array([[0.0, 1, 0, 2, 1, 3], [5, 4, 3, 2, 1, 0]])
    assert local_minima(cost).tolist() == [[False, False, True, False, True, False], [False] * 6]


def test_orbits_begin_at_the_origin_and_are_chaotic_at_one():
    found = _fig1a.orbits(signs="corrected", points=4)
    assert found["s"].tolist() == [0.5, 1, 1.5, 2]
    assert found["period"].tolist() == [1, 0, 4, 4]  # the fixed point at the origin, chaos, cycles
    weights = [network(signs).weight_hh_l0 for signs in ("printed", "corrected")]
    assert int((weights[0] != weights[1]).sum()) == 2


def test_cost_of_the_chaotic_lstm_is_zero_at_its_own_weights():
    line = _fig1b.cost_line(signs="corrected", points=4)
    assert line["at_one"] == line["cost"][1] == 0
    assert line["cost"].shape == (4,)
    assert (line["cost"][[0, 2, 3]] > 0.01).all()
    plane = _fig7.plane(signs="corrected", points=5, seed=0)
    assert plane["cost"][2, 2] == 0  # s_1 = 1, s_2 = 0
    assert plane["s1"].tolist() == [0, 0.5, 1, 1.5, 2]
    torch.testing.assert_close(torch.as_tensor(plane["cost"][2, 1:3]), torch.as_tensor(line["cost"][:2]))


@pytest.fixture(scope="module")
def symbols(tmp_path_factory):
    """A run of the symbols, of a few updates."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    fit = FitConfig(updates=4, batch_size=4, evaluate_every=2, evaluate_train=True)
    train(RunConfig(Symbols(T=50, sequences=8), NETWORK, fit), folder)
    return Result(folder)


def test_orbits_along_the_way_of_a_run(symbols):
    found = orbits(symbols, points=3)
    assert found["outputs"].shape == (6, 3, 10, 8, 4)
    assert found["attractors"].shape == found["longest"].shape == (6, 3)
    assert (found["attractors"] == 1).all()  # hardly trained, it forgets under every symbol
    assert is_fixed(found, "p", 0.5)
    assert count(found, "d", 0.5) == 1
    assert scenario(symbols) == "neither"


def test_cost_line_ends_at_the_initial_weights(symbols):
    found = _fig4.cost_line(symbols, points=5, sequences=8)
    task = symbols.run.task
    batch = task.batch(0, 8, "train")
    cost = task.loss(initial_model(symbols.run.config)(batch.inputs)[0], batch.targets).item()
    assert found["s"].tolist() == [-0.5, 0, 0.5, 1, 1.5]
    assert found["cost"][3] == pytest.approx(cost, rel=1e-5)
    assert found["here"] == pytest.approx(found["cost"][1], rel=1e-5)


class Found(dict):
    """What a measurement returned, as its result."""

    diverged_at_once = False

    def figure(self, name, counts_as=None):
        return float(self[name])


class FakeRun:
    """A run that ended with given accuracies."""

    diverged_at_once = False

    def __init__(self, on_train, held_out):
        self.curves = {"train": on_train, "valid": held_out}

    def curve(self, metric, split="valid"):
        values = np.atleast_1d(np.asarray(self.curves[split], dtype=float))
        return 100.0 * np.arange(1, len(values) + 1), values


@pytest.mark.parametrize(
    ("on_train", "held_out", "wanted"),
    [(1.0, 0.99, "good"), (0.95, 0.25, "bad"), (0.4, 0.25, "neither"), (0.99, 0.7, "neither")],
)
def test_scenarios(on_train, held_out, wanted):
    assert scenario(FakeRun(on_train, held_out)) == wanted


def test_accuracies_and_how_abrupt_they_rise():
    done = Done(0, [("good", FakeRun([0.3, 0.4, 1.0, 1.0], [0.25, 0.3, 0.6, 1.0]))])
    cells = Cells(STUDIES["ribeiro/fig3a"].cells("quick", done))
    assert cells["good", "training accuracy"] == cells["good", "held-out accuracy"] == 1
    assert cells["good", "share of the run from 50 % to 95 %"] == 0.5  # 200 of 400 updates
    (both,) = (claim for claim in STUDIES["ribeiro/fig3a"].claims if claim.text.startswith("both scenarios occur"))
    seeds = [Cells(STUDIES["ribeiro/fig3a"].cells("full", Done(0, runs))) for runs in (full(1, 1), full(0.95, 0.2))]
    assert both.holds(seeds) is True
    assert both.holds(seeds[:1]) is None  # another seed may end differently
    assert both.holds(9 * seeds[:1]) is None
    assert both.holds(10 * seeds[:1]) is False

    # The runs by all settings of the code are of three seeds, and do not count for the others.
    (of_code,) = (c for c in STUDIES["ribeiro/fig3a"].claims if c.text == "with all settings of the code")
    assert of_code.holds(10 * seeds) is None
    run = [("all settings of the code", FakeRun(0.9, 0.2))]
    bad = Cells(STUDIES["ribeiro/fig3a"].cells("full", Done(0, [*full(0.95, 0.2), *run])))
    assert of_code.holds([bad, bad]) is None
    assert of_code.holds([bad, bad, bad, *seeds]) is False
    assert both.holds(10 * [bad]) is False
    jobs = [STUDIES["ribeiro/fig3a"].jobs("full", seed) for seed in (2, 3)]
    assert [len(found) for found in jobs] == [3, 2]


def full(on_train, held_out):
    return [(name, FakeRun(on_train, held_out)) for name in ("clip of the text", "clip of the code")]


def test_figures_of_the_symbols_are_drawn(symbols):
    for name, run in (("fig3a", "good"), ("fig3b", "bad")):
        (chart,) = drawn(STUDIES[f"ribeiro/{name}"], Done(0, [(run, symbols)]))
        assert [mark.name for mark in chart.marks] == ["training", "held out"]
        assert chart.marks[0].x.tolist() == [1, 2]  # epochs, of two updates each
    for name, key, job in (
        ("fig4", ("line", "good"), {"function": _fig4.cost_line, "points": 5, "sequences": 8}),
        ("fig5", ("orbits", "good"), {"function": orbits, "points": 3}),
    ):
        function = job.pop("function")
        found = function(symbols, **job)
        result = Found({**found, "scenario": "good"})
        studies = [name] if name == "fig4" else ["fig5", "fig8"]
        for study in (STUDIES[f"ribeiro/{each}"] for each in studies):
            done = Done(0, [(key, result)])
            assert len(drawn(study, done)) == (6 if study.id == "ribeiro/fig8" else 1)  # a row for each symbol
            assert all(row.startswith("good") for row, _ in study.cells("quick", done))


def test_chaos_is_drawn_and_judged():
    found = {}
    for signs in ("printed", "corrected"):
        found["orbits", signs] = _fig1a.orbits(signs=signs, points=12)
        found["exponent", signs] = {"largest": 0.17 if signs == "corrected" else 0.0}
    study = STUDIES["ribeiro/fig1a"]
    done = Done(0, found.items())
    assert len(drawn(study, done)) == 2
    cells = Cells(study.cells("quick", done))
    chaotic = {claim.form: claim.holds(cells) for claim in study.claims if "chaotic" in claim.text}
    assert chaotic == {"printed": False, "corrected": True}
    for name, function in (("fig1b", _fig1b.cost_line), ("fig7", _fig7.plane)):
        options = {"seed": 0} if name == "fig7" else {}
        results = {signs: function(signs=signs, points=12, **options) for signs in ("printed", "corrected")}
        assert drawn(STUDIES[f"ribeiro/{name}"], Done(0, results.items()))


def test_figures_of_words(tmp_path):
    """On a text of our own: the orbits, the line and the perplexity of a tiny tied network."""
    (tmp_path / "text.txt").write_text("the cat sat on the mat and the dog sat on the cat \n" * 60)
    fit = FitConfig(updates=4, batch_size=4, evaluate_every=2, evaluate_batches=1)
    words = NetworkConfig("LSTM", hidden_size=6, embedding=6, tied=True)
    train(RunConfig(Words(str(tmp_path / "text.txt"), bptt=8), words, fit), tmp_path / "run")
    run = Result(tmp_path / "run")
    bends = _fig6a.orbits(run, points=3)
    assert bends["longest"].shape == (3, 3)
    assert bends["outputs"].shape == (3, 3, 10, 2)
    line = _fig6b.cost_line(run, points=5, sequences=4)
    task = run.run.task
    batch = task.batch(0, 4, "valid")
    initial = initial_model(run.run.config)
    assert line["initial"] == pytest.approx(task.loss(initial(batch.inputs)[0], batch.targets).item(), rel=1e-6)
    test = _fig6c.perplexity(run, batches=1)
    assert test["perplexity"] > 1
    for name, key, found in (("a", "orbits", bends), ("b", "line", line), ("c", "test", test)):
        study, done = STUDIES[f"ribeiro/fig6{name}"], Done(0, [("run", run), (key, Found(found))])
        assert study.cells("quick", done)
        assert drawn(study, done)


@pytest.mark.parametrize(
    ("loss", "smooth"),
    [
        ([7.0, 5.0, 4.5, 4.4], True),
        ([7.0, 5.0, 5.05, 5.1, 5.08, 5.09, 4.9], True),  # it rises as often as it falls, by little
        ([7.0, 6.95, 7.0, 6.93, 7.0, 6.9], False),
        ([7.6, 9.0, 20.0, 50.0], False),
        ([7.0, 4.0, 4.05, 9.0], False),
        ([7.0, float("nan"), 4.0], False),
        ([float("nan"), 5.0, 4.0], False),
        ([7.6], False),
    ],
)
def test_a_loss_that_rises_is_not_smooth(loss, smooth):
    class Losses(FakeRun):
        def curve(self, metric, split="valid"):
            return np.arange(len(loss)), np.array(loss)

    study = STUDIES["ribeiro/fig6c"]
    done = Done(0, [("run", Losses(0, 0)), ("test", Found(perplexity=1e9))])
    claims = judge_claims(study.claims, "quick", {0: Cells(study.cells("quick", done))})
    assert (judge_study(claims).word == "reproduced") is smooth


def test_the_surprise_of_figure_4_turns_with_the_roughness():
    surprise = STUDIES["ribeiro/fig4"].surprise
    cells = {("good", _fig4.ROUGHNESS): 1.5, ("bad", _fig4.ROUGHNESS): 70.2}
    assert "70 times" in surprise(Cells(cells), Cells({}))
    assert surprise(Cells(cells | {("good", _fig4.ROUGHNESS): 80.0}), Cells({})) == ""


def test_the_word_models_surprise_has_its_numbers_from_the_cells():
    surprise = STUDIES["ribeiro/fig6a"].surprise
    cells = {(row, _fig6a.APERIODIC): share for row, share in ((_fig6a.BETWEEN, 0.25), (_fig6a.TRAINED, 0.5))}
    cells[_fig6a.TRAINED, _fig6a.LAST] = 0.007
    said = surprise(Cells({}), Cells(cells))
    assert "25 %" in said
    assert "50 %" in said
    assert "0.007" in said
    assert surprise(Cells({}), Cells(cells | {(_fig6a.BETWEEN, _fig6a.APERIODIC): 0.0})) == ""


@pytest.mark.parametrize(("share", "last", "holds"), [(0.0, 0.0, True), (0.2, 0.005, None), (0.2, 0.5, False)])
def test_orbits_that_still_creep_decide_nothing(share, last, holds):
    claim = STUDIES["ribeiro/fig6a"].claims[0]
    cells = {(_fig6a.BETWEEN, _fig6a.APERIODIC): share, (_fig6a.BETWEEN, _fig6a.LAST): last}
    assert claim.holds(Cells(cells)) is holds


@pytest.mark.parametrize("name", STUDIES)
def test_jobs_are_planned_at_both_sizes(name):
    for scale in ("quick", "full"):
        jobs = STUDIES[name].jobs(scale, 0)
        names = [job.name for job in jobs.values()]
        assert len(set(names)) == len(names)
        assert all(need in names for job in jobs.values() for need in job.needs)


def test_figures_share_their_runs():
    names = {name: {job.name for job in STUDIES[f"ribeiro/{name}"].jobs("full", 3).values()} for name in FIGURES}
    assert len(names["fig3a"] & names["fig4"] & names["fig5"] & names["fig9"]) == 2  # the two runs
    assert len(names["fig5"] & names["fig8"] & names["fig9"]) == 4  # and their orbits
    assert len(names["fig6a"] & names["fig6b"] & names["fig6c"]) == 1


FIGURES = ("fig3a", "fig4", "fig5", "fig6a", "fig6b", "fig6c", "fig8", "fig9")


def test_points_of_a_bifurcation_that_others_hide_are_left_out():
    outputs = np.zeros((2, 3, 2))  # (s, starts, steps)
    outputs[1, 0] = [1.0, 0.5]  # of the first start alone
    outputs[1, 1] = [1e-6, 0.0]
    assert _bifurcations._visible(outputs).tolist() == [
        [[False, False], [False, False], [False, True]],
        [[True, True], [False, False], [False, True]],
    ]
