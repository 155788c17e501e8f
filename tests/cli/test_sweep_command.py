"""mnemoscope sweep: what is refused, in one line and without a trace; a full disk; the lines of a sweep."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_processes import SMALL_FILES

from mnemoscope.cli import main

pytest.importorskip("tyro")

OPTIONS = [
    *("--model", "torch.RNN", "--hidden-size", "4", "--batch-size", "2", "--task.T", "2", "--updates", "6"),
    *("--evaluate-batches", "1", "--evaluate-every", "3", "--checkpoint-every", "3"),
]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["copy"], "no grid was given"),
        ([], "no task was given; mnemoscope sweep TASK takes one of"),
        (["copyy", "--grid", "fit.seed=1"], "'copyy' is not a task; mnemoscope sweep TASK takes one of"),
        (["copy", "--grid"], "no grid was given"),
        (["copy", "--grid", "fit.seed="], "fit.seed has no values"),
        (["copy", "--grid", "fit.seeds=1"], "grid: fit has no field 'seeds'"),
        (["copy", "--grid", "fit.sed=1"], "did you mean seed?"),
        (["copy", "--grid", "fit.seed=0:10000000"], "fit.seed = 0:10000000 is too long; a range may span 1,000,000"),
        (["copy", "--grid", "network.bufer=1"], "did you mean buffer?"),
        (["copy", "--grid", "fit.seed=x"], "must be a whole number"),
        (["copy", "--grid", "fit.seed=1,1"], "fit.seed has 1 twice"),
        (["copy", "--grid", "fit.seed=1", "--jobs", "0"], "jobs must be a whole number of at least 1; got 0"),
        (["copy", "--grid", "fit.seed=1", "--jobs", "two"], "--jobs"),
        (["copy", "--grid", "fit.seed=1", "--engine", "moon"], "--engine"),
        (["copy", "--grid", "fit.seed=1", "--keep", "1/2"], "keep needs halving"),
        (["copy", "--grid", "fit.seed=1", "--halving", "9"], "write rising updates"),
        (["copy", "--grid", "fit.seed=1", "--sed", "1"], "--sed"),
        (["resume", "nowhere"], "nowhere is not the folder of a sweep"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["sweep", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_help_names_the_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", "--help"]) == 0
    text = capsys.readouterr().out
    for option in ("--grid", "--jobs", "--engine", "--halving", "--keep", "sweep table", "sweep resume"):
        assert option in text


def test_a_single_run_is_not_called_1_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "s"
    assert main(["sweep", "copy", *OPTIONS, "--out", str(folder), "--jobs", "1", "--grid", "fit.seed=0:1"]) == 0
    assert capsys.readouterr().out.startswith(f"1 run; {folder}; see: ")


def test_a_sweep_prints_one_line_a_run_and_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["sweep", "copy", *OPTIONS, "--out", str(tmp_path / "s"), "--jobs", "2", "--grid", "fit.seed=0:2"]
    assert main([*arguments, "fit.lr=0.01"]) == 0
    printed = capsys.readouterr()
    lines = printed.err.splitlines()
    assert len(lines) == 2
    assert any("seed=0 lr=0.01  budget spent after 6 updates; best accuracy" in line for line in lines)
    assert lines[1].endswith("0:00 left")
    assert printed.out == f"2 runs; {tmp_path / 's'}; see: mnemoscope sweep table {tmp_path / 's'}\n"
    assert main([*arguments, "fit.lr=0.01", "--json"]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert json.loads(printed.out) == {"sweep": str(tmp_path / "s"), "runs": 2, "diverged": 0, "failed": 0}
    assert main(["sweep", "resume", str(tmp_path / "s"), "--quiet"]) == 0
    assert main(["sweep", "table", str(tmp_path / "s"), "--quiet"]) == 0


def test_a_folder_whose_name_is_not_unicode(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / os.fsdecode(b"\xff")
    assert main(["sweep", "copy", *OPTIONS, "--out", str(folder), "--grid", "fit.seed=1"]) == 0
    assert "\\udcff" in capsys.readouterr().out
    assert main(["sweep", "table", str(folder)]) == 0
    assert "\\udcff/table.csv" in capsys.readouterr().out


def test_failed_and_diverged_runs_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["sweep", "copy", *OPTIONS, "--out", str(tmp_path / "s"), "--log-every", "1"]
    assert main([*arguments, "--grid", "fit.diverged=1e-9,1e6"]) == 0
    printed = capsys.readouterr()
    assert "failed: diverged at update 1" in printed.err
    assert printed.out.startswith("2 runs, 1 diverged; ")
    assert main([*arguments, "--grid", "network.embedding=0,4"]) == 2  # 0 is the run above with the usual 1e6
    printed = capsys.readouterr()
    assert printed.err.splitlines()[-1].startswith("mnemoscope: 1 of 3 runs failed")
    assert "3 runs, 1 diverged, 1 failed" in printed.out


def test_a_full_disk_is_one_line_and_loses_nothing(tmp_path: Path) -> None:
    options = [*OPTIONS, "--log-every", "1", "--updates", "90", "--out", str(tmp_path / "s"), "--quiet"]
    command = [sys.executable, "-m", "mnemoscope", "sweep", "copy", *options, "--grid", "fit.seed=0:3", "--jobs", "2"]
    small_files = [sys.executable, "-c", SMALL_FILES, "6000"]  # room for the checkpoints, not for all the metrics
    done = subprocess.run([*small_files, *command], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith(f"mnemoscope: cannot write {tmp_path}/s/")
    assert "File too large" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "s" / "failures.jsonl").exists()
    assert main(["sweep", "resume", str(tmp_path / "s"), "--quiet"]) == 0
    assert len(list((tmp_path / "s").glob("*/summary.json"))) == 3
