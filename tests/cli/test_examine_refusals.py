"""Wrong targets, weights and inputs: one line that says what to do, exit code 2, no traceback, nothing written."""

import pickle
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from test_examine_command import NETS
from torch import nn

from mnemoscope.cli import main


class Payload:
    """What a malicious checkpoint does when it is unpickled."""

    def __reduce__(self):
        return Path.touch, (Path("owned"),)


@pytest.fixture
def here(tmp_path, monkeypatch):
    (tmp_path / "nets_of_mine.py").write_text(NETS)
    (tmp_path / "broken.py").write_text("import no_such_module_anywhere\n")
    (tmp_path / "wrong.py").write_text("def f(:\n")
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    torch.save(nn.LSTM(8, 6).state_dict(), "one_layer.pt")
    torch.save(nn.LSTM(8, 7, num_layers=2).state_dict(), "wider.pt")
    torch.save(nn.LSTM(8, 6, num_layers=2), "pickled.pt")
    torch.save({"state_dict": {}, "extra": Payload()}, "evil.pt")
    Path("raw.pt").write_bytes(pickle.dumps(Payload()))
    Path("cut.safetensors").write_bytes(b"\x10\x00\x00\x00\x00\x00\x00\x00{")
    torch.save(torch.zeros(3), "tensor.pt")
    endless: dict[str, object] = {}
    endless["model"] = endless
    torch.save(endless, "endless.pt")
    torch.save(torch.zeros(9, 2, 8, device="meta"), "meta.pt")
    for name, change in UNLIKE.items():
        weights = nn.LSTM(8, 6, num_layers=2).state_dict()
        torch.save({key: change(tensor) for key, tensor in weights.items()}, f"{name}_weights.pt")
    with warnings.catch_warnings(action="ignore"):  # torch: nested tensors are a prototype
        torch.save(torch.nested.nested_tensor([torch.zeros(3, 8), torch.zeros(2, 8)]), "nested.pt")
    Path("text.npy").write_text("hi")
    np.save("narrow.npy", np.zeros((9, 2, 5), np.float32))
    np.save("objects.npy", np.array([{}], dtype=object))
    np.save("nan.npy", np.full((9, 2, 8), np.nan, np.float32))
    np.save("flat.npy", np.zeros(9, np.float32))
    return tmp_path


