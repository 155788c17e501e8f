"""The examples and the benchmarks run."""

import re
import runpy
from argparse import Namespace
from pathlib import Path

import pytest

from mnemoscope.tasks import Copy
from mnemoscope.training import FitConfig, NetworkConfig, RunConfig

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"


def test_every_example_has_its_test():
    names = ["own_recurrence.py", "search_optuna.py", "swap_lstm.py"]
    assert sorted(path.name for path in EXAMPLES.glob("*.py")) == names


def test_own_recurrence_example_remembers_longer_with_a_smaller_a(capsys):
    runpy.run_path(str(EXAMPLES / "own_recurrence.py"))["main"]()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["a = 1.0", "a = 0.3", "a = 0.05"]
    reach = [int(steps) for line in lines for steps in re.findall(r"reach (\d+) steps back", line)]
    assert len(reach) == 3
    assert reach == sorted(reach)


def test_swap_lstm_example_trains_both_layers(capsys):
    runpy.run_path(str(EXAMPLES / "swap_lstm.py"))["main"](updates=2)
    line = r"{} names the first of 60 symbols in \d+ % of cases\n"
    assert re.fullmatch(line.format("LSTM    ") + line.format("RelLSTM "), capsys.readouterr().out)


def test_optuna_example_trains_every_trial_once(capsys, tmp_path):
    pytest.importorskip("optuna", reason="Optuna is not installed")
    fit = FitConfig(updates=2, batch_size=4, evaluate_batches=1)
    base = RunConfig(Copy(T=2), NetworkConfig("RelRNN", hidden_size=4), fit)
    search = runpy.run_path(str(EXAMPLES / "search_optuna.py"))["main"]
    search(rounds=2, at_a_time=2, base=base, folder=str(tmp_path / "search"))
    printed = capsys.readouterr().out
    assert re.match(r"best accuracy \d\.\d{3} with \{'lr': [\d.e-]+, 'buffer': \d\}\n", printed)
    assert len(list(tmp_path.glob("search/*/summary.json"))) == 4


def test_sweep_benchmark_says_what_a_run_costs(capsys):
    benchmark = runpy.run_path(str(ROOT / "benchmarks" / "sweep.py"))
    benchmark["show_driver"](100)
    assert re.match(r"driver, +100 jobs that do nothing: \d+ us a job, \d+ kB at most\n", capsys.readouterr().out)
    benchmark["many_runs"](2, 0.02, 2)
    assert re.search(r"CPU [\d.]+ s a run, of which [\d.]+ s are the run: -?[\d.]+ s beyond", capsys.readouterr().out)


def test_kernel_benchmark_lists_gru_beside_torchs(capsys, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    peers = runpy.run_path(str(ROOT / "benchmarks" / "kernels.py"))["peers"]
    monkeypatch.setitem(peers.__globals__, "peak_megabytes", lambda *_: 1.0)  # a process each
    layers = ["GRU", "RNN", "LSTM"]
    peers(Namespace(T=4, batch=2, hidden=8, device="cpu", usual_T=220, repeats=1, layers=layers))
    rows = [line.strip("|").split("|") for line in capsys.readouterr().out.splitlines()[3:]]
    compared = [(row[0].strip(), row[3].strip()) for row in rows]
    assert compared[:3] == [("GRU", "nn.GRU"), ("RNN", "nn.RNN"), ("LSTM", "nn.LSTM")]
    assert [name for name, _ in compared[3:]] == ["nn.LSTM", "nn.GRU", "nn.RNN"]


def test_training_benchmark_shows_a_word_model(capsys, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    show_words = runpy.run_path(str(ROOT / "benchmarks" / "training.py"))["show_words"]
    small = {"WORD_UNITS": 8, "WORD_STEPS": 12, "WORD_ROWS": 24, "WORD_OUTPUTS": (5, 9)}
    for name, value in small.items():
        monkeypatch.setitem(show_words.__globals__, name, value)
    show_words("cpu", repeats=1)
    rows = [line.strip("|").split(" | ")[0].strip() for line in capsys.readouterr().out.splitlines() if "|" in line]
    assert rows == ["outputs", "---|---|---", "5", "9", "bptt, of 12 steps", "---|---", "never", "35", "5"]
