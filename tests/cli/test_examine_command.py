"""mnemoscope examine: the main job, as its users meet it."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn

import mnemoscope.scopes
from mnemoscope import RelRNN
from mnemoscope.cli import main
from mnemoscope.cli._conditions import read_conditions
from mnemoscope.finding import Examination

NETS = '''
import inspect, sys, time, torch
from torch import nn

def stacked(): return nn.LSTM(8, 6, num_layers=2)
def both_ways(): return nn.GRU(8, 5, num_layers=2, bidirectional=True, batch_first=True)

class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1)
    def forward(self, x): return self.encoder(x)

class Convolutions(nn.Module):
    """Two causal convolutions: they see 6 steps back and no further."""
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv1d(8, 16, 3), nn.Conv1d(16, 4, 3, dilation=2)
    def forward(self, x):
        x = torch.tanh(self.a(nn.functional.pad(x.transpose(1, 2), (2, 0))))
        return self.b(nn.functional.pad(x, (4, 0))).transpose(1, 2)

class Forgetful(nn.Module):
    """Is fed (batch, time, features), and its layer was made without batch_first."""
    def __init__(self):
        super().__init__()
        self.rnn, self.out = nn.LSTM(8, 6), nn.Linear(6, 3)
    def forward(self, x): return self.out(self.rnn(x)[0])

class Oscillators(nn.Module):
    """Two complex numbers that turn and shrink to 0.9 and 0.5 of their size in every step."""
    def __init__(self):
        super().__init__()
        self.turn = nn.Parameter(torch.tensor([0.9j, 0.5j]))
        self.read = nn.Linear(3, 2)
    def initial_state(self, batch): return torch.zeros(batch, 2, dtype=self.turn.dtype)
    def step(self, x, state):
        state = self.turn * state + self.read(x)
        return torch.view_as_real(state).flatten(1), state

class OneBatch(nn.Module):
    """Reads no more than the three sequences that it is given."""
    def forward(self, x):
        if len(x) > 3: raise ValueError("too many sequences")
        return x.cumsum(1)

class Tokens(nn.Module):
    def __init__(self, vocab_size=11):
        super().__init__()
        self.embedding, self.rnn = nn.Embedding(vocab_size, 6), nn.GRU(6, 5, batch_first=True)
    def forward(self, ids): return self.rnn(self.embedding(ids))[0]

class Words(Tokens):
    def __init__(self, vocab_size, dropout_rate): super().__init__(vocab_size)

class Channels(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Conv1d(8, 4, 3)
    def forward(self, x): return self.a(nn.functional.pad(x, (2, 0)))

class Scaled(nn.Module):
    def forward(self, x, scale, lengths):
        assert lengths.tolist() == [16] * 3
        return {"loss": x.mean(), "hidden": x, "sums": scale * x.cumsum(1)}

class TwoInputs(nn.Module):
    def forward(self, x, tgt): return x + tgt

def two_inputs(): return TwoInputs()
def six_features(): return nn.GRU(6, 5, batch_first=True)

class Held(nn.LSTM):
    """Stays in the scope `truncation` until it is interrupted."""
    def __init__(self): super().__init__(8, 4)
    def forward(self, x, state=None):
        if any(frame.filename.endswith("_truncation.py") for frame in inspect.stack(0)):
            print("held in truncation", file=sys.stderr, flush=True)
            time.sleep(3600)
        return super().forward(x, state)

class Slow(nn.LSTM):
    def __init__(self): super().__init__(8, 4)
    def forward(self, x, state=None):
        time.sleep(0.05)
        return super().forward(x, state)

def raises(): raise ValueError("first line\\nsecond line")
def nothing(): return 3
not_callable = 7
def diverged():
    net = nn.LSTM(8, 4)
    nn.init.constant_(net.weight_hh_l0, float("nan"))
    return net
'''
PATIENT = ("--budget", "3600")  # a machine that is slow must not skip a scope
SMALL = ("--steps", "16", "--batch", "3", "--quiet", *PATIENT)


@pytest.fixture
def here(tmp_path, monkeypatch):
    (tmp_path / "nets_of_mine.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("nets_of_mine", None)


def examine(*arguments):
    assert main(["examine", *map(str, arguments), *SMALL]) == 0
    folder = Path(arguments[arguments.index("--out") + 1])
    assert (folder / "report.html").stat().st_size > 4_000_000
    return Examination.load(folder)


def test_torch_class_gets_its_required_sizes(here):
    found = examine("torch.nn:LSTM", "--out", "o", "--scopes", "horizon", "stability")
    assert found.about["model"] == "LSTM(8, 64)"
    assert found["stability"].has_result


def test_factory_with_arguments(here):
    found = examine("torch.nn:GRU", "--with", "hidden_size=5", "num_layers=2", "--out", "o", "--scopes", "recurrence")
    assert found.about["model"] == "GRU(8, 5)"
    assert found["recurrence"].labels["kind"] == "recurrent"


def test_bidirectional_stack_is_recognized(here):
    found = examine("nets_of_mine.py:both_ways", "--out", "o", "--scopes", "recurrence", "horizon", "stability")
    assert found["recurrence"].labels["kind"] == "bidirectional"
    assert found["horizon"].has_result
    assert found["stability"].status == "not applicable"


@pytest.mark.parametrize("target", ["nets_of_mine.py:Transformer", "nets_of_mine:Convolutions"])
def test_models_without_a_step_are_examined_by_inputs_and_outputs(here, target):
    found = examine(target, "--out", "o", "--scopes", "horizon", "truncation", "lyapunov", "attention")
    assert [f.scope for f in found if f.has_result] == ["horizon", "truncation"]
    page = (here / "o" / "report.html").read_text()
    assert page.count('<span class="badge not-applicable">') == 1  # both scopes lack the same
    assert "has no step of its own" in page
    if "Convolutions" in target:
        assert found["horizon"].figures["horizon"] == 6


def test_ids_are_made_for_a_model_that_reads_ids(here):
    found = examine("nets_of_mine.py:Tokens", "--out", "o", "--scopes", "recurrence", "horizon")
    assert found.about["source of the inputs"] == "random ids below 11"
    assert found.about["layout"] == "(batch, time)"
    assert found["recurrence"].labels["kind"] == "recurrent"
    fewer = examine("nets_of_mine.py:Tokens", "--vocabulary", "5", "--out", "o", "--scopes", "horizon")
    assert fewer.about["source of the inputs"] == "random ids below 5"
    sized = ("--vocabulary", "7", "--with", "dropout_rate=0.1")
    found = examine("nets_of_mine.py:Words", *sized, "--out", "o", "--scopes", "horizon")
    assert found.about["source of the inputs"] == "random ids below 7"


def test_features_are_as_many_as_the_first_layer_reads(here):
    found = examine("nets_of_mine.py:six_features", "--out", "o", "--scopes", "recurrence")
    assert found["recurrence"].labels["kind"] == "recurrent"


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_complex_weights_keep_their_imaginary_part(here, dtype):
    found = examine("nets_of_mine.py:Oscillators", "--out", "o", "--scopes", "entropy", "--dtype", dtype)
    assert found["entropy"].figures["volume"] == pytest.approx(0.45**2, rel=1e-5)


def test_channels_first_is_found_and_said(here, capsys):
    found = examine("nets_of_mine.py:Channels", "--out", "o", "--scopes", "horizon")
    assert found["horizon"].figures["receptive_field"] == 3
    words = ["nets_of_mine.py:Channels", "--steps", "16", "--scopes", "horizon", "--out", "o", *PATIENT]
    assert main(["examine", *words]) == 0
    printed = capsys.readouterr().out
    assert "Channels: read as (batch, features, time), 8 sequences of 16 steps." in printed
    assert "--batch-first" in printed


def test_kwargs_and_the_output_of_a_model(here):
    asked = ("--kwargs", "scale=2.0", "lengths=[16,16,16]", "--model-output", "sums", "--out", "o")
    found = examine("nets_of_mine.py:Scaled", *asked, "--scopes", "recurrence", "horizon")
    assert found["recurrence"].labels["kind"] == "recurrent"
    found = examine("nets_of_mine.py:Scaled", "--kwargs", "scale=2.0", "--out", "o", "--scopes", "recurrence")
    assert found["recurrence"].labels["kind"] == "memoryless"  # the first that is no loss is `hidden`


def test_lightning_module(here):
    lightning = pytest.importorskip("lightning.pytorch", reason="pip install 'mnemoscope[lightning]'")
    assert lightning
    (here / "lit.py").write_text(
        "import lightning.pytorch as pl, torch\nfrom torch import nn\n"
        "class Lit(pl.LightningModule):\n"
        "    def __init__(self):\n        super().__init__()\n        self.rnn = nn.LSTM(8, 6, batch_first=True)\n"
        "        self.out = nn.Linear(6, 2)\n"
        "    def forward(self, x): return self.out(self.rnn(x)[0])\n"
        "    def training_step(self, batch, index): return self(batch).mean()\n"
    )
    found = examine("lit.py:Lit", "--out", "o", "--scopes", "recurrence", "horizon", "stability")
    assert found["recurrence"].labels["kind"] == "recurrent"
    assert found["stability"].has_result


def test_forgotten_batch_first_comes_first_on_the_page(here):
    found = examine("nets_of_mine.py:Forgetful", "--batch-first", "--out", "o", "--scopes", "recurrence", "horizon")
    assert found["recurrence"].labels["kind"] == "runs over the batch"
    page = (here / "o" / "report.html").read_text()
    assert page.index('class="box alarm"') < page.index('id="verdict"')
    assert "it runs over the batch" in page
    assert "all 15 steps" not in page


def test_failed_scope_is_shown_beside_the_others(here):
    found = examine("nets_of_mine.py:OneBatch", "--out", "o", "--scopes", "recurrence", "horizon")
    assert found["horizon"].status == "failed"
    assert found["recurrence"].has_result
    assert '<span class="badge failed">' in (here / "o" / "report.html").read_text()


def test_several_models_are_compared_and_the_page_is_rewritten_bitwise(here, capsys):
    words = ["examine", "LSTM", "LSTM", "RelRNN", "--with", "hidden_size=6", "--out", "o", "--scopes", "horizon"]
    assert main([*words, *SMALL]) == 0
    assert sorted(p.parent.name for p in here.glob("o/*/findings.json")) == ["01-LSTM", "02-LSTM-2", "03-RelRNN"]
    page = here / "o" / "report.html"
    first = page.read_bytes()
    assert b"<h1>LSTM and LSTM (2) and RelRNN</h1>" in first
    page.unlink()
    assert main(["report", "o", "--figures", "svg"]) == 0
    assert page.read_bytes() == first
    assert capsys.readouterr().out.strip() == str(Path("o/report.html"))
    assert (here / "o" / "figures" / "horizon-gradient.svg").is_file()


def test_task_gives_inputs_targets_and_needs(here):
    words = "GRU --task copy --task.T 7 --with hidden_size=6 --out o --scopes horizon landscape"
    found = examine(*words.split())
    assert found.about["needs"] == "17"
    assert found.about["inputs"] == "3 sequences of 27 steps"
    assert "loss_gradient" in found["horizon"].series


def test_model_with_other_outputs_is_examined_without_the_loss(here):
    found = examine("torch.nn:LSTM", "--task", "copy", "--task.T", "3", "--out", "o", "--scopes", "horizon")
    assert "loss_gradient" not in found["horizon"].series


def test_inputs_from_files(here):
    x = torch.randn(9, 2, 8)
    np.save("x.npy", x.numpy())
    torch.save(x, "x.pt")
    safetensors.torch.save_file({"inputs": x, "other": torch.zeros(1)}, "x.safetensors")
    rates = [
        examine("nets_of_mine.py:stacked", "--inputs", f"x.{kind}", "--out", kind, "--scopes", "horizon")["horizon"]
        for kind in ("npy", "pt", "safetensors")
    ]
    assert rates[0] == rates[1].__class__(**{**vars(rates[1]), "seconds": rates[0].seconds})
    assert rates[0].figures == rates[2].figures


def test_weights_from_files(here):
    net = nn.LSTM(8, 6, num_layers=2)
    nn.init.constant_(net.weight_hh_l1, 0.0)
    safetensors.torch.save_file(net.state_dict(), "w.safetensors")
    torch.save({"epoch": 3, "state_dict": {f"module.{k}": v for k, v in net.state_dict().items()}}, "w.ckpt")
    found = [
        examine("nets_of_mine.py:stacked", "--checkpoint", path, "--out", path + ".d", "--scopes", "signal")
        for path in ("w.safetensors", "w.ckpt")
    ]
    for one in found:
        names, gains = one["signal"].labels["weights"], one["signal"].series["weight_gain"]
        assert gains[names.index("weight_hh_l1")] == 0


def test_examined_run_has_learning_curve_configuration_and_escaped_name(here, capsys):
    words = "train copy --task.T 3 --model GRU --hidden-size 6 --updates 4 --evaluate-every 2 --evaluate-batches 1"
    assert main([*words.split(), "--batch-size", "4", "--out", "runs/<b>first", "--quiet"]) == 0
    assert main(["examine", "runs/<b>first", "--scopes", "horizon", "--batch", "3", "--quiet", *PATIENT]) == 0
    found = Examination.load("runs/<b>first/examination")
    assert found.about["name"] == "<b>first"
    assert found.about["configuration/fit.updates"] == "4"
    assert found["learning"].series["update"].tolist() == [2, 4]
    assert {"versions/torch", "machine/device", "random seed"} <= set(found.about)
    page = Path("runs/<b>first/examination/report.html").read_text()
    assert "&lt;b&gt;first" in page
    assert "<b>first" not in page
    capsys.readouterr()
    assert main(["report", "runs"]) == 0
    assert "1 run." in Path("runs/index.html").read_text()
    assert "examination/report.html" in Path("runs/index.html").read_text()
    longer = ["--task.T", "5", "--scopes", "horizon", "--out", "o", "--quiet", *PATIENT]
    assert main(["examine", "runs/<b>first", *longer]) == 0
    assert Examination.load("o").about["needs"] == "15"


def test_index_skips_damaged_runs(here, capsys):
    words = "train copy --task.T 3 --model GRU --hidden-size 4 --updates 2 --evaluate-batches 1 --batch-size 2 --quiet"
    for name in ("sound", "summary.json", "metrics.jsonl", "config.json"):
        assert main([*words.split(), "--out", f"runs/{name}"]) == 0
        if name != "sound":
            Path("runs", name, name).write_text("{\n")
    capsys.readouterr()
    assert main(["report", "runs"]) == 0
    assert "1 run." in Path("runs/index.html").read_text()
    said = capsys.readouterr().err.splitlines()
    assert [line.startswith("mnemoscope: skipped: runs/") for line in said] == [True] * 3


def test_json_output(here, capsys):
    arguments = ["GRU", "--with", "hidden_size=4", "--scopes", "horizon", "--out", "o", "--steps", "9", "--json"]
    assert main(["examine", *arguments, *PATIENT]) == 0
    said = json.loads(capsys.readouterr().out, parse_constant=lambda word: pytest.fail(word))
    assert said["report"] == str(Path("o/report.html"))
    assert said["models"]["GRU"]["findings"]["horizon"]["figures"]["lags"] == 8
    assert said["models"]["GRU"]["findings"]["horizon"]["figures"]["explodes_at"] == "inf"
    assert said["models"]["GRU"]["findings"]["horizon"]["certified"] == []


@pytest.mark.parametrize(
    ("condition", "code"),
    [
        ("horizon<100", 4),
        ("horizon<0", 0),
        ("horizon.lags == 15", 4),
        ("lags>15", 0),
        ("lyapunov.largest>0", 4),
        ("explodes_at>=inf", 4),
        ("horizon<0:certified", 4),  # it is estimated
    ],
)
def test_fail_if_conditions(here, capsys, condition, code):
    arguments = ["GRU", "--with", "hidden_size=4", "--scopes", "horizon", "--out", "o", "--fail-if", condition]
    assert main(["examine", *arguments, *SMALL]) == code
    assert bool(capsys.readouterr().err) == (code == 4)


def test_fail_if_knows_every_figure_before_it_is_measured():
    found = mnemoscope.examine(RelRNN(2, 3), torch.randn(8, 2, 2), torch.zeros(8, 2, 3), nn.MSELoss())
    other = mnemoscope.examine(
        mnemoscope.RNN(2, 3), torch.randn(8, 2, 2), scopes=["attractors", "entropy", "stability"]
    )
    findings = [*found, *other]
    assert {f.scope for f in findings if f.has_result} == set(mnemoscope.scopes.SCOPES)
    read_conditions([f"{finding.scope}.{figure}<0" for finding in findings for figure in finding.figures])
    read_conditions(["exact_rank<3", "learning.best<0.5", "best_update>3", "episode.return<1"])


@pytest.mark.parametrize(("condition", "code"), [("stability.lambda>2:certified", 0), ("largest_ratio>2:certified", 4)])
def test_fail_if_asks_for_the_status_of_the_figure(here, capsys, condition, code):
    arguments = ["LinearSystem", "--with", "hidden_size=1", "--scopes", "stability", "--out", "o"]
    assert main(["examine", *arguments, "--seed", "0", "--fail-if", condition, *SMALL]) == code
    assert ("estimated, not certified" in capsys.readouterr().err) == (code == 4)


@pytest.mark.parametrize("figure", ["attention.mean_lag", "mean_lag"])
def test_fail_if_on_a_scope_that_does_not_apply(here, capsys, figure):
    arguments = ["GRU", "--with", "hidden_size=4", "--scopes", "attention", "--out", "o"]
    assert main(["examine", *arguments, "--fail-if", f"{figure}<1", *SMALL]) == 4
    assert "does not apply" in capsys.readouterr().err


def test_scope_is_skipped_if_the_budget_is_too_small(here):
    words = "nets_of_mine.py:Slow --out o --scopes recurrence truncation --steps 16 --batch 3 --quiet --budget 1.5"
    assert main(["examine", *words.split()]) == 0
    assert Examination.load("o")["truncation"].status == "skipped"


def _process(here, *arguments):
    command = [sys.executable, "-m", "mnemoscope", "examine", *arguments, "--out", "o", "--batch", "2"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    return subprocess.Popen(command, cwd=here, env=environment, **pipes)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ctrl_c_and_sigterm_leave_a_partial_page(here, number, code):
    process = _process(here, "nets_of_mine.py:Held", *PATIENT, "--steps", "40")
    try:
        assert "held in truncation\n" in process.stderr  # two scopes at least are behind it
        process.send_signal(number)
        out, rest = process.communicate()
    finally:
        process.kill()
    assert process.returncode == code, rest
    assert "Traceback" not in rest
    found = Examination.load(here / "o")
    assert found.partial
    assert "recurrence" in found.findings
    assert "Partial:" in (here / "o" / "report.html").read_text()
    assert "stopped" in out


def test_known_system_is_examined_on_its_own_inputs(here):
    words = ["system:delay-line", "--with", "delay=7", "--scopes", "recurrence", "--out", "o", "--quiet"]
    assert main(["examine", *words, *PATIENT]) == 0
    found = Examination.load("o")
    assert found.about["model"] == "DelayLine(1, 7)"
    assert found.about["inputs"] == "4 sequences of 100 steps"
    assert found.about["known answers/horizon.horizon"].startswith("7, ")


def test_steps_and_batch_of_a_known_system(here):
    found = examine("system:leaky-sum", "--with", "decay=0.9", "--out", "o", "--scopes", "entropy")
    assert found.about["inputs"] == "3 sequences of 16 steps"
    assert found["entropy"].figures["change"] == pytest.approx(np.log(0.9), abs=1e-14)  # in float64
    assert not [key for key in found.about if key.startswith("known answers")]  # they hold for its own length
