"""reproduce(): the same bytes with any number of jobs, after a kill too; what is kept of earlier calls."""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import replace

import pytest
import study_jobs

from mnemoscope.errors import MnemoscopeError
from mnemoscope.studies import (
    Claim,
    Note,
    Result,
    Study,
    StudyVerdict,
    Verdict,
    load,
    read_charts,
    read_record,
    reproduce,
    table,
)
from mnemoscope.studies import _study as registry
from mnemoscope.studies._cost import training_seconds
from mnemoscope.studies._deadline import Deadline, TimeUp
from mnemoscope.studies._pages import two_values
from mnemoscope.sweeps import LocalEngine
from mnemoscope.training import RunConfig


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The test study, run to its end with one job at a time."""
    return run(study_jobs.trained(), tmp_path_factory.mktemp("one") / "out", jobs=1)


def run(study, out, **options):
    """Run a study that is not in the catalogue."""
    load()
    registry.STUDIES[study.id] = study
    try:
        options = {"jobs": 1} | options
        outcomes = reproduce([study.id], out=out, **options)
    finally:
        del registry.STUDIES[study.id]
    run.outcomes = outcomes
    return out


def content(out, study="miller/test"):
    return {name: (out / study / name).read_bytes() for name in ("study.json", "charts.json", "cells.csv")}


def test_a_study_is_run_and_judged(finished):
    record = read_record(finished / "miller/test")
    assert str(record.quick.verdict) == "reproduced"
    assert record.full is None
    assert record.quick.is_complete
    assert {(row, column) for row, column, _ in record.quick.seeds[0].cells} == {
        (model, column) for model in ("RNN", "LSTM") for column in ("norm", "loss")
    }
    assert [chart.key for chart in read_charts(finished / "miller/test")["quick"]] == ["norms"]


def test_two_jobs_at_a_time_give_the_same_bytes(finished, tmp_path):
    assert content(run(study_jobs.trained(), tmp_path / "out", jobs=2)) == content(finished)


class Killer:
    """An engine that gives up before its `limit`-th job, as if the driver had been killed."""

    def __init__(self, limit):
        self.engine = LocalEngine(1)
        self.slots = 1
        self.left = limit

    def start(self, jobs, logs):
        self.left -= len(jobs)
        if self.left < 0:
            raise KeyboardInterrupt
        self.engine.start(jobs, logs)

    def wait(self, seconds):
        return self.engine.wait(seconds)

    def stop(self):
        self.engine.stop()


def test_a_study_that_was_stopped_between_jobs_goes_on(finished, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(study_jobs.trained(), tmp_path / "out", engine=Killer(2))
    partial = read_record(tmp_path / "out/miller/test")
    assert not partial.quick.is_complete
    assert partial.quick.verdict.word == "open"
    assert content(run(study_jobs.trained(), tmp_path / "out")) == content(finished)


def test_a_study_that_was_killed_inside_a_job_goes_on(finished, tmp_path):
    """The run's folder is as a kill after its second update leaves it: a checkpoint, and no summary."""
    out = shutil.copytree(finished, tmp_path / "out")
    for run_folder in (out / "runs").glob("copy-*"):
        (run_folder / "summary.json").unlink()
        for checkpoint in (run_folder / "checkpoints").glob("*"):
            if checkpoint.stem.isdigit() and int(checkpoint.stem) > 2:
                checkpoint.unlink()
    for measured in (out / "runs").glob("weight_norm-*"):
        shutil.rmtree(measured)
    shutil.rmtree(out / "miller")
    assert content(run(study_jobs.trained(), out)) == content(finished)


def test_a_study_whose_time_was_up_goes_on(finished, tmp_path):
    """The time is up before the first job begins: there is a record that says so."""
    run(study_jobs.trained(), tmp_path / "out", stop_after=1e-9)
    (outcome,) = run.outcomes
    assert (outcome.missing, outcome.verdict.word) == (4, "open")
    assert content(run(study_jobs.trained(), tmp_path / "out", stop_after=1e3)) == content(finished)


def test_the_time_can_be_up_while_jobs_run():
    started = []

    class Busy:
        slots = 1

        def start(self, jobs, logs):
            started.extend(jobs)

        def wait(self, seconds):
            return [seconds]

    engine = Deadline(Busy(), time.monotonic() + 1e6)
    engine.start(["a job"], None)
    assert engine.wait(3.0) == [3.0]
    engine.moment = time.monotonic()
    with pytest.raises(TimeUp):
        engine.wait(3.0)
    engine.start([], None)
    with pytest.raises(TimeUp):
        engine.start(["another"], None)
    assert started == ["a job"]


def test_seeds_can_be_named(tmp_path):
    values = {seed: {("a", "x"): 2.0} for seed in (1, 4)}
    study = study_jobs.numbers(values, claims=(Claim("above 1", column="x", at_least=1.0),))
    out = run(study, tmp_path / "out", seeds=[4, 1, 4])
    assert [one.seed for one in read_record(out / study.id).quick.seeds] == [1, 4]
    for seeds in ([], [-1]):
        with pytest.raises(MnemoscopeError, match="name at least one, none below 0"):
            run(study, out, seeds=seeds)


