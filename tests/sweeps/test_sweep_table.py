"""The table of a sweep: its figures against known answers, and its files."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from mnemoscope.cli import main
from mnemoscope.errors import MnemoscopeError
from mnemoscope.sweeps import Sweep, bootstrap_interval, interquartile_mean, run_job_of, sweep_table
from mnemoscope.tasks import Adding, Copy
from mnemoscope.training import FitConfig, NetworkConfig, RunConfig

BEST = {(2, 0): 0.5, (2, 1): 1.0, (2, 2): 0.75, (5, 0): 0.25, (5, 1): 1.0, (5, 2): None, (5, 3): 1.0, (5, 4): 1.0}
SOLVED = {(2, 1): 40}  # the update
DIVERGED = (5, 1)
FAILED = (5, 3)
DIVERGED_BEFORE = (5, 4)  # by a version that left no summary


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A sweep whose runs are only their files, by buffer and seed: some diverged or failed, (5, 2) has not begun."""
    entries = []
    outcomes = {key: "solved" if key in SOLVED else "budget spent" for key in BEST}
    outcomes |= {DIVERGED: "diverged", FAILED: "failed"}
    for (buffer, seed), best in BEST.items():
        network = NetworkConfig("RelRNN", 8, options={"buffer": buffer})
        job = run_job_of(RunConfig(Copy(T=4), network, FitConfig(updates=100, seed=seed)))
        entries.append({"run": job.name, "config": job.config})
        run = tmp_path / job.name
        if (buffer, seed) == (5, 2):
            continue
        run.mkdir()
        (run / "config.json").write_text(json.dumps(job.config))
        curve = [(20, 0.1), (40, 1.0 if (buffer, seed) in SOLVED else 0.2), (100, best)]
        lines = [json.dumps({"update": u, "split": "valid", "loss": 1.0, "accuracy": a}) for u, a in curve]
        (run / "metrics.jsonl").write_text("\n".join(lines) + "\n")
        if (buffer, seed) == DIVERGED_BEFORE:
            record = {"job": job.name, "exit_code": 3, "message": "diverged at update 3"}
            (tmp_path / "failures.jsonl").write_text(json.dumps(record) + "\n")
        else:
            (run / "summary.json").write_text(json.dumps(summary(best, outcomes[buffer, seed])))
    (tmp_path / "sweep.json").write_text(json.dumps({"format": 1, "base": None, "runs": entries}))
    return tmp_path


def summary(best: float | None, outcome: str) -> dict:
    return {
        "outcome": outcome,
        "updates": 100,
        "metric": "accuracy",
        "best": best,
        "best_update": 100,
        "held_out": {"accuracy": best},
        "baseline": 1.0,
        "parameters": 10,
        "seconds": 10.0,
        "updates_per_second": 10.0,
    }


def test_figures_are_those_of_the_runs(folder: Path) -> None:
    table = sweep_table(Sweep(folder))
    assert table.by == ("network.buffer",)
    first, second = table.groups
    assert (first.runs, first.ended, first.diverged, first.solved) == (3, 3, 0, 1)
    assert (first.mean, first.median, first.iqm) == (0.75, 0.75, 0.75)
    assert 0.5 <= first.iqm_low < 0.75 < first.iqm_high <= 1.0
    assert (first.updates_to_solved, first.seconds_to_solved) == (40, 4.0)
    assert (second.runs, second.ended, second.diverged, second.failed, second.solved) == (5, 1, 2, 1, 0)
    assert (second.mean, second.iqm_low, second.updates_to_solved) == (0.25, None, None)


def test_groups_are_by_any_fields(folder: Path) -> None:
    table = sweep_table(folder, ["network.model", "fit.seed"])
    assert [group.settings for group in table.groups] == [
        {"network.model": "RelRNN", "fit.seed": seed} for seed in range(5)
    ]
    assert [group.runs for group in table.groups] == [2, 2, 2, 1, 1]
    assert table.groups[0].mean == (0.5 + 0.25) / 2
    with pytest.raises(
        MnemoscopeError, match=r"'fit\.sed' is not a field.*those that vary are network\.buffer, fit\.seed"
    ):
        sweep_table(Sweep(folder), ["fit.sed"])


def test_an_option_that_is_not_set_has_its_default(folder: Path) -> None:
    assert {
        group.settings["network.relevant"] for group in sweep_table(Sweep(folder), ["network.relevant"]).groups
    } == {10}


def test_interquartile_mean_is_scipys(folder: Path) -> None:
    for n in range(1, 14):
        values = np.random.default_rng(n).normal(size=n)
        assert interquartile_mean(values) == pytest.approx(stats.trim_mean(values, 0.25))


def test_bootstrap_interval_covers_a_mean_and_keeps_strata_apart() -> None:
    values = np.random.default_rng(0).normal(size=400)
    low, high = bootstrap_interval([values])
    half = 1.96 * np.std(np.sort(values)[100:300]) / np.sqrt(200)  # of the middle half alone: a lower bound
    assert low < interquartile_mean(values) < high
    assert high - low > half
    apart = [np.zeros(10), np.full(10, 100.0)]  # between strata nothing is random
    assert bootstrap_interval(apart) == (50.0, 50.0)
    assert bootstrap_interval([np.ones(1)]) is None


def test_tasks_with_different_metrics_have_no_common_table(tmp_path: Path) -> None:
    jobs = [run_job_of(RunConfig(task)) for task in (Copy(), Adding())]
    runs = [{"run": job.name, "config": job.config} for job in jobs]
    (tmp_path / "sweep.json").write_text(json.dumps({"format": 1, "base": None, "runs": runs}))
    with pytest.raises(MnemoscopeError, match="a table has one metric; the tasks of this sweep have accuracy, mse"):
        sweep_table(Sweep(tmp_path))


def test_command_writes_the_terminal_csv_json_and_a_page(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", "table", str(folder), "--by", "network.buffer", "fit.seed"]) == 0
    printed = capsys.readouterr().out
    for text in ("best held-out accuracy, more is better", "solved", "1 of 1", "0 of 1", str(folder / "table.html")):
        assert text in printed
    rows = list(csv.DictReader((folder / "table.csv").open()))
    assert [(row["network.buffer"], row["fit.seed"], row["mean"]) for row in rows[:2]] == [
        ("2", "0", "0.5"),
        ("2", "1", "1.0"),
    ]
    assert json.loads((folder / "table.json").read_text())["rows"][1]["updates_to_solved"] == 40
    page = (folder / "table.html").read_text()
    for text in (
        "8 runs in 8 groups",
        "Best held-out accuracy (IQM)",
        "Share of runs that solved",
        "Accuracy while learning",
    ):
        assert text in page
    assert main(["sweep", "table", str(folder), "--json", "--out", str(folder / "elsewhere")]) == 0
    assert json.loads(capsys.readouterr().out)["metric"] == "accuracy"
    assert (folder / "elsewhere" / "table.csv").exists()


def test_command_refuses_what_is_no_sweep(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", "table", str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"mnemoscope: {tmp_path} is not the folder of a sweep: it has no sweep.json\n"
