"""Studies of long runs: what some of their jobs have found is kept, and the parts of several calls make the whole."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mnemoscope.report import Chart, Panels
from mnemoscope.studies import Cells, Done, Study, choose
from mnemoscope.studies._merge import merge_charts
from mnemoscope.studies._reproduce import _charts
from mnemoscope.studies._verdict import judge_claims
from mnemoscope.studies.miller._fig3 import CUTS
from mnemoscope.sweeps import Job
from mnemoscope.training import RunConfig

LONG = [
    *("kerg/fig3", "kerg/fig4", "kerg/fig5", "kerg/fig6", "kerg/fig7", "kerg/fig8", "kerg/fig9"),
    *("kerg/gradient-vs-memory", "kerg/tmaze", "levine/accuracy"),
    *("miller/claim-stable", "miller/fig2", "miller/fig3"),
    *("ribeiro/fig3a", "ribeiro/fig3b", "ribeiro/fig6c"),
]
ARRAYS = {
    "gradients": np.stack([np.linspace(5, 1, 50), np.linspace(9, 1, 50)]),
    "inputs": np.eye(28),
    "map": np.eye(28),
    **dict.fromkeys(("lengths", "megabytes", "gradient", "gaps", "log_norm"), np.arange(2.0)),
}


class Found:
    """What a job found: numbers that differ from job to job, by any name that a study asks for."""

    diverged_at_once = False
    diverged = ""

    def __init__(self, number: int, job: Job) -> None:
        self.number = number
        self.summary = {"updates": 10, "outcome": "budget spent"}
        if "function" not in job.config:
            config = RunConfig.from_dict(job.config)
            self.run = SimpleNamespace(config=config, task=config.task)

    def __getitem__(self, name: str) -> Any:
        if name == "text":
            return ["a"] * 28
        if name == "updates":
            return [0, 10]
        if name == "norm":  # of the run that all gaps are measured from
            return 5.0
        return ARRAYS[name] + self.number if name in ARRAYS else 1.0 + self.number

    def figure(self, name: str, counts_as: Any = None) -> float:
        return float(self[name])

    def reached(self, counts_as: Any) -> float:
        return self.number / 1000

    def curve(self, metric: str, split: str | None = "valid") -> tuple[np.ndarray, np.ndarray]:
        return np.array([1.0, 2.0]), np.array([0.2, 0.5]) + self.number / 1000


def whole_of(study: Study) -> Done:
    jobs = study.jobs("full", 0)
    results: Any = [(key, Found(number, job)) for number, (key, job) in enumerate(jobs.items())]
    return Done(0, results)


def parts_of(study: Study, whole: Done) -> list[Done]:
    """Each job with those that it needs: a run alone, and a run with what was measured of it."""
    jobs = study.jobs("full", 0)
    needs = {key: {job.name, *job.needs} for key, job in jobs.items()}
    return [Done(0, [(key, whole[key]) for key in jobs if jobs[key].name in names]) for names in needs.values()]


def curves(charts: list[Chart | Panels]) -> dict[tuple[str, str], Any]:
    panels = [panel for chart in charts for panel in (chart.charts if isinstance(chart, Panels) else (chart,))]
    return {(panel.key, mark.name): getattr(mark, "curves", {}) for panel in panels for mark in panel.marks}


@pytest.mark.parametrize("name", LONG)
def test_parts_of_a_study_make_the_whole(name: str) -> None:
    (study,) = choose([name])
    whole = whole_of(study)
    cells: dict[Any, Any] = {}
    charts: list[Chart | Panels] = []
    for part in parts_of(study, whole):
        cells |= study.cells("full", part)
        drawn = _charts(study, "full", [part], False)
        charts = merge_charts(charts, drawn, [0], [0]) if charts else drawn
    complete = dict(study.cells("full", whole))
    cells = dict(study.cells_of_charts("full", charts, 0)) | cells
    joined = {key: cells[key] for key in complete if key in cells}
    assert joined == pytest.approx(complete, nan_ok=True)
    expected = curves(_charts(study, "full", [whole], True))
    found = curves(charts)
    assert found.keys() == expected.keys()
    for mark, by_seed in expected.items():
        for one, other in zip(found[mark].get(0, ()), by_seed.get(0, ()), strict=True):
            np.testing.assert_array_equal(one, other)


def test_claims_of_figure_3_are_open_until_a_network_has_all_its_runs() -> None:
    (study,) = choose(["miller/fig3"])
    whole = whole_of(study)

    def judged(*wanted: tuple[str, int]) -> set[str]:
        done = Done(0, [(key, result) for key, result in whole.items() if key[:2] in wanted])
        claims = judge_claims(study.claims, "full", {0: Cells(study.cells("full", done))})
        return {claim.text.split(":")[0] for claim in claims if claim.verdict.word != "open"}

    cuts = CUTS["full"]
    assert judged(*(("RNN", k) for k in cuts if k != 64), ("LSTM", 5)) == set()
    assert judged(*(("RNN", k) for k in cuts), ("LSTM", 5)) == {"RNN"}
    assert judged(*((name, k) for name in ("RNN", "LSTM") for k in cuts)) == {"RNN", "LSTM"}


def test_the_norm_of_figure_3_is_that_of_a_gap_that_was_measured() -> None:
    (study,) = choose(["miller/fig3"])
    whole = whole_of(study)
    one: Any = whole["RNN", 5, "gap"]
    early: Any = whole["RNN", 64, "gap"]
    assert study.cells("full", Done(0, [(("RNN", 5, "gap"), one)]))["||W_65||", "RNN"] == one["norm"]
    early.diverged_at_once = True
    assert ("||W_65||", "RNN") not in study.cells("full", Done(0, [(("RNN", 64, "gap"), early)]))
    found = study.cells("full", whole)
    assert found["64", "RNN"] == found["64", "RNN, first half"]  # the words "diverged"
    assert isinstance(found["||W_65||", "RNN"], float)
    for k in CUTS["full"]:
        result: Any = whole["RNN", k, "gap"]
        result.diverged_at_once = True
    assert study.cells("full", whole)["||W_65||", "RNN"] == found["64", "RNN"]
