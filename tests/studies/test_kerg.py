"""The studies of Kerg et al. 2020: that they can be run, and that the published numbers would bear out their claims."""

from __future__ import annotations

import pytest

from mnemoscope.studies import Cells, Result, choose
from mnemoscope.studies._verdict import judge_claims, judge_study
from mnemoscope.studies.kerg._published import TABLES
from mnemoscope.studies.kerg._recall import accuracy_on_test, copy_run, denoise_run, loss_share
from mnemoscope.tasks import Copy
from mnemoscope.training import FitConfig, NetworkConfig, RunConfig, SequenceModel, train

STUDIES = choose(["kerg"])


@pytest.mark.parametrize("scale", ["quick", "full"])
@pytest.mark.parametrize("study", STUDIES, ids=lambda study: study.id)
def test_jobs_differ_by_seed_and_are_needed_in_order(study, scale) -> None:
    first = list(study.jobs(scale, 0).values())
    names = [job.name for job in first]
    for place, job in enumerate(first):
        assert set(job.needs) <= set(names[:place])
    if study.has_seeds:
        assert not set(names) & {job.name for job in study.jobs(scale, 1).values()}


@pytest.mark.parametrize("study", STUDIES, ids=lambda study: study.id)
def test_quick_versions_take_at_most_two_minutes(study) -> None:
    assert sum(job.seconds for job in study.jobs("quick", 0).values()) <= 130


def test_the_published_table_5_bears_out_what_is_claimed_of_it() -> None:
    (study,) = choose(["kerg/table5"])
    published = {key: value for key, value in study.published.values.items() if isinstance(value, float)}
    cells = {0: Cells(published, list(study.published.values))}
    claims = judge_claims(study.claims, "full", cells)
    assert judge_study(claims).word == "reproduced"
    assert judge_study(claims, "corrected").word != "reproduced"  # MemRNN's cell is not known


def test_a_changed_number_turns_the_verdict() -> None:
    (study,) = choose(["kerg/table5"])
    published = {key: value for key, value in study.published.values.items() if isinstance(value, float)}
    changed = {**published, ("500", "RelRNN"): 0.98}
    claims = judge_claims(study.claims, "full", {0: Cells(changed, list(study.published.values))})
    assert judge_study(claims).word == "contradicted"


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
    assert 0 < loss_share(Result(tmp_path)) < 20
