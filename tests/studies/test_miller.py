"""The studies of Miller & Hardt: what they measure, against the same computed otherwise, and when their claims turn."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from mnemoscope.studies import Cells, Claim, Done, Result, Scale, choose
from mnemoscope.studies.miller import _fig1b as fig1b
from mnemoscope.studies.miller import _fig2 as fig2
from mnemoscope.studies.miller import _fig3 as fig3
from mnemoscope.tasks import Words
from mnemoscope.theory.stability import Truncated
from mnemoscope.training import FitConfig, NetworkConfig, RunConfig, SequenceModel, train


def holds(study: str, claim: str, cells: dict[Any, float], scale: Scale = "quick") -> bool | None:
    """Whether the study's claim whose text begins so is borne out by some cells."""
    (found,) = choose([study])
    chosen: list[Claim] = [one for one in found.claims if one.text.startswith(claim) and one.scale in (scale, "both")]
    assert len(chosen) == 1
    return chosen[0].holds(Cells(cells))


@pytest.mark.parametrize("model", fig1b.MODELS)
def test_gradients_of_figure_1b_are_those_of_the_truncated_network(model: str) -> None:
    """By the network and the truncated model of the library, problem by problem."""
    problems = fig1b._problems(seed=1, fresh=False)
    x, y = problems.x[0], problems.y[0]
    found = fig1b._gradients(x[:, -fig1b.K :], y, problems.U, problems.W, problems.C, fig1b.MODELS[model])
    name = "RNN" if model == "tanh" else "LinearSystem"
    net = SequenceModel(32, 1, NetworkConfig(name, 32)).double()
    for number in (0, 9):
        with torch.no_grad():
            for parameter in net.layer.parameters():
                parameter.zero_()
            net.layer.weight_ih_l0.copy_(problems.U[number])
            net.layer.weight_hh_l0.copy_(problems.W[number])
        h, _ = Truncated(net.layer, fig1b.K)(x[number].unsqueeze(1))
        loss = 0.5 * (h[-1, 0] @ problems.C[number] - y[number]) ** 2
        expected = torch.autograd.grad(loss, (net.layer.weight_ih_l0, net.layer.weight_hh_l0))
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one[number], other)


