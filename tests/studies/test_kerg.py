"""The studies of Kerg et al. 2020: that they can be run, and that the published numbers would bear out their claims."""

from __future__ import annotations

import contextlib
import json
import warnings
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from mnemoscope import MnemoscopeError
from mnemoscope.studies import Cells, Done, Note, Result, Verdict, cell_words, choose
from mnemoscope.studies._verdict import judge_claims, judge_study
from mnemoscope.studies.kerg import _fig4
from mnemoscope.studies.kerg._fig10_fig11 import look
from mnemoscope.studies.kerg._gradient_vs_memory import untrained_trade
from mnemoscope.studies.kerg._gradients import log_gradient_norms
from mnemoscope.studies.kerg._published import TABLES
from mnemoscope.studies.kerg._recall import accuracy_on_test, copy_run, denoise_run, loss_share
from mnemoscope.tasks import Copy, Denoise
from mnemoscope.training import FitConfig, NetworkConfig, RunConfig, SequenceModel, train

STUDIES = choose(["kerg"])


@pytest.mark.parametrize("scale", ["quick", "full"])
@pytest.mark.parametrize("study", STUDIES, ids=lambda study: study.id)
def test_jobs_differ_by_seed_and_are_needed_in_order(study, scale) -> None:
    first = list(study.jobs(scale, 0).values())
    names = [job.name for job in first]
    for place, job in enumerate(first):
        assert set(job.needs) <= set(names[:place])
    # Of two seeds only measurements without chance are shared.
    shared = set(names) & {job.name for job in study.jobs(scale, 1).values()}
    if study.has_seeds:
        assert not [job for job in first if job.name in shared and (job.needs or "seed" in json.dumps(job.config))]


@pytest.mark.parametrize("study", STUDIES, ids=lambda study: study.id)
def test_quick_versions_take_at_most_two_minutes(study) -> None:
    assert sum(job.seconds for job in study.jobs("quick", 0).values()) <= 130


def test_figure_8_need_not_wait_for_a_model_when_another_is_better() -> None:
    (study,) = choose(["kerg/fig8"])
    (claim,) = [claim for claim in study.claims if "within 1 %" in claim.text]
    ours = {("RelRNN", "after 20 epochs"): 0.9, ("RelLSTM", "after 20 epochs"): 0.91}
    for best, answer in ((0.93, False), (0.9, None)):
        cells = {**ours, ("orth-RNN", "after 20 epochs"): best}
        assert claim.holds(Cells(cells, list(study.published.values))) is answer


def judged_table_5(**changed: float | Note | None) -> Verdict:
    """The verdict of Table 5 with the published numbers, but for some columns at T = 2000."""
    (study,) = choose(["kerg/table5"])
    published = {key: value for key, value in study.published.values.items() if isinstance(value, float)}
    others = {("2000", column.replace("_", "-")): value for column, value in changed.items()}
    cells = {0: Cells({**published, **others}, list(study.published.values))}
    return judge_study(judge_claims(study.claims, "full", cells))


def test_the_published_table_5_bears_out_what_is_claimed_of_it() -> None:
    out_of_memory = Note("out of memory", 1 / 8)
    assert judged_table_5(MemRNN=out_of_memory).word == "reproduced"
    assert judged_table_5().word == "partly"  # that it ran out of memory needs evidence
    assert judged_table_5(MemRNN=0.17).word == "contradicted"
    assert judged_table_5(MemRNN=out_of_memory, RelRNN=0.98).word == "contradicted"


def test_what_is_not_learned_needs_the_whole_budget() -> None:
    out_of_memory = Note("out of memory", 1 / 8)
    cut = Note("6,000 of 31,250 updates", 0.12, failed=False)
    assert judged_table_5(MemRNN=out_of_memory, LSTM=cut).word == "partly"
    assert judged_table_5(MemRNN=out_of_memory, LSTM=replace(cut, number=0.5)).word == "contradicted"
    assert judged_table_5(MemRNN=out_of_memory, orth_RNN=Note("diverged at update 80", 1 / 8)).word == "reproduced"


@pytest.mark.parametrize(
    ("shares", "again", "learned"),
    [
        ((0.01, 0.1, 0.01), (), True),
        ((0.01, 0.2, 0.01), (), None),  # the lower rate has not been tried
        ((0.01, 0.2, 0.01), (0.05,), True),
        ((0.01, 0.2, 0.2), (0.05,), None),
        ((0.01, 0.2, 0.2), (0.3,), False),
        ((0.2, 0.01, 0.01), (), False),  # there is no second run at T = 100
    ],
)
def test_denoise_is_learned_by_one_rate_or_the_other(shares, again, learned) -> None:
    cells = {(f"denoise {T}", "RelRNN"): share for T, share in zip((100, 300, 1000), shares, strict=True)}
    cells |= {(f"denoise {T}", _fig4.AGAIN): share for T, share in zip((300, 1000), again, strict=False)}
    assert _fig4._learned_by_some_rate(Cells(cells)) is learned


