"""Sweeps of training runs: the same bytes however they were trained, disturbed and started again."""

from __future__ import annotations

import fcntl
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from mnemoscope.errors import MnemoscopeError
from mnemoscope.files import locked
from mnemoscope.sweeps import Halving, LocalEngine, Sweep, SweepProgress, _runs, resume_sweep, sweep, train_run
from mnemoscope.sweeps._halving import survivors
from mnemoscope.tasks import Copy
from mnemoscope.training import FitConfig, NetworkConfig, Run, RunConfig, Stop, train
from mnemoscope.training._progress import read_summary

FIT = FitConfig(updates=24, batch_size=4, evaluate_every=8, evaluate_batches=1, log_every=4, checkpoint_every=6)
BASE = RunConfig(Copy(T=4), NetworkConfig("RelRNN", 8), FIT)
GRID = {"network.buffer": [2, 5], "fit.seed": [0, 1]}


def results(folder: Path) -> dict[str, tuple[bytes, bytes]]:
    """The metrics and the last weights of each run of a sweep."""
    found = {}
    for name in Sweep(folder).names:
        assert (folder / name / "summary.json").exists(), name
        found[name] = results_of_one(folder / name)
    return found


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sweeps") / "undisturbed"
    sweep(BASE, GRID, folder, jobs=2)
    return folder


def test_runs_are_those_that_train_makes(undisturbed: Path, tmp_path: Path) -> None:
    runs = Sweep(undisturbed)
    assert len(runs.names) == 4
    for name, config in zip(runs.names, runs.configs(), strict=True):
        assert config.fit.threads == 1
        train(config, tmp_path / name)
        assert (tmp_path / name / "metrics.jsonl").read_bytes() == (undisturbed / name / "metrics.jsonl").read_bytes()
        assert Run(undisturbed / name).config == config
    assert [(c.network.options["buffer"], c.fit.seed) for c in runs.configs()] == [(2, 0), (2, 1), (5, 0), (5, 1)]


def test_a_finished_sweep_is_not_trained_again_and_a_larger_one_trains_what_is_new(undisturbed: Path) -> None:
    before = results(undisturbed)
    seen: list[SweepProgress] = []
    sweep(BASE, GRID, undisturbed, callback=seen.append)
    assert seen == []
    sweep(BASE, {"network.buffer": [5], "fit.seed": [1, 2]}, undisturbed, callback=seen.append)
    assert [progress.job.config["fit"]["seed"] for progress in seen] == [2]
    sweep(None, [replace(BASE, network=NetworkConfig("LSTM", 8))], undisturbed, callback=seen.append)
    assert len(seen) == 2
    after = results(undisturbed)
    assert len(after) == 6
    assert {name: after[name] for name in before} == before


def test_runs_killed_at_random_moments_end_with_the_same_bytes(undisturbed: Path, tmp_path: Path) -> None:
    random.seed(3)
    disturb(GRID, BASE, tmp_path / "killed", kills=2, seconds=0.4)
    for name, files in results(tmp_path / "killed").items():
        assert files == results(undisturbed)[name]