def test_descent_of_figure_1b_stays_stable_and_is_measured_by_its_exponent(monkeypatch: pytest.MonkeyPatch) -> None:
    W = torch.randn(3, 6, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert torch.linalg.matrix_norm(fig1b._projected(W), 2).max() <= fig1b.LAM * (1 + 1e-12)
    t = np.arange(1, fig1b.UPDATES + 1)
    assert fig1b._exponent(3 * t**0.4) == pytest.approx(0.4)
    monkeypatch.setattr(fig1b, "UPDATES", 25)
    monkeypatch.setattr(fig1b, "INSTANCES", 2)
    found = fig1b.descent(model="tanh", fresh=False, seed=0)
    assert found["distances"].shape == (3, 25)
    assert (found["distances"][:, -1] < 1e-6).all()
    assert (found["distances"] > 0).all()
    assert np.log10(found["distances"][0, -1]) < found["bound"]


def test_claims_of_figure_1b_turn_with_the_numbers() -> None:
    growth = {(f"{model}, {rate}", fig1b.GROWTH[False]): 0.0 for model in fig1b.MODELS for rate in fig1b.RATES}
    assert holds("miller/fig1b", "at rates other than 1/t", growth) is False
    faster = {**growth, ("linear, constant", fig1b.GROWTH[False]): 0.5, ("tanh, constant", fig1b.GROWTH[False]): 0.5}
    assert holds("miller/fig1b", "at rates other than 1/t", faster) is True
    assert holds("miller/fig1b", "1/t: after 200", growth) is None


@pytest.mark.parametrize("name", ["RNN", "LSTM"])
def test_input_gradients_are_means_of_norms(name: str) -> None:
    torch.manual_seed(0)
    net = SequenceModel(9, 9, NetworkConfig(name, 5, embedding=4, dropout=0.5), token_input=True)
    words = torch.randint(0, 9, (60, 3))
    targets = torch.randint(0, 9, (3,))
    found = fig2._norms(net, words, targets)
    net.eval()
    assert net.embedding is not None
    expected = np.zeros(fig2.LAGS)
    for number in range(3):
        x = net.embedding(words[:, number : number + 1]).detach().requires_grad_()
        h, _ = net.layer(x)
        F.cross_entropy(net.readout(h[-1]), targets[number : number + 1]).backward()
        assert x.grad is not None
        expected += [x.grad[59 - lag].norm().item() / 3 for lag in range(1, fig2.LAGS + 1)]
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_weight_gaps_and_gradients_are_read_from_snapshots(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("the sea and the sand and the sun \n" * 90)
    task = Words(str(tmp_path / "text.txt"), bptt=9)
    fit = FitConfig(4, batch_size=3, evaluate_every=4, snapshot_every=2, threads=1, lr=0.05)
    network = NetworkConfig("RNN", 5, embedding=4)
    train(RunConfig(task, network, fit), tmp_path / "whole")
    train(RunConfig(task, network, replace(fit, bptt=3)), tmp_path / "cut")
    whole, cut = Result(tmp_path / "whole"), Result(tmp_path / "cut")
    found = fig3.weight_gaps(cut, whole)
    weights = [result.run.model().state_dict()["layer.weight_hh_l0"] for result in (whole, cut)]
    assert found["updates"] == [0, 2, 4]
    assert found["gaps"][0] == 0
    assert found["gaps"][-1] == pytest.approx(float(torch.linalg.matrix_norm(weights[0] - weights[1], 2)), rel=1e-4)
    assert found["norm"] == pytest.approx(float(torch.linalg.matrix_norm(weights[0], 2)), rel=1e-4)


def test_claims_about_language_models_turn_with_the_numbers() -> None:
    perplexities = {("unconstrained", "test perplexity"): 146.7, ("stable", "test perplexity"): 143.5}
    assert holds("miller/claim-stable", "the two perplexities", perplexities, "full") is True
    worse = {**perplexities, ("stable", "test perplexity"): 155.0}
    assert holds("miller/claim-stable", "the two perplexities", worse, "full") is False
    assert holds("miller/claim-stable", "the two perplexities", perplexities, "quick") is None
    surprise: Any = choose(["miller/claim-stable"])[0].surprise
    assert "by -2.2 %, in the paper by -2.2 %" in surprise(Cells({}), Cells(perplexities))
    assert "+0.0 % and +8.0 %" in surprise(Cells({}), Cells(worse))
    gaps = {(f"{k}, 2000 words", "LSTM"): value for k, value in ((5, 0.3), (15, 0.1), (35, 0.03))}
    assert holds("miller/fig3", "LSTM: longer windows", gaps) is True
    assert holds("miller/fig3", "LSTM: longer windows", {**gaps, ("15, 2000 words", "LSTM"): 0.4}) is False


class Found(dict[str, Any]):
    """What a measurement found."""

    diverged_at_once = False

    def figure(self, name: str, counts_as: Any = None) -> float:
        return float(self[name])


def test_figure_2_shows_the_one_network_that_has_ended() -> None:
    study = choose(["miller/fig2"])[0]
    gradients = Found(updates=[0, 1607], gradients=np.geomspace(1, 1e-6, 50)[None].repeat(2, 0))
    half = Done(0, [(("RNN", "gradients"), gradients), (("RNN", "tested"), Found(perplexity=150.0))])
    found = study.cells("full", half)
    assert {row for row, _ in found} == {"RNN"}
    assert found["RNN", "test perplexity"] == 150.0
    assert holds("miller/fig2", "the RNN's perplexity", found, "full") is True
    assert holds("miller/fig2", "the LSTM's perplexity", found, "full") is None
    assert holds("miller/fig2", "at the start the RNN's", found, "full") is True
    assert holds("miller/fig2", "at the start the LSTM's", found, "full") is None
    (panels,) = study.charts("full", [half])
    assert [chart.title for chart in panels.charts] == ["RNN"]
    whole = Done(0, [*half.items(), (("LSTM", "gradients"), gradients)])
    assert study.cells("full", whole)["both", fig2.SLOWER] == 1.0


def test_full_runs_have_the_papers_settings() -> None:
    (stable,) = choose(["miller/claim-stable"])
    config = RunConfig.from_dict(stable.jobs("full", 2)["stable"].config)
    fit: Any = config.fit
    assert (fit.epochs, fit.batch_size, fit.lr, fit.clip, fit.stable, fit.seed) == (40, 20, 2.0, 0.25, 1.0, 2)
    assert (fit.schedule, fit.factor, fit.patience, fit.evaluate_every) == ("plateau", 0.25, 0, 2984)
    network = config.network
    assert (network.hidden_size, network.embedding, network.dropout, network.init) == (256, 1024, 0.25, "uniform")
    assert fig2.run_config("RNN", "full", 0) == fig2.run_config("RNN", "full", 0, bptt=0)
    shared = {job.name for job in choose(["miller/fig2"])[0].jobs("full", 0).values()}
    assert {job.name for job in choose(["miller/fig3"])[0].jobs("full", 0).values()} & shared