STACKED = "nets_of_mine.py:stacked"
UNLIKE = {"meta": lambda w: w.to("meta"), "sparse": torch.Tensor.to_sparse, "complex": lambda w: w.to(torch.complex64)}
REFUSED = {
    "": "no target was given",
    "./nowhere": "there is no folder ./nowhere",
    "empty": "is not a run folder",
    "LTSM": "did you mean LSTM?",
    "nets_of_mine.py": "say what in nets_of_mine.py makes the model, as nets_of_mine.py:",
    "nets_of_mine.py:two_inputs": "also takes 'tgt': pass kwargs={'tgt': ...}, on the command line --kwargs tgt=...",
    "nets_of_mine.py:six_features --features 8": "--features sets how many features random inputs have, 8 now",
    "nets_of_mine.py:stackd": "did you mean stacked?",
    "nets_of_mine.py:raises": "raised ValueError: first line",
    "nets_of_mine.py:nothing": "gave an object of type int; it must give a torch module",
    "nets_of_mine.py:not_callable": "nets_of_mine.py:not_callable is of type int; it must be a function or a class",
    "nets_of_mine.py:diverged": "weight_hh_l0 holds 64 of 64 values that are NaN",
    "nofile.py:net": "there is no file nofile.py",
    "broken.py:net": "there is no module no_such_module_anywhere",
    "wrong.py:net": "SyntaxError",
    "no.such.module:net": "there is no module no",
    "torch.nn:Linear": "also needs in_features, out_features: give them as --with in_features=... out_features=...",
    f"{STACKED} --with layers=3": "raised TypeError",
    f"{STACKED} --with layers": "takes name=value pairs",
    "nets_of_mine.py:six_features --kwargs a=1": "unexpected keyword argument 'a'\n",
    f"{STACKED} --checkpoint one_layer.pt": "it lacks bias_hh_l1, bias_ih_l1, weight_hh_l1",
    f"{STACKED} --checkpoint wider.pt": "weight_ih_l0 is [28, 8] where this model has [24, 8]",
    f"{STACKED} --checkpoint pickled.pt": "could run code when loaded",
    f"{STACKED} --checkpoint evil.pt": "torch.save(model.state_dict(), PATH)",
    f"{STACKED} --checkpoint raw.pt": "raw.pt",
    f"{STACKED} --checkpoint cut.safetensors": "is not a safetensors file",
    f"{STACKED} --checkpoint tensor.pt": "holds no weights",
    f"{STACKED} --checkpoint endless.pt": "holds no weights",
    f"{STACKED} --checkpoint meta_weights.pt": "bias_hh_l0 is a meta tensor where this model has an ordinary one",
    f"{STACKED} --checkpoint sparse_weights.pt": "bias_hh_l0 is a sparse tensor",
    f"{STACKED} --checkpoint complex_weights.pt": "bias_hh_l0 is a complex tensor",
    f"{STACKED} --checkpoint nofile.pt": "cannot read nofile.pt: No such file",
    f"{STACKED} --checkpoint one_layer.pt wider.pt": "2 for 1 targets",
    f"{STACKED} --inputs narrow.npy": "does not run on inputs [9, 2, 5] of float32",
    "torch.nn:LazyLinear --with out_features=2 --inputs narrow.npy": "weight belongs to a lazy layer and has no values",
    f"{STACKED} --inputs objects.npy": "objects.npy is not an .npy file of numbers\n",
    f"{STACKED} --inputs nan.npy": "NaN or infinite",
    f"{STACKED} --inputs flat.npy": "time and a batch dimension",
    f"{STACKED} --inputs x.csv": "must end in .npy, .pt or .safetensors",
    f"{STACKED} --inputs nofile.npy": "cannot read nofile.npy",
    f"{STACKED} --inputs meta.pt": "save an ordinary tensor",
    f"{STACKED} --inputs nested.pt": "save an ordinary tensor",
    f"{STACKED} --kwargs scale=[[1,2],[3]]": "--kwargs scale must be a list of numbers",
    f"{STACKED} --kwargs scale=[1,'a']": "--kwargs scale must be a list of numbers",
    f"{STACKED} --kwargs scale=[{10**20}]": "--kwargs scale must be a list of numbers",
    f"{STACKED} --model-output \u00b2": "\u00b2",
    f"{STACKED} --model-output=--1": "--1",
    "GRU --task coppy": "start-end, tmaze, minigrid, gym; did you mean copy?",
    "GRU --fail-if": "--fail-if needs a value",
    "GRU --scopes --batch 3": "--scopes needs a value",
    "GRU --which first": "--which = 'first' is not allowed; it must be {last,best} or INT",
    "one_layer.pt": "one_layer.pt is a file, not a model: weights are given as --checkpoint",
    "GRU --task copy --task.T -3": "T = -3 is not allowed",
    "GRU --with nosuch=1": "GRU has no option 'nosuch'",
    "GRU --with hidden_size=0": "hidden-size = 0 is not allowed",
    "GRU --steps 0": "steps = 0 is not allowed",
    "GRU --batch 0": "batch = 0 is not allowed",
    "GRU --threads 0": "threads = 0 is not allowed",
    "GRU --budget 0": "budget = 0.0 is not allowed",
    "GRU --fail-if horizon": "as in 'horizon<100'",
    "GRU --fail-if horizon<many": "as in 'horizon<100'",
    "GRU --fail-if horizon<nan": "as in 'horizon<100'",
    "GRU --fail-if horizn<3": "there is no figure 'horizn'; did you mean horizon?",
    "GRU --fail-if stability.lamda>1": "there is no figure 'stability.lamda'; did you mean stability.lambda?",
    "GRU --fail-if nosuch<1": "there is no figure 'nosuch'; docs/scopes.md and findings.json name them",
    "GRU --out raw.pt": "out = 'raw.pt' is not allowed; raw.pt is a file",
    "GRU --out raw.pt/deep/er": "raw.pt is a file",
    "GRU --inputs text.npy": "text.npy is not an .npy file of numbers\n",
    "GRU --scopes horizn": "did you mean horizon?",
    "GRU --out page.html": "it is a folder, and the page in it has its own name",
    "GRU --batch-first --time-first": "contradict each other",
    "GRU --figures gif": "gif",
    "GRU --nosuch": "nosuch",
    "system:chaotic-ltsm": "'chaotic-ltsm' is not a known system; did you mean chaotic-lstm?",
    "system:": "systems are chaotic-lstm, henon",
    "system:lorenz --with sigmma=1": "system:lorenz has no option 'sigmma'; did you mean sigma?",
    "system:cat-map --with s=1": "system:cat-map has no option 's'; it takes none",
    "system:logistic --with r=5": "0 < r <= 4",
    "system:logistic --with r=four": "system:logistic: r must be a number; got 'four'",
    "system:delay-line --with delay=2.5": "delay must be a whole number; got 2.5",
    "system:henon --steps 0": "steps = 0 is not allowed",
    "GRU --features 0": "features = 0 is not allowed",
}