def disturb(grid: dict[str, list[int]], base: RunConfig, folder: Path, kills: int, seconds: float) -> int:
    """Train a sweep on two processes while another thread kills some of them; return how many died."""
    engine = LocalEngine(2)
    seen: list[SweepProgress] = []
    done = threading.Event()

    def kill() -> None:
        for _ in range(kills):
            done.wait(random.uniform(0, seconds))
            running = [process for process, _ in list(engine._running.values())]
            if running and not done.is_set():
                os.kill(random.choice(running).pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    sweep(base, grid, folder, engine=engine, callback=seen.append)
    done.set()
    killer.join()
    return sum(progress.ending.outcome == "died" for progress in seen)


def command(folder: Path, *more: str, updates: int = 24) -> list[str]:
    options = f"--model RelRNN --hidden-size 8 --batch-size 4 --task.T 4 --updates {updates} --evaluate-every 8"
    options += " --evaluate-batches 1 --log-every 4 --checkpoint-every 6 --jobs 2"
    grid = ["--grid", "network.buffer=2,5", "fit.seed=0:2"]
    return [sys.executable, "-m", "mnemoscope", "sweep", "copy", *grid, *options.split(), "--out", str(folder), *more]


def wait_until(condition: Callable[[], object], driver: subprocess.Popen) -> None:
    """Wait for what a process does, however long that takes. Once true the condition must stay true."""
    while not condition():
        assert driver.poll() is None or condition(), "it has ended"
        time.sleep(0.01)


def runs_with_metrics(folder: Path) -> list[Path]:
    """The runs that have made updates. A checkpoint is no sign of that: older ones are deleted."""
    return [path.parent for path in folder.glob("*/metrics.jsonl")]


def test_a_killed_driver_leaves_nothing_behind_and_is_started_again(undisturbed: Path, tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    driver = subprocess.Popen(command(folder, "--quiet"))
    wait_until(lambda: runs_with_metrics(folder), driver)
    driver.kill()
    driver.wait()
    resume_sweep(folder, jobs=2)  # waits for the orphans, which save their state and end
    for name, files in results(folder).items():
        assert files == results(undisturbed)[name]


def test_ctrl_c_stops_all_runs_with_their_checkpoints(tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    endless = command(folder, "--checkpoint-every", "1000000", updates=100_000_000)  # it saves only where it is stopped
    driver = subprocess.Popen(endless, stderr=subprocess.PIPE, text=True)
    try:
        wait_until(lambda: len(runs_with_metrics(folder)) == 2, driver)
        driver.send_signal(signal.SIGINT)
        _, text = driver.communicate()
    finally:
        driver.kill()
    assert driver.returncode == 130
    assert f"stopped; go on with: mnemoscope sweep resume {folder}" in text
    assert "Traceback" not in text
    assert not (folder / "failures.jsonl").exists()
    runs = [Run(path) for path in runs_with_metrics(folder)]
    assert len(runs) == 2
    for run in runs:
        with locked(run.path, wait=60):  # one that the driver was just starting ends by itself
            update = run.saved_update
        assert 0 <= update - run.metrics()[-1]["update"] < 4
        with pytest.raises(Stop, match=f"stopped at update {update}$"):
            train_run(run.config.to_dict(), run.path, lambda: True)


def test_a_second_driver_is_refused(undisturbed: Path) -> None:
    with open(undisturbed / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(MnemoscopeError, match="is in use by another process; wait for it to end"):
            sweep(BASE, GRID, undisturbed)


@pytest.mark.parametrize("content", ["something.txt", "config.json"])
def test_a_folder_of_something_else_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / content).write_text("{}")
    with pytest.raises(MnemoscopeError, match="choose another folder"):
        sweep(BASE, GRID, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [content]
    with pytest.raises(MnemoscopeError, match="is a file"):
        sweep(BASE, GRID, tmp_path / content)
    with pytest.raises(MnemoscopeError, match=r"it has no sweep\.json"):
        resume_sweep(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content | {"format": 7}, "not the file of a sweep of format 1"),
        (lambda content: content | {"runs": [{"run": "../../etc"}]}, "which is not a folder's name"),
        (lambda content: content | {"runs": [{"run": "x"}]}, r"sweep\.json was changed: its entry x describes"),
        (lambda content: content | {"runs": [{"name": "x"}]}, "has no field 'name'"),
        (lambda content: content | {"base": None}, "neither a configuration nor a base"),
        (lambda content: content | {"runs": []}, "has no runs"),
        (lambda content: content | {"runs": [{"run": "x", "changes": {"seed": 1}}]}, "'seed' is not a field"),
        (lambda content: content | {"runs": [{"run": "x", "changes": {"a.b": 1}}]}, "'a.b' is not a field"),
        (lambda content: content | {"base": {"fit": 3}}, "it must have task, network and fit"),
        (lambda content: content | {"base": content["base"] | {"fit": 3}}, "fit = 3 is not allowed"),
        (lambda content: content | {"rungs": [4, 8], "keep": "half"}, "keep = 'half' is not allowed"),
        (lambda content: content | {"rungs": [4, 8], "keep": "1e-999999999"}, "keep = '1e-999999999' is not allowed"),
    ],
)
def test_a_damaged_sweep_file_is_refused(tmp_path: Path, change: Callable, message: str) -> None:
    content = {"format": 1, "base": BASE.to_dict(), "runs": [{"run": "copy-x", "changes": {"fit.seed": 1}}]}
    (tmp_path / "sweep.json").write_text(json.dumps(change(content)))
    with pytest.raises(MnemoscopeError, match=message):
        resume_sweep(tmp_path)


def test_a_folder_that_is_not_the_run_of_its_name_is_refused(tmp_path: Path) -> None:
    runs = sweep(BASE, {"fit.seed": [0]}, tmp_path / "s", engine=LocalEngine(1))
    (name,) = runs.names
    run = tmp_path / "s" / name
    config = json.loads((run / "config.json").read_text())
    config["fit"]["lr"] = 0.5
    (run / "config.json").write_text(json.dumps(config))
    (run / "summary.json").unlink()
    sweep(BASE, {"fit.seed": [0]}, tmp_path / "s")
    assert "holds another run than its name says" in runs.failures()[name].message


def test_halving_keeps_the_best_and_does_not_depend_on_the_number_of_jobs(undisturbed: Path, tmp_path: Path) -> None:
    grid = {"network.buffer": [2, 5], "fit.seed": [0, 1, 2]}
    halving = Halving((8, 16, 24), Fraction(1, 2))
    folders = [tmp_path / "one", tmp_path / "three"]
    for folder, jobs in zip(folders, (1, 3), strict=True):
        sweep(BASE, grid, folder, jobs=jobs, halving=halving)
    assert results(folders[0]) == results(folders[1])
    summaries = {name: Run(folders[0] / name).summary() for name in Sweep(folders[0]).names}
    updates = [summary.updates for summary in summaries.values()]
    assert sorted(updates) == [8, 8, 8, 16, 24, 24]
    assert {s.outcome for s in summaries.values() if s.updates < 24} == {"stopped early"}

    # Those that went on are the best of their rung, and are what they are without halving.
    first = {name: evaluations(folders[0] / name)[0]["accuracy"] for name in summaries}
    worst_kept = min(first[name] for name, summary in summaries.items() if summary.updates > 8)
    assert worst_kept >= max(first[name] for name, summary in summaries.items() if summary.updates == 8)
    for name in set(results(undisturbed)) & set(summaries):
        whole = (undisturbed / name / "metrics.jsonl").read_bytes()
        assert whole.startswith((folders[0] / name / "metrics.jsonl").read_bytes())

    for other in ({**grid, "fit.seed": [0]}, {**grid, "fit.seed": [0, 1, 2, 3]}):
        with pytest.raises(MnemoscopeError, match="which cannot grow"):
            sweep(BASE, other, folders[0], halving=halving)
    with pytest.raises(MnemoscopeError, match="a sweep with other rungs"):
        sweep(BASE, grid, folders[0])


# The first limit is below any loss; the copy task has nothing to embed.
FAILING = {"network.buffer": [5], "fit.diverged": [1e-9, 1e6], "network.embedding": [0, 4]}


def test_runs_that_fail_or_diverge_have_a_summary_and_are_not_tried_again(tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    runs = sweep(BASE, FAILING, folder, jobs=2)
    summaries = [read_summary(folder / name / "summary.json") for name in runs.names]
    assert [summary.outcome for summary in summaries] == ["diverged", "failed", "budget spent", "failed"]
    diverged, failed = summaries[:2]
    assert (diverged.updates, diverged.best) == (1, None)
    assert diverged.message.startswith("diverged at update 1: the loss is ")
    assert "embedding" in failed.message
    assert (failed.metric, failed.parameters, failed.updates) == ("accuracy", None, 0)
    assert [ending.exit_code for ending in runs.failures().values()].count(2) == 2

    # A new start skips them. On purpose they are tried again, and fail again.
    seen: list[SweepProgress] = []
    resume_sweep(folder, callback=seen.append)
    assert seen == []
    before = results_of_one(folder / runs.names[2])
    resume_sweep(folder, jobs=2, retry_failed=True, callback=seen.append)
    assert sorted(progress.job.name for progress in seen) == sorted(runs.failures())
    assert len(runs.failures()) == 3
    assert [read_summary(folder / name / "summary.json").outcome for name in runs.names] == [
        summary.outcome for summary in summaries
    ]
    assert results_of_one(folder / runs.names[2]) == before


def test_what_was_repaired_is_tried_again_on_purpose(tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    (name,) = sweep(BASE, {"fit.seed": [0]}, folder, jobs=1).names
    expected = results_of_one(folder / name)
    metrics = folder / name / "metrics.jsonl"
    good = metrics.read_bytes()
    metrics.write_bytes(b"damaged")
    (folder / name / "summary.json").unlink()
    runs = resume_sweep(folder, jobs=1)
    assert "is damaged" in runs.failures()[name].message
    assert Run(folder / name).summary().outcome == "failed"
    metrics.write_bytes(good)
    assert resume_sweep(folder, jobs=1, retry_failed=True).failures() == {}
    assert Run(folder / name).summary().outcome == "budget spent"
    assert results_of_one(folder / name) == expected


def test_a_folder_in_use_gets_no_summary_of_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_runs, "LOCK_SECONDS", 0.0)
    with locked(tmp_path / "run"), pytest.raises(MnemoscopeError, match="in use"):
        train_run(BASE.to_dict(), tmp_path / "run", lambda: False)
    assert [path.name for path in (tmp_path / "run").iterdir()] == [".lock"]


def test_a_job_keeps_others_out_before_its_run_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def begin(config: RunConfig, folder: Path, callback: Callable) -> None:
        with pytest.raises(MnemoscopeError, match="in use"), locked(folder):
            pass
        raise Stop("seen")

    monkeypatch.setattr(_runs, "train", begin)
    with pytest.raises(Stop, match="seen"):
        train_run(BASE.to_dict(), tmp_path / "run", lambda: False)


def test_halving_leaves_a_summary_everywhere_and_lets_no_failed_run_go_on(tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    base = replace(BASE, fit=replace(FIT, diverged=1e6))
    limits = {"fit.diverged": [1e-9, 1e6], "fit.seed": [0, 1]}  # two of four diverge at once
    runs = sweep(base, limits, folder, jobs=2, halving=Halving((8, 24), Fraction(3, 4)))
    outcomes = [Run(folder / name).summary().outcome for name in runs.names]
    assert outcomes == ["diverged", "diverged", "budget spent", "budget spent"]

    # One that diverges after a good first rung takes nobody's place at the second.
    late = folder / runs.names[0]
    record = {"update": 8, "split": "valid", "loss": 0.0, "accuracy": 1.0}
    (late / "metrics.jsonl").write_text(json.dumps(record) + "\n")
    folders = [folder / name for name in runs.names]
    configs = list(runs.configs())
    assert survivors(folders, configs, 8, Fraction(1, 2)) == [2, 3]
    summary = json.loads((late / "summary.json").read_text())
    (late / "summary.json").write_text(json.dumps({**summary, "updates": 9}))
    assert 0 in survivors(folders, configs, 8, Fraction(1, 2))
    assert 0 not in survivors(folders, configs, 9, Fraction(1, 2))


def results_of_one(folder: Path) -> tuple[bytes, bytes]:
    last = sorted((folder / "checkpoints").glob("0*.safetensors"))[-1]
    return (folder / "metrics.jsonl").read_bytes(), last.read_bytes()


def evaluations(folder: Path) -> list[dict]:
    return [record for record in Run(folder).metrics() if record.get("split") == "valid"]


@pytest.mark.parametrize(
    ("rungs", "keep", "message"),
    [
        ("100", "1/2", "write rising updates"),
        ("300,100", "1/2", "write rising updates"),
        ("0,100", "1/2", "write rising updates"),
        ("a,b", "1/2", "write rising updates"),
        ("8,16", "2", "a share between 0 and 1"),
        ("8,16", "1/0", "a share between 0 and 1"),
        ("8,16", "half", "a share between 0 and 1"),
        ("4,16", "1/2", "halving needs an evaluation before its first rung"),
    ],
)
def test_bad_rungs_are_refused(tmp_path: Path, rungs: str, keep: str, message: str) -> None:
    with pytest.raises(MnemoscopeError, match=message):
        sweep(BASE, GRID, tmp_path / "s", halving=Halving.parse(rungs, keep))
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("field", ["fit.updates", "fit.epochs"])
def test_halving_sets_the_budget_itself(tmp_path: Path, field: str) -> None:
    with pytest.raises(MnemoscopeError, match="halving"):
        sweep(BASE, {field: [8, 9]}, tmp_path / "s", halving=Halving((8, 24)))


@pytest.mark.slow
def test_five_kills_among_twenty_runs(tmp_path: Path) -> None:
    random.seed(0)
    base = replace(BASE, fit=replace(FIT, updates=150, checkpoint_every=20))
    grid = {"network.buffer": [2, 5], "network.relevant": [2, 5], "fit.seed": [0, 1, 2, 3, 4]}
    sweep(base, grid, tmp_path / "undisturbed", jobs=2)
    expected = results(tmp_path / "undisturbed")
    assert len(expected) == 20
    died = 0
    for attempt in range(9):
        died += disturb(grid, base, tmp_path / f"killed-{attempt}", kills=5, seconds=2.0)
        assert results(tmp_path / f"killed-{attempt}") == expected
        if died >= 5:
            break
    assert died >= 5


@pytest.mark.slow
def test_a_driver_killed_again_and_again(undisturbed: Path, tmp_path: Path) -> None:
    random.seed(0)
    folder = tmp_path / "sweep"
    for _ in range(4):
        driver = subprocess.Popen(command(folder, "--quiet"))
        wait_until(lambda: (folder / "sweep.json").exists(), driver)
        time.sleep(random.uniform(0, 6))  # while it imports, starts its runs, or waits for what the last one left
        driver.kill()
        driver.wait()
    assert subprocess.run(command(folder, "--quiet")).returncode == 0
    for name, files in results(folder).items():
        assert files == results(undisturbed)[name]


def test_the_share_that_goes_on_may_be_any_number(tmp_path: Path) -> None:
    assert Halving((8, 16), 0.5) == Halving((8, 16), Fraction(1, 2))
    runs = sweep(BASE, {"fit.seed": [0]}, tmp_path, jobs=1, halving=Halving((8, 16), 1e-5))
    assert Sweep(tmp_path).file.halving == runs.file.halving == Halving((8, 16), 1e-5)
    for wrong in ((8.5, 16), (0, 8), (8,)):
        with pytest.raises(MnemoscopeError, match="write rising updates"):
            Halving(wrong)
    with pytest.raises(MnemoscopeError, match="a share between 0 and 1"):
        Halving((8, 16), "half")