def test_a_changed_result_turns_the_verdict(tmp_path):
    claims = (Claim("above 1", column="x", at_least=1.0),)
    study = study_jobs.numbers({0: {("a", "x"): 2.0}}, claims=claims, published=table(("a",), ("x",), [[2.0]]))
    out = run(study, tmp_path / "out")
    assert run.outcomes[0].worse == ()
    (summary,) = (out / "runs").glob("number-*/summary.json")
    changed = json.loads(summary.read_text())
    changed["figures"]["value"] = 0.5
    summary.write_text(json.dumps(changed))
    run(study, out)
    (outcome,) = run.outcomes
    assert (outcome.verdict.word, outcome.recorded.word) == ("contradicted", "reproduced")
    assert outcome.worse == ("the study", "above 1")


def test_a_changed_cell_of_the_record_turns_the_verdict_though_nothing_is_run(tmp_path):
    study = study_jobs.numbers({0: {("a", "x"): 2.0}}, claims=(Claim("above 1", column="x", at_least=1.0),))
    out = run(study, tmp_path / "out")
    path = out / study.id / "study.json"
    path.write_text(path.read_text().replace('["a", "x", 2.0]', '["a", "x", 0.5]'))
    shutil.rmtree(out / "runs")
    run(study, out, missing=True)
    (outcome,) = run.outcomes
    assert (outcome.kept, outcome.verdict.word, outcome.recorded.word) == (True, "contradicted", "reproduced")
    assert outcome.worse == ("the study", "above 1")


@pytest.mark.parametrize("again", [False, True])
def test_a_corrected_claim_that_no_longer_holds_is_worse(again, tmp_path, monkeypatch):
    """As printed the study is contradicted as before: in a new folder only the verdict as corrected tells."""
    claims = (
        Claim("above 9", column="x", at_least=9.0, form="printed"),
        Claim("above 1", column="x", at_least=1.0, form="corrected"),
    )
    study = study_jobs.numbers({0: {("a", "x"): 2.0}}, claims=claims)
    out = run(study, tmp_path / "out")
    assert run.outcomes[0].worse == ()
    shipped = StudyVerdict(Verdict("contradicted", 0, 1), Verdict("reproduced", 1, 1))
    monkeypatch.setattr("mnemoscope.studies._reproduce.shipped_verdict", lambda *_: shipped)
    run(study_jobs.numbers({0: {("a", "x"): 0.5}}, claims=claims), out if again else tmp_path / "new")
    assert run.outcomes[0].worse == ("the study as corrected", *(["above 1"] if again else []))


def test_more_seeds_add_to_those_that_are_there(tmp_path):
    values = {seed: {("a", "x"): value} for seed, value in enumerate((2.0, 0.5, 3.0))}
    study = study_jobs.numbers(values, claims=(Claim("above 1", column="x", at_least=1.0),))
    out = run(study, tmp_path / "out", seeds=3)
    assert str(read_record(out / study.id).quick.verdict) == "partly (2 of 3)"
    run(study, out, seeds=1)
    assert [one.seed for one in read_record(out / study.id).quick.seeds] == [0, 1, 2]


def test_the_two_sizes_are_kept_apart(tmp_path):
    claims = (Claim("above 1", column="x", at_least=1.0, scale="full"),)
    study = study_jobs.numbers({0: {("a", "x"): 2.0}}, claims=claims)
    out = run(study, tmp_path / "out")
    run(study, out, scale="full")
    record = read_record(out / study.id)
    assert (record.quick.verdict, record.full.verdict) == (Verdict(), Verdict("reproduced", 1, 1))


def test_a_failed_job_leaves_the_complete_result(tmp_path):
    study = study_jobs.numbers({0: {("a", "x"): 2.0}}, claims=(Claim("above 1", column="x", at_least=1.0),))
    out = run(study, tmp_path / "out")
    before = content(out, study.id)
    shutil.rmtree(out / "runs")
    with pytest.raises(KeyboardInterrupt):
        run(study, out, engine=Killer(0))
    assert content(out, study.id) == before


def test_a_study_that_got_more_jobs_shows_what_there_is_of_them(tmp_path):
    """What is not complete replaces a complete result of fewer jobs, if all of these have ended; charts too."""
    few, more = {("a", "x"): 2.0}, {("a", "x"): 2.0, ("b", "x"): 3.0}
    out = run(study_jobs.numbers({0: few}, charts=study_jobs.values_chart), tmp_path / "out")
    study = study_jobs.numbers({0: more}, charts=study_jobs.values_chart)
    with pytest.raises(KeyboardInterrupt):
        run(study, out, engine=Killer(0))
    record = read_record(out / study.id)
    assert len(record.quick.seeds[0].cells) == len(record.quick.seeds[0].missing) == 1
    assert record.quick.seeds[0].jobs[1:] == record.quick.seeds[0].missing
    assert drawn_values(out / study.id) == [2.0]

    # The runs of the old jobs are gone: what they gave stays.
    run(study, out)
    assert drawn_values(out / study.id) == [2.0, 3.0]
    shutil.rmtree(out / "runs")
    with pytest.raises(KeyboardInterrupt):
        run(study_jobs.numbers({0: {**more, ("c", "x"): 4.0}}), out, engine=Killer(1))
    (seed,) = read_record(out / study.id).quick.seeds
    assert [value for _, _, value in seed.cells] == [2.0, 3.0]
    assert seed.missing == seed.jobs[2:]

    # A complete result of other jobs is not replaced by one that is not complete.
    run(study, out)
    before = content(out, study.id)
    with pytest.raises(KeyboardInterrupt):
        run(study_jobs.numbers({0: {("a", "x"): 2.0, ("c", "x"): 4.0}}), out, engine=Killer(0))
    assert content(out, study.id) == before


