"""Runs whose loss or gradient is not finite: they end with a word, or skip an update."""

from __future__ import annotations

import contextlib
import math
from itertools import pairwise
from pathlib import Path
from unittest.mock import ANY

import pytest
import torch
from regression_task import QUIET, TASK, model, regression
from torch import Tensor, nn

from mnemoscope.training import Diverged, FitConfig, Progress, Run, Stop, fit


class Exploding(nn.Module):
    """Fine for six updates, then not a number."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.calls = 0

    def forward(self, x: Tensor, state=None) -> tuple[Tensor, tuple[()]]:
        self.calls += 1
        return x[..., :1] * self.weight * (math.nan if self.calls > 6 else 1), ()


def test_divergence_names_the_update_and_keeps_the_last_good_checkpoint(tmp_path: Path) -> None:
    net = Exploding()
    with pytest.raises(Diverged) as error:
        fit(net, TASK, FitConfig(50, checkpoint_every=4, **QUIET), tmp_path / "run")
    assert error.value.update == 7
    assert error.value.checkpoint == tmp_path / "run/checkpoints/00000004.safetensors"
    assert "diverged at update 7: the loss is nan; last good checkpoint" in str(error.value)
    assert Run(tmp_path / "run").checkpoint().tensors["model.weight"].isfinite()
    summary = Run(tmp_path / "run").summary()
    assert (summary.outcome, summary.updates, summary.message) == ("diverged", 7, str(error.value))
    with pytest.raises(Diverged, match=r"the loss is \d"):
        fit(model(), TASK, FitConfig(50, optimizer="sgd", lr=1e3, diverged=1e5, **{**QUIET, "clip": 0.0}))


class Explosive(torch.autograd.Function):
    """The identity, whose gradient is not finite where the first input of the batch says so."""

    @staticmethod
    def forward(ctx, x: Tensor, bad: Tensor) -> Tensor:
        ctx.save_for_backward(bad)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        (bad,) = ctx.saved_tensors
        return gradient * torch.where(bad, math.inf, 1.0), None


class SometimesExplosive(nn.Module):
    """A linear model whose loss is always finite, and whose gradient is not in the updates in `bad`."""

    def __init__(self, bad: set[int]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.bad = torch.tensor([float(regression(step, 3, "train")[0][0, 0, 0]) for step in bad])

    def forward(self, x: Tensor, state=None) -> tuple[Tensor, tuple[()]]:
        bad = (self.bad == x[0, 0, 0]).any()
        return Explosive.apply((x * self.weight).sum(-1, keepdim=True), bad), ()


@pytest.mark.parametrize("optimizer", ["adam", "rmsprop", "sgd"])
def test_updates_whose_gradient_is_not_finite_can_be_skipped(tmp_path: Path, optimizer: str) -> None:
    config = FitConfig(12, optimizer=optimizer, lr=0.01, skip_nonfinite=2, record_every=1, log_every=3, **QUIET)
    bad = {4, 5, 7}  # counted from 0: the fifth, sixth and eighth update
    summary = fit(SometimesExplosive(bad), TASK, config, tmp_path / "run")
    assert (summary.outcome, summary.updates, summary.skipped) == ("budget spent", 12, 3)
    run = Run(tmp_path / "run")
    _, path = run.trajectory()
    moved = [not torch.equal(before, after) for before, after in pairwise(path)]
    assert [update for update, has_moved in enumerate(moved) if not has_moved] == sorted(bad)
    assert bool(path.isfinite().all())
    records = [record for record in run.metrics() if "split" not in record]
    assert [record.get("skipped", 0) for record in records] == [0, 2, 1, 0]
    assert all(math.isfinite(record["loss"]) and math.isfinite(record["gradient_norm"]) for record in records)


def test_too_many_skipped_updates_in_a_row_are_a_divergence(tmp_path: Path) -> None:
    bad = {4, 5, 6}
    config = FitConfig(12, skip_nonfinite=2, log_every=1, **QUIET)
    with pytest.raises(Diverged, match="update 7: the norm of the gradient is nan, and was not finite in the 2 up"):
        fit(SometimesExplosive(bad), TASK, config, tmp_path / "run")
    assert Run(tmp_path / "run").metrics()[-1] == {
        "update": 6, "loss": ANY, "gradient_norm": None, "lr": 1e-3, "skipped": 1
    }  # fmt: skip
    with pytest.raises(Diverged, match=r"update 5: the norm of the gradient is nan.*skip-nonfinite"):
        fit(SometimesExplosive(bad), TASK, FitConfig(12, **QUIET))


def test_a_run_that_skipped_updates_resumes_bit_for_bit(tmp_path: Path) -> None:
    """Also between two skipped updates: a third in a row would be one too many."""

    def stop(progress: Progress) -> None:
        if progress.update == 5:
            raise Stop

    for bad, outcome in (({4, 5}, "budget spent"), ({4, 5, 6}, "diverged")):
        config = FitConfig(12, skip_nonfinite=2, **QUIET)
        whole, parts = tmp_path / f"whole-{outcome}", tmp_path / f"parts-{outcome}"
        with pytest.raises(Stop):
            fit(SometimesExplosive(bad), TASK, config, parts, callback=stop)
        for folder, resumes in ((whole, False), (parts, True)):
            with contextlib.suppress(Diverged):
                fit(SometimesExplosive(bad), TASK, config, folder, resume=resumes)
        assert Run(whole).summary().outcome == Run(parts).summary().outcome == outcome
        assert Run(whole).summary().skipped == Run(parts).summary().skipped
        assert Run(whole).metrics() == Run(parts).metrics()


def test_a_stable_run_that_diverges_says_so(tmp_path: Path) -> None:
    """The projection leaves weights that are not finite to the loss: a decomposition of them has no words for it."""
    config = FitConfig(50, optimizer="sgd", lr=1e38, stable=0.9, **{**QUIET, "clip": 0.0})
    with pytest.raises(Diverged, match="diverged at update"):
        fit(model("RNN"), TASK, config, tmp_path / "run")
