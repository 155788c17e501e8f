"""Folders, files and ids that reproduce() refuses, and what it says of them."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest
import study_jobs
from test_reproduce import Killer, run

from mnemoscope.errors import MnemoscopeError
from mnemoscope.studies import reproduce


@pytest.mark.parametrize("name", ["letter.txt", "index.html", "studies.json"])
def test_a_folder_of_something_else_is_refused(name, tmp_path):
    """Also one that has a file of the same name as ours."""
    (tmp_path / name).write_text('["mine"]')
    study = study_jobs.numbers({0: {("a", "x"): 2.0}})
    with pytest.raises(MnemoscopeError, match="not empty and holds no studies"):
        run(study, tmp_path)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {name: '["mine"]'}


@pytest.mark.parametrize("content", ["{", None])
def test_of_a_damaged_mark_is_said_what_it_holds(content, tmp_path):
    """Not that a folder full of studies holds none."""
    study = study_jobs.numbers({0: {("a", "x"): 2.0}})
    mark = run(study, tmp_path / "out") / "studies.json"
    whole = mark.read_text()
    mark.write_text(content) if content else mark.unlink()
    with pytest.raises(MnemoscopeError, match="which marks a folder of studies, is missing or damaged") as error:
        run(study, tmp_path / "out")
    mark.write_text(str(error.value).partition("it holds ")[2])
    run(study, tmp_path / "out")
    assert json.loads(mark.read_text()) == json.loads(whole)


def test_a_folder_that_was_left_before_its_mark_was_written_is_used(tmp_path):
    out = tmp_path / "out"
    (out / "runs").mkdir(parents=True)
    for name in (".lock", ".gitignore", ".studies.json.0a1b2c3d.tmp"):
        (out / name).touch()
    run(study_jobs.numbers({0: {("a", "x"): 2.0}}), out)
    assert run.outcomes[0].missing == 0


@pytest.mark.parametrize("name", ["study", "charts", "cost"])
def test_a_damaged_file_is_refused_before_anything_runs(name, tmp_path):
    study = study_jobs.numbers({0: {("a", "x"): 2.0}})
    out = run(study, tmp_path / "out")
    (out / study.id / f"{name}.json").write_text("{")
    with pytest.raises(MnemoscopeError, match=rf"{name}\.json is not valid JSON.*; move .* away"):
        run(study, out, engine=Killer(0))  # which no job reaches
    assert (out / study.id / f"{name}.json").read_text() == "{"


def test_a_record_of_another_study_is_refused(tmp_path):
    study = study_jobs.numbers({0: {("a", "x"): 2.0}})
    out = run(study, tmp_path / "out")
    with pytest.raises(MnemoscopeError, match=r"is of another study, miller/numbers; move .* away"):
        run(replace(study, id="miller/others"), shutil.move(out / study.id, out / "miller/others").parents[1])


def test_a_damaged_summary_says_what_to_delete(tmp_path):
    study = study_jobs.numbers({0: {("a", "x"): 2.0}})
    out = run(study, tmp_path / "out")
    (summary,) = (out / "runs").glob("*/summary.json")
    for content, message in (("{", "is not valid JSON"), ("[]", "is not the summary of a job")):
        summary.write_text(content)
        with pytest.raises(MnemoscopeError, match=f"{message}.*; delete {summary.parent}"):
            run(study, out)


def test_a_measurement_without_its_arrays_says_what_to_delete(tmp_path):
    study = study_jobs.numbers({0: {("a", "x"): 2.0}})
    study = replace(study, cells=lambda scale, done: {key: found["array"][0] for key, found in done.items()})
    out = run(study, tmp_path / "out")
    (arrays,) = (out / "runs").glob("number-*/arrays.safetensors")
    arrays.unlink()
    with pytest.raises(MnemoscopeError, match=f"lacks 'array', which was measured; delete {arrays.parent}"):
        run(study, out)


def test_unknown_ids_are_told_with_the_nearest(tmp_path):
    with pytest.raises(MnemoscopeError, match=r"'miller/fig1x' is not a study.*did you mean .*miller/fig1a"):
        reproduce(["miller/fig1x"], out=tmp_path / "out")