def test_a_cell_of_table_5_says_how_its_run_ended(tmp_path) -> None:
    (study,) = choose(["kerg/table5"])
    ends = {"LSTM": "budget spent", "MemRNN": "diverged", "RelRNN": "solved"}
    done = Done(0, failures={("copy", "SAB", 2000): "CUDA out of memory. Tried to allocate 4 GiB"})
    for model, outcome in ends.items():
        for kind, summary in (
            ("copy", {"outcome": outcome, "updates": 1776, "best": 0.17}),
            ("test", {"figures": {"accuracy": 0.17}}),
        ):
            (tmp_path / f"{kind}-{model}").mkdir()
            (tmp_path / f"{kind}-{model}/summary.json").write_text(json.dumps(summary))
            done[kind, model, 2000] = Result(tmp_path / f"{kind}-{model}")
    cells = {column: cell_words(value, percent=True) for (_, column), value in study.cells("full", done).items()}
    assert cells == {
        "LSTM": "17 % (1,776 of 31,250 updates)",
        "MemRNN": "17 % (our settings, diverged at update 1,776)",
        "RelRNN": "17 % (our settings)",
        "SAB": "out of memory",
    }


def test_rows_of_tables_6_to_9_make_networks() -> None:
    for rows in TABLES.values():
        for row in rows:
            options = {"mix": "mean"} if row.model == "RelRNN" else {}
            SequenceModel.for_task(Copy(T=3), row.network(8, **options))


def test_budgets_fall_with_the_length_and_every_cell_has_a_run() -> None:
    assert copy_run("MemRNN", 2000, 0).fit.updates == 2_000
    assert copy_run("LSTM", 100, 0).fit == copy_run("LSTM", 200, 0).fit
    assert denoise_run("RelRNN", 100, 0).network.options["relevant"] == 20


def test_accuracy_of_a_run_at_another_length(tmp_path) -> None:
    config = RunConfig(Copy(T=3), NetworkConfig("RNN", 8), FitConfig(updates=2, batch_size=2, evaluate_every=1))
    train(config, tmp_path)
    found = accuracy_on_test(Result(tmp_path), T=5, batches=1)["accuracy"]
    assert 0 <= found < 0.5
    assert 0 < loss_share("quick", Result(tmp_path)) < 20


def test_gradient_by_state_is_what_autograd_gives() -> None:
    torch.manual_seed(0)
    task = Denoise(T=6)
    model = SequenceModel.for_task(task, NetworkConfig("RNN", 8))
    inputs, targets = task.batch(0, 3, "test")
    layer = model.layer
    h, states = torch.zeros(3, 8), []
    for x in inputs:
        h = torch.tanh(x @ layer.weight_ih_l0.T + h @ layer.weight_hh_l0.T + layer.bias_ih_l0 + layer.bias_hh_l0)
        h.retain_grad()
        states.append(h)
    outputs = [model.readout(state) for state in states]
    answers, wanted = torch.stack(outputs)[-10:].flatten(0, 1), targets[-10:].flatten()
    (F.cross_entropy(answers, wanted, reduction="sum") / len(inputs)).backward()
    expected = torch.stack([state.grad.norm(dim=-1).log().mean() for state in states])
    torch.testing.assert_close(log_gradient_norms(model, task, 3), expected, rtol=1e-4, atol=1e-4)


def test_a_network_with_a_buffer_alone_looks_no_further(tmp_path) -> None:
    network = NetworkConfig("RelRNN", 8, options={"buffer": 4, "relevant": 0})
    train(RunConfig(Copy(T=12), network, FitConfig(updates=1, batch_size=2, evaluate_every=1)), tmp_path)
    found = look(Result(tmp_path), sequences=2)
    assert found["longest_lag"] <= 3
    assert found["beyond_buffer"] == 0
    assert found["map"].shape == (32, 32)


def test_what_the_backward_pass_needs_grows_with_the_length() -> None:
    found = untrained_trade(model="MemRNN", lengths=[100, 200], seed=0)
    short, long = found["megabytes"]
    assert 1.5 < long / short < 220 / 120 * 1.1


def test_rows_that_explode_are_not_carried_out(tmp_path) -> None:
    (study,) = choose(["kerg/table7"])
    jobs = study.jobs("quick", 0)
    results = {}
    for name in ("RelRNN", "RelRNN, halved sum"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            with contextlib.suppress(MnemoscopeError):
                train(RunConfig.from_dict(jobs[name].config), tmp_path / name)
        results[name] = Result(tmp_path / name)
    done = Done(0, results.items())
    (chart,) = study.charts("quick", [done])
    assert [mark.name for mark in chart.marks][-1] == "RelRNN, halved sum"
    assert len(chart.marks[-1].x) == 20
    cells = study.cells("quick", done)
    assert cells["RelRNN, halved sum", "nu"] == study.published.values["RelRNN", "nu"]
    assert cells["RelRNN", "carried out"] == 0
    assert cells["RelRNN, halved sum", "carried out"] == 1
    assert cells["RelRNN", "lr"] == study.published.values["RelRNN", "lr"]
    assert [claim.headline for claim in study.claims if claim.row == "RelRNN"] == [False]  # the table names no mix
