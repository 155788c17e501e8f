"""mnemoscope examine: losses, targets, and options of single scopes from the command line."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from mnemoscope.cli import main
from mnemoscope.finding import Examination
from mnemoscope.tasks import Copy
from mnemoscope.training import FitConfig, NetworkConfig, Run, RunConfig, initial_model, train

NETS = """
import torch
from torch import nn
def gru(): return nn.GRU(3, 4)
def last_ten(y, t): return (y - t)[-10:].square().sum()
number = 3
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of two updates."""
    folder = tmp_path_factory.mktemp("runs") / "copy"
    fit = FitConfig(updates=2, batch_size=4, evaluate_batches=1)
    train(RunConfig(Copy(T=4), NetworkConfig("LSTM", hidden_size=5), fit), folder)
    return folder


@pytest.fixture
def here(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)
    draw = torch.Generator().manual_seed(0)
    np.save("x.npy", torch.randn(12, 2, 3, generator=draw).numpy())
    np.save("y.npy", torch.randn(12, 2, 4, generator=draw).numpy())
    np.save("classes.npy", torch.randint(4, (12, 2), generator=draw).numpy())
    return tmp_path


def examined(words):
    """What `mnemoscope examine` found, by scope."""
    assert main(["examine", *words.split(), "--quiet", "--out", "out", "--budget", "3600"]) == 0
    return Examination.load("out")


def test_landscape_between_a_runs_ends(run, here):
    """Loss and targets are the task's own; `initial` are the weights before the first update."""
    words = "--scopes landscape --batch 6 --set landscape.to=initial landscape.line=True landscape.points=5"
    found = examined(f"{run} {words} landscape.x_range=0,1 landscape.held_out=train landscape.x_label=s")["landscape"]
    task = Run(run).task
    costs = {}
    for name, model in (("final", Run(run).model()), ("initial", initial_model(Run(run).config))):
        for split in ("valid", "train"):
            batch = task.batch(0, 6, split)
            costs[name, split] = task.loss(model(batch.inputs)[0], batch.targets).item()
    assert found.series["x"].tolist() == [0, 0.25, 0.5, 0.75, 1]
    assert found.labels["x"] == "s"
    assert found.figures["cost"] == pytest.approx(costs["final", "valid"], rel=1e-5)
    assert found.figures["cost_to"] == pytest.approx(costs["initial", "valid"], rel=1e-5)
    assert found.figures["held_out"] == pytest.approx(costs["final", "train"], rel=1e-5)
    assert found.series["held_out"][-1] == pytest.approx(costs["initial", "train"], rel=1e-5)


def test_attractors_along_the_way_to_another_run(run, here):
    words = "--scopes attractors --set attractors.values=[0.0,1.0] attractors.outputs=[0] attractors.starts=2"
    found = examined(f"{run} {words} attractors.path={run} attractors.steps=20 attractors.recorded=4")["attractors"]
    assert found.series["outputs"].shape == (2, 2, 4, 1)
    np.testing.assert_allclose(found.series["outputs"][0], found.series["outputs"][1], atol=1e-6)


def test_a_loss_and_targets_from_files(here):
    torch.manual_seed(0)
    model = nn.GRU(3, 4)
    torch.save(model.state_dict(), "w.pt")
    x, y, classes = (torch.from_numpy(np.load(f"{name}.npy")) for name in ("x", "y", "classes"))
    outputs = model(x)[0].detach()
    words = "mine.py:gru --checkpoint w.pt --inputs x.npy --scopes landscape --set landscape.points=3"
    for loss, targets, wanted in (
        ("mse", "y", F.mse_loss(outputs, y)),
        ("cross-entropy", "classes", F.cross_entropy(outputs.flatten(0, 1), classes.flatten())),
        ("mine.py:last_ten", "y", (outputs - y)[-10:].square().sum()),
    ):
        found = examined(f"{words} --loss {loss} --targets {targets}.npy")["landscape"]
        assert found.figures["cost"] == pytest.approx(float(wanted), rel=1e-5)


def test_another_loss_on_a_runs_own_targets(run, here):
    plain = examined(f"{run} --scopes landscape --set landscape.points=3")["landscape"].figures["cost"]
    other = examined(f"{run} --scopes landscape --loss cross-entropy --set landscape.points=3")["landscape"]
    assert other.figures["cost"] == pytest.approx(plain, rel=1e-5)  # Copy's own loss is this one, over all steps


FILES = "mine.py:gru --inputs x.npy"
REFUSED = {
    f"{FILES} --set landscape": "--set takes scope.option=value; got 'landscape'",
    f"{FILES} --set landscap.points=3": "'landscap' is not a scope",
    f"{FILES} --set landscape.point=3": "landscape has no option 'point'; did you mean points?",
    f"{FILES} --scopes horizon --set landscape.points=3": "landscape is not among the --scopes",
    f"{FILES} --set landscape.to=initial": "mine.py:gru is not a run",
    f"{FILES} --set landscape.to=nowhere.pt": "there is no such run or file",
    f"{FILES} --set landscape.held_out=train": "needs a run or a --task",
    f"{FILES} --set landscape.held_out=odd": "must be one of train, valid, test",
    f"{FILES} --set attractors.constants=[[1],[1,2]]": "must be a list of numbers",
    f"{FILES} --targets y.npy": "--targets needs --inputs, whose targets they are, and --loss",
    f"{FILES} --loss mse": "--loss mse needs targets",
    f"{FILES} --targets y.npy --loss mes": "loss = 'mes' is not a loss",
    f"{FILES} --targets y.npy --loss mine.py:number": "must be a function loss(outputs, targets)",
    f"{FILES} --targets y.npy --loss cross-entropy": "--loss cross-entropy does not apply to outputs [12, 2, 4]",
    f"{FILES} --targets y.npy --loss mse --scopes landscape --set landscape.points=2": "whole number of at least 3",
}


@pytest.mark.parametrize("words", REFUSED)
def test_wrong_options_are_refused_in_one_line(words, here, capsys):
    assert main(["examine", *words.split(), "--quiet", "--out", "out"]) == 2
    shown = capsys.readouterr()
    assert REFUSED[words] in " ".join((shown.out + shown.err).split())
    assert "Traceback" not in shown.out + shown.err
