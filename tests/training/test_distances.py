"""Distances between the weights of runs, against torch's own norms."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mnemoscope import MnemoscopeError
from mnemoscope.cli import main
from mnemoscope.tasks import Characters, Copy
from mnemoscope.training import FitConfig, NetworkConfig, Run, RunConfig, distances, train

FIT = FitConfig(4, batch_size=4, evaluate_every=4, evaluate_batches=1, snapshot_every=2, threads=1, lr=0.1)
BASE = RunConfig(Copy(T=3), NetworkConfig("RNN", 5), FIT)


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Run, Run]:
    train(BASE, tmp_path / "whole")
    train(replace(BASE, fit=replace(FIT, bptt=4)), tmp_path / "cut")
    return Run(tmp_path / "whole"), Run(tmp_path / "cut")


def test_distances_are_the_norms_of_the_differences(runs: tuple[Run, Run]) -> None:
    one, other = runs
    found = distances(one, other)
    assert found.updates == (0, 2, 4)
    for i, update in enumerate(found.updates):
        first, second = one.snapshot(update), other.snapshot(update)
        assert found.spectral.keys() == {*first, "all"}
        for name, weight in first.items():
            difference = weight.double() - second[name].double()
            spectral = torch.linalg.matrix_norm(difference, 2) if weight.dim() > 1 else difference.norm()
            assert found.spectral[name][i] == pytest.approx(spectral.item(), abs=1e-7)
            assert found.frobenius[name][i] == pytest.approx(difference.norm().item())
        whole = torch.cat([(first[name] - second[name]).flatten() for name in first])
        assert found.frobenius["all"][i] == pytest.approx(whole.norm().item(), rel=1e-5)
        norm = torch.linalg.matrix_norm(first["layer.weight_hh_l0"].double(), 2)
        assert found.norms["layer.weight_hh_l0"][i] == pytest.approx(norm.item())
    assert found.spectral["all"][0] == 0  # the same start
    assert found.spectral["layer.weight_hh_l0"][-1] > 1e-3


def test_snapshots_of_some_weights_are_compared_with_those_of_all(runs: tuple[Run, Run], tmp_path: Path) -> None:
    whole, cut = runs
    few = replace(FIT, bptt=4, snapshot_weights=("layer.weight_hh", "readout"))
    train(replace(BASE, fit=few), tmp_path / "few")
    run = Run(tmp_path / "few")
    assert run.config.fit == few
    assert list(run.snapshot(4)) == ["layer.weight_hh_l0", "readout.bias", "readout.weight"]
    chosen = ["layer.weight_hh"]
    assert distances(whole, run, chosen) == distances(whole, cut, chosen)
    with pytest.raises(MnemoscopeError, match=r"the runs have different networks: layer.bias_hh_l0 is \[5\]"):
        distances(whole, run)
    with pytest.raises(MnemoscopeError, match=r"has kept only layer.weight_hh, readout in its snapshots: no whole"):
        run.model(4)


def test_weights_that_no_network_has_are_refused_before_there_is_a_folder(tmp_path: Path) -> None:
    config = replace(BASE, fit=replace(FIT, snapshot_weights=("layer.weight_xx",)))
    with pytest.raises(MnemoscopeError, match=r"snapshot-weights = 'layer.weight_xx' is not allowed; no weight's name"):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_snapshots_are_read_in_one_order(runs: tuple[Run, Run]) -> None:
    for _ in range(10):
        assert list(runs[0].snapshot(4)) == sorted(runs[0].model().state_dict())


def test_trajectories_and_truncated_networks_are_compared_too(tmp_path: Path) -> None:
    fit = replace(FIT, snapshot_every=0, record_every=2)
    train(replace(BASE, fit=fit), tmp_path / "whole")
    train(replace(BASE, fit=fit, network=replace(BASE.network, truncated=4)), tmp_path / "truncated")
    one, other = Run(tmp_path / "whole"), Run(tmp_path / "truncated")
    found = distances(one, other, ["layer.weight_hh"])
    assert found.updates == (0, 2, 4)
    assert list(found.spectral) == ["layer.weight_hh_l0"]
    expected = one.model().layer.weight_hh_l0 - other.model().layer.layer.weight_hh_l0
    assert found.frobenius["layer.weight_hh_l0"][-1] == pytest.approx(expected.norm().item(), rel=1e-5)


def test_tied_weights_count_once(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("the sea and the sand " * 30)
    task = Characters(str(tmp_path / "text.txt"), bptt=6, ids=True)
    network = NetworkConfig("RNN", 5, embedding=5, tied=True)
    for seed in (0, 1):
        train(RunConfig(task, network, replace(FIT, seed=seed)), tmp_path / str(seed))
    found = distances(Run(tmp_path / "0"), Run(tmp_path / "1"))
    assert "readout.weight" not in found.spectral
    parts = [value[-1] ** 2 for name, value in found.frobenius.items() if name != "all"]
    assert found.frobenius["all"][-1] == pytest.approx(sum(parts) ** 0.5)


def test_runs_that_cannot_be_compared_are_refused_in_one_line(tmp_path: Path, runs: tuple[Run, Run]) -> None:
    train(replace(BASE, fit=replace(FIT, snapshot_every=0)), tmp_path / "none")
    train(replace(BASE, network=NetworkConfig("RNN", 6)), tmp_path / "wide")
    with pytest.raises(MnemoscopeError, match="have kept no weights after the same updates; train both with snapshot"):
        distances(runs[0], Run(tmp_path / "none"))
    with pytest.raises(MnemoscopeError, match=r"the runs have different networks: layer.\w+ is \[5"):
        distances(runs[0], Run(tmp_path / "wide"))
    with pytest.raises(
        MnemoscopeError, match=r"no parameter's name begins with layer.V; there are .*layer.weight_ih_l0"
    ):
        distances(*runs, ["layer.V"])


def test_compare_shows_distances(runs: tuple[Run, Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figure = str(tmp_path / "curves.png")
    paths = [str(run.path) for run in runs]
    assert main(["compare", *paths, "--figure", figure, "--distance", "layer.weight_hh", "all", "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert list(content["distances"]) == ["cut"]
    assert content["distances"]["cut"]["updates"] == [0, 2, 4]
    assert list(content["distances"]["cut"]["spectral"]) == ["layer.weight_hh_l0", "all"]
    assert main(["compare", *paths, "--figure", figure, "--distance", "layer.weight_hh"]) == 0
    assert "layer.weight_hh_l0" in capsys.readouterr().out
    assert main(["compare", paths[0], "--figure", figure, "--distance", "all"]) == 2
    assert "give at least two runs" in capsys.readouterr().err