def drawn_values(folder):
    return read_charts(folder)["quick"][0].marks[0].y.tolist()


def test_a_run_of_another_configuration_is_refused(finished, tmp_path):
    out = shutil.copytree(finished, tmp_path / "out")
    one, other = sorted((out / "runs").glob("copy-*"))
    shutil.rmtree(one)
    other.rename(one)
    with pytest.raises(MnemoscopeError, match="holds something else than its name says"):
        run(study_jobs.trained(), out)


def test_a_run_is_named_by_what_is_not_at_its_default():
    config = study_jobs.config("RNN", seed=3)
    job = study_jobs.train(config)
    assert set(job.config["fit"]) == {
        *("updates", "batch_size", "seed", "evaluate_every", "evaluate_batches", "checkpoint_every", "threads")
    }
    assert RunConfig.from_dict(job.config) == replace(config, fit=replace(config.fit, threads=1))
    assert job.name == study_jobs.train(RunConfig.from_dict(job.config)).name


def test_a_run_that_came_without_its_last_weights_is_a_result(finished, tmp_path):
    """From elsewhere come config.json, metrics.jsonl, summary.json and the best weights."""
    out = shutil.copytree(finished, tmp_path / "out")
    for checkpoint in out.glob("runs/*/checkpoints/*"):
        if checkpoint.stem.isdigit():
            checkpoint.unlink()
    shutil.rmtree(out / "miller")
    assert content(run(study_jobs.trained(), out)) == content(finished)
    result = Result(next((out / "runs").glob("copy-LSTM-*")))
    updates, losses = result.curve("loss")
    assert list(updates) == [2, 4, 5]
    assert len(losses) == 3
    assert result.best == result.summary["best"]
    assert result.run.model("best").state_dict()


def test_updates_of_the_smallest_network_take_time_too():
    assert training_seconds(study_jobs.config("RNN", updates=1000)) > 1


def test_what_does_not_fit_the_budget_is_left_out(tmp_path):
    study = study_jobs.numbers({0: {("a", "x"): 2.0}})
    out = run(study, tmp_path / "out", budget=1e-9)
    (outcome,) = run.outcomes
    assert "does not fit into the budget" in outcome.skipped
    assert not (out / study.id).exists()


def test_a_run_that_diverges_at_once_is_kept_and_shown(tmp_path):
    """Its measurement is not made, its cells say so, claims about it are broken, and pages are drawn."""

    def jobs(scale, seed):
        config = study_jobs.config("RNN", seed)
        run = study_jobs.train(replace(config, fit=replace(config.fit, diverged=1e-9)))
        return {"run": run, "norm": study_jobs.measure(study_jobs.weight_norm, needs=run, order=2.0)}

    def cells(scale, done):
        return {("RNN", "loss"): done["run"].reached("infinity"), ("RNN", "norm"): done["norm"].figure("norm")}

    def charts(scale, done):
        return [done[0]["norm"]["norm"]]  # what was not measured cannot be drawn

    claims = (Claim("low", column="loss", at_most=9.0), Claim("some norm", column="norm", at_least=0.0))
    study = Study("miller/test", "Test", "a run", jobs, cells, charts, claims, table(("RNN",), ("loss", "norm")))
    out = run(study, tmp_path / "out")
    (outcome,) = run.outcomes
    assert (outcome.verdict, outcome.failed, outcome.missing) == (Verdict("contradicted", 0, 2), (), 0)
    record = read_record(out / study.id)
    found = {(row, column): value for row, column, value in record.quick.seeds[0].cells}
    assert found == {("RNN", "loss"): Note("diverged", "infinity"), ("RNN", "norm"): Note("diverged")}
    assert "quick,0,RNN,loss,,infinity,diverged" in (out / study.id / "cells.csv").read_text().splitlines()
    assert two_values(record, record.quick)[1][0][1][0].ours == "diverged"


@pytest.mark.parametrize(("name", "scale"), [("kerg/table5", "full"), ("levine/accuracy", "quick")])
def test_a_study_that_is_stopped_before_its_first_result_is_open(name, scale, tmp_path):
    class Stopped(LocalEngine):
        def start(self, *args, **kwargs):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        reproduce([name], scale, out=tmp_path / "out", engine=Stopped(1))
    result = read_record(tmp_path / "out" / name).result(scale)
    assert result.verdict.word == "open"
    assert not result.is_complete
    assert not read_charts(tmp_path / "out" / name)[scale]  # there is nothing to draw
