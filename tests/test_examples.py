"""The examples and the benchmarks run."""

import re
import runpy
from argparse import Namespace
from pathlib import Path

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"


def test_every_example_has_its_test():
    assert sorted(path.name for path in EXAMPLES.glob("*.py")) == ["own_recurrence.py", "swap_lstm.py"]


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
