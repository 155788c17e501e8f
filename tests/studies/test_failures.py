"""Unknown is open, and failed runs count: in medians, in verdicts, and in the cells of every study."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
import torch

from mnemoscope.files import to_json
from mnemoscope.studies import SCALES, Cells, Claim, Done, Note, Result, load
from mnemoscope.studies._cells import UnknownCell, medians
from mnemoscope.studies._jobs import MEASUREMENT, run_measurement
from mnemoscope.studies._merge import merge_costs
from mnemoscope.studies._record import Cost, kept_cells
from mnemoscope.studies._reproduce import _charts
from mnemoscope.studies._verdict import judge_claim
from mnemoscope.training import RunConfig

STUDIES = load()
TRAINED = [
    (name, scale)
    for name, study in STUDIES.items()
    for scale in SCALES
    if any(job.call != MEASUREMENT for job in study.jobs(scale, 0).values())
]
MAY_BE_UNKNOWN = ("nu", "rho", "lr", "share of the run from 50 % to 95 %")
# What holds of runs that all diverged: that something is not learned, or is as good as something else.
ABOUT_FAILURE = (
    "does not solve it|without a memory|not learned|% or less|within 1 % of the best|as accurate as"
    "|no better than guessing"
)
SHARE = Claim("at least a half", row="a", column="x", at_least=0.5, over="median")


def seeds(*values):
    return {seed: Cells({("a", "x"): value}, [("a", "x")]) for seed, value in enumerate(values)}


@pytest.mark.parametrize("name", STUDIES)
def test_every_claim_is_open_where_nothing_is_known(name):
    study = STUDIES[name]
    for scale in SCALES:
        for claim in study.claims:
            verdict = judge_claim(claim, scale, {seed: Cells({}, list(study.published.values)) for seed in (0, 1)})
            assert verdict.word == "open", claim.text


def test_known_cells_that_there_are_none_of_end_a_check():
    with pytest.raises(UnknownCell):
        Cells({("a", "x"): None}, [("b", "x")]).known()
    assert Cells({("a", "x"): None, ("b", "x"): 1.0}).known() == [1.0]


def test_failed_runs_count_in_medians():
    diverged = Note("diverged", 0.125)
    assert judge_claim(SHARE, "quick", seeds(1.0, diverged, diverged)).word == "contradicted"
    assert judge_claim(SHARE, "quick", seeds(1.0, diverged, 1.0)).word == "reproduced"
    fails = Claim("a guess", row="a", column="x", at_most=0.3, over="median")
    assert judge_claim(fails, "quick", seeds(diverged)).word == "reproduced"
    never = Note("not within 10 frames", "infinity")
    soon = Claim("soon", row="a", column="x", at_most=9.0)
    assert str(judge_claim(soon, "quick", seeds(5.0, never, never))) == "partly (1 of 3)"
    no_number = Note("diverged")
    for bounds in ({"at_least": 0.0}, {"at_most": 9.0}):
        assert judge_claim(Claim("any", "a", "x", **bounds), "quick", seeds(no_number)).word == "contradicted"
        over = Claim("any", "a", "x", **bounds, over="median")
        assert judge_claim(over, "quick", seeds(1.0, no_number, 1.0)).word == "contradicted"


def test_what_was_not_run_leaves_no_median():
    assert judge_claim(SHARE, "quick", seeds(1.0, None)).word == "open"
    found = medians(list(seeds(Note("diverged", 0.125), 0.9, Note("diverged", 0.125)).values()))
    assert found.value(("a", "x")) == Note("diverged", 0.125)
    assert math.isinf(medians(list(seeds(Note("never", "infinity"), 0.9, math.inf).values()))["a", "x"])


def diverged_run(job, folder: Path) -> None:
    """The folder of a run that diverged at its second update, before any evaluation."""
    folder.mkdir()
    (folder / "config.json").write_bytes(to_json(RunConfig.from_dict(job.config).to_dict()))
    summary = {"outcome": "diverged", "message": "diverged at update 2", "updates": 2, "best": None, "seconds": 1.0}
    (folder / "summary.json").write_bytes(to_json(summary))


@pytest.mark.parametrize(("name", "scale"), TRAINED)
def test_cells_and_charts_of_runs_that_diverged_at_once(name, scale, tmp_path):
    """No cell is lost, and no claim holds but those that something fails."""
    study = STUDIES[name]
    done = Done(0)
    for key, job in study.jobs(scale, 0).items():
        folder = tmp_path / job.name
        needs_run = any((tmp_path / need).exists() for need in job.needs)
        if job.call == MEASUREMENT and needs_run:
            run_measurement(job.config, folder, lambda: False)
        elif job.call != MEASUREMENT and not folder.exists():
            diverged_run(job, folder)
        if folder.exists():
            done[key] = Result(folder)
    cells = {(row, column): value for row, column, value in kept_cells(study.cells(scale, done))}
    assert cells
    assert not [key for key, value in cells.items() if value is None and key[1] not in MAY_BE_UNKNOWN]
    _charts(study, scale, [done], len(done) == len(study.jobs(scale, 0)))
    found = {0: Cells(cells, list(study.published.values))}
    hold = [claim.text for claim in study.claims if judge_claim(claim, scale, found).word == "reproduced"]
    assert not [text for text in hold if not re.search(ABOUT_FAILURE, text)]


def test_a_figure_that_was_nan_is_nan_again_wherever_it_was(tmp_path):
    config = {"function": "study_jobs:number", "arguments": {"value": 2.0}, "needs": [], "version": 1}
    run_measurement(config, tmp_path, lambda: False)
    result = Result(tmp_path)
    assert result["value"] == result.figure("value") == 2
    assert math.isnan(result["nothing"])
    assert result["list"][0] == 1
    assert math.isnan(result["list"][1])  # what is infinite is NaN too
    assert "CPU" in result.device or torch.cuda.is_available()


def test_the_cost_says_where_jobs_ran(tmp_path):
    for name, summary in (("a", {"seconds": 2.0, "device": "NVIDIA H200"}), ("b", {"seconds": 3.0}), ("c", {})):
        (tmp_path / name).mkdir()
        (tmp_path / name / "summary.json").write_bytes(to_json(summary))
    found = [Result(tmp_path / name) for name in "abc"]
    one, all_three = merge_costs(None, found[:1], "2026-11-17"), merge_costs(None, found, "2026-11-17")
    assert one == Cost(2.0, 1, "NVIDIA H200", "2026-11-17")
    assert all_three == Cost(5.0, 3, "a machine that was not recorded (3 s), NVIDIA H200 (2 s)", "2026-11-17")
    assert merge_costs(one, found[1:], "2026-11-17") == all_three
    four = merge_costs(all_three, found[:1], "2026-11-18")
    assert four.machine == "NVIDIA H200 (4 s), a machine that was not recorded (3 s)"