@pytest.mark.parametrize("words", REFUSED)
def test_examine_errors_are_one_line(here, capsys, words):
    assert main(["examine", "--out", "o", *words.split()]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert REFUSED[words] in said.err
    assert not (here / "o").exists()
    assert not (here / "page.html").exists()
    assert not (here / "owned").exists()


EXITS = """
import sys
from torch import nn

class Exits(nn.Module):
    def __init__(self, calls):
        super().__init__()
        self.net = nn.RNN(8, 4)
        self.calls = calls

    def forward(self, *inputs):
        self.calls -= 1
        if self.calls < 0:
            sys.exit(0)
        return self.net(*inputs)

def factory(): sys.exit(0)
def at_once(): return Exits(0)
def in_a_scope(): return Exits(3)
"""


@pytest.mark.parametrize(
    "target", ["exits_at_import.py:net", "exits.py:factory", "exits.py:at_once", "exits.py:in_a_scope"]
)
def test_target_that_calls_sys_exit_fails_the_gate(here, capsys, target):
    Path("exits.py").write_text(EXITS)
    Path("exits_at_import.py").write_text("raise SystemExit(0)")
    words = [
        "examine",
        target,
        "--fail-if",
        "horizon<0",
        "--scopes",
        "horizon",
        "--steps",
        "9",
        "--quiet",
        "--out",
        "o",
    ]
    assert main(words) == 2
    said = capsys.readouterr()
    assert said.err.count("\n") == 1
    assert "a target's own code called sys.exit(0)" in said.err
    assert not (here / "o").exists()


def test_current_folder_does_not_stay_on_the_path(here):
    before = list(sys.path)
    assert main(["examine", "nets_of_mine:raises", "--out", "o"]) == 2
    assert sys.path == before


def test_report_refuses_folders_without_findings(here, capsys):
    for words, reason in (
        ([], "no folder was given"),
        (["nowhere"], "there is no folder nowhere"),
        (["empty"], "holds neither findings nor runs"),
        (["empty", "--out", "z.html"], "it is a folder"),
    ):
        assert main(["report", *words]) == 2
        assert reason in capsys.readouterr().err
    Path("empty/findings.json").write_text("{}")
    assert main(["report", "empty"]) == 2
    assert "not a file of findings" in capsys.readouterr().err
