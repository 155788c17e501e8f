"""mnemoscope reproduce: the list, exit codes, mistakes in one line, Ctrl-C; and mnemoscope report on its folder."""

from __future__ import annotations

import importlib.util
import json
import re
from dataclasses import replace

import pytest
import study_jobs

from mnemoscope.cli import main
from mnemoscope.studies import Claim, load, table
from mnemoscope.studies import _study as registry
from mnemoscope.studies._plan import EXTRAS
from mnemoscope.sweeps import LocalEngine

pytest.importorskip("tyro")
EVIL = "<script>alert(1)</script>"
CLAIM = Claim("above 1", column="x", at_least=1.0)


@pytest.fixture
def numbers(monkeypatch):
    """A study of one number, in the catalogue."""
    load()
    study = study_jobs.numbers({0: {("a", "x"): 2.0}}, claims=(CLAIM,), published=table(("a",), ("x",), [[2.0]]))
    monkeypatch.setitem(registry.STUDIES, study.id, study)
    return study


def reproduce(*arguments, out):
    return main(["reproduce", *arguments, "--jobs", "1", "--out", str(out)])


def test_the_list_has_costs_and_verdicts(numbers, tmp_path, capsys):
    assert reproduce(numbers.id, "--quiet", out=tmp_path / "out") == 0
    assert reproduce("--json", out=tmp_path / "out") == 0
    rows = {row["id"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows[numbers.id]["verdicts"] == {"quick": "reproduced", "full": None}
    assert rows["miller/fig1a"]["seconds"]["quick"] > 0
    assert reproduce(out=tmp_path / "new") == 0
    assert "miller/numbers" in capsys.readouterr().out
    assert not (tmp_path / "new").exists()


def test_the_cost_is_told_first_and_the_verdict_last(numbers, tmp_path, capsys):
    assert reproduce("miller/num", out=tmp_path / "out") == 0
    told = capsys.readouterr()
    assert re.match(r"1 study, 1 job: about \d+ s\n", told.err)
    assert "miller/numbers │ reproduced" in told.out
    assert told.out.endswith(f"1 reproduced, {tmp_path / 'out' / 'index.html'}\n")
    assert (tmp_path / "out/miller/numbers/index.html").exists()


def test_time_that_is_up_is_exit_code_75(numbers, tmp_path, capsys):
    assert reproduce(numbers.id, "--stop-after", "1e-9", out=tmp_path / "out") == 75
    assert "1 job missing" in capsys.readouterr().out
    assert reproduce(numbers.id, "--stop-after", "60", "--seeds", "0:1", out=tmp_path / "out") == 0


def test_a_worse_verdict_is_exit_code_1(numbers, tmp_path, capsys):
    out = tmp_path / "out"
    assert reproduce(numbers.id, "--quiet", out=out) == 0
    (summary,) = (out / "runs").glob("number-*/summary.json")
    summary.write_text(summary.read_text().replace("2.0", "0.5"))
    assert reproduce(numbers.id, "--json", out=out) == 1
    (outcome,) = json.loads(capsys.readouterr().out)["studies"]
    assert (outcome["verdict"], outcome["recorded"]) == ("contradicted", "reproduced")
    assert outcome["worse"] == ["the study", "above 1"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["miller/fig1x"], "'miller/fig1x' is not a study; mnemoscope reproduce lists them; did you mean miller/fig1"),
        (["miller/numbers", "--seeds", "0"], "seeds = 0 is not allowed; it must be at least 1"),
        (["miller/numbers", "--seeds", "1,x"], "seeds = '1,x' is not allowed; say how many, as 3, or which"),
        (["miller/numbers", "--stop-after", "0"], "stop-after = 0.0 is not allowed; it must be above 0 minutes"),
        (["miller/numbers", "--budget", "-1"], "budget = -1.0 is not allowed"),
        (["miller/numbers", "--sed", "1"], "--sed"),
    ],
)
def test_mistakes_are_one_line(numbers, arguments, message, tmp_path, capsys):
    assert reproduce(*arguments, out=tmp_path / "out") == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_missing_data_set_skips_its_studies_and_says_how_to_get_it(numbers, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("MNEMOSCOPE_DATA", str(tmp_path))
    monkeypatch.setattr("mnemoscope.tasks._data.cache_folder", lambda: tmp_path)
    monkeypatch.setitem(registry.STUDIES, numbers.id, replace(numbers, data=("mnist",)))
    assert reproduce(numbers.id, "nabli/q3", out=tmp_path / "out") == 0
    told = capsys.readouterr().out
    assert "not run: miller/numbers needs the data set mnist" in told
    assert "set MNEMOSCOPE_DATA" in told
    assert "mnemoscope train digits" in told


@pytest.mark.parametrize(
    ("needs", "message"),
    [
        ({"data": ("wikitext-2",)}, "miller/numbers needs the data set wikitext-2: "),
        ({"modules": ("minigrid",)}, "miller/numbers needs minigrid: pip install 'mnemoscope[rl]'"),
        ({"modules": ("flint",)}, "miller/numbers needs flint: pip install 'mnemoscope[theory]'"),
    ],
)
def test_nothing_that_can_be_run_is_exit_code_2(numbers, needs, message, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("MNEMOSCOPE_DATA", str(tmp_path))
    monkeypatch.setattr("mnemoscope.tasks._data.cache_folder", lambda: tmp_path)
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name in EXTRAS else find(name, *more))
    monkeypatch.setitem(registry.STUDIES, numbers.id, replace(numbers, **needs))
    assert reproduce(numbers.id, out=tmp_path / "out") == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_every_module_that_a_study_needs_has_its_extra():
    assert {module for study in load().values() for module in study.modules} == set(EXTRAS)


def test_a_failed_job_is_told_and_tried_again(tmp_path, capsys, monkeypatch, numbers):
    broken = replace(numbers, jobs=lambda scale, seed: {("a", "x"): study_jobs.measure(study_jobs.breaks, value=1.0)})
    monkeypatch.setitem(registry.STUDIES, numbers.id, broken)
    out = tmp_path / "out"
    for _ in range(2):
        assert reproduce(numbers.id, out=out) == 2
        error = capsys.readouterr().err
        assert "1 job failed" in error
        assert "KeyError: 1.0" in error


def test_ctrl_c_leaves_a_page_of_what_there_is(numbers, tmp_path, capsys, monkeypatch):
    def interrupted(self, jobs, logs):
        raise KeyboardInterrupt

    monkeypatch.setattr(LocalEngine, "start", interrupted)
    assert reproduce(numbers.id, out=tmp_path / "out") == 130
    assert "the same command goes on" in capsys.readouterr().err
    page = (tmp_path / "out/miller/numbers/index.html").read_text()
    assert "<code>mnemoscope reproduce miller/numbers --missing</code> runs them" in page
    assert "<li>seed 0: a: x</li>" in page
    assert "<code>mnemoscope reproduce miller/numbers --full</code>" in page


def test_report_draws_the_pages_again(numbers, tmp_path, capsys):
    out = tmp_path / "out"
    assert reproduce(numbers.id, "--quiet", out=out) == 0
    before = (out / "index.html").read_bytes()
    for page in (out / "index.html", out / numbers.id / "index.html"):
        page.unlink()
    capsys.readouterr()
    assert main(["report", str(out)]) == 0
    assert capsys.readouterr().out == f"{out / 'index.html'}\n"
    assert (out / "index.html").read_bytes() == before


def test_drawing_deletes_no_figures_but_its_own(numbers, tmp_path):
    out = tmp_path / "out"
    assert reproduce(numbers.id, "--quiet", out=out) == 0
    for name in ("figure-1.png", "figure-mine.png", "figure-1.pdf"):
        (out / numbers.id / name).touch()
    assert main(["report", str(out), "--quiet"]) == 0
    assert sorted(path.name for path in (out / numbers.id).glob("figure-*")) == ["figure-1.pdf", "figure-mine.png"]


def test_only_the_pages_of_the_studies_that_were_asked_for_are_drawn(numbers, tmp_path, monkeypatch):
    """A clone has records without pages: the index links to those that there are."""
    other = replace(study_jobs.numbers({0: {("b", "x"): 3.0}}), id="miller/other")
    monkeypatch.setitem(registry.STUDIES, other.id, other)
    out = tmp_path / "out"
    assert reproduce(other.id, "--quiet", out=out) == 0
    (out / other.id / "index.html").unlink()
    assert reproduce(numbers.id, "--quiet", out=out) == 0
    assert not (out / other.id / "index.html").exists()
    index = (out / "index.html").read_text()
    assert 'href="miller/numbers/index.html"' in index
    assert "miller/other" in index
    assert 'href="miller/other' not in index
    assert main(["report", str(out), "--quiet"]) == 0
    assert 'href="miller/other/index.html"' in (out / "index.html").read_text()


def test_words_are_escaped_on_the_pages(tmp_path, monkeypatch, numbers):
    evil = replace(
        numbers,
        shows=EVIL,
        words=EVIL,
        errata=(EVIL,),
        surprise=EVIL,
        would_change=EVIL,
        settings=study_jobs.settings(evil=(EVIL, "ours", EVIL)),
        published=table(("a", EVIL), ("x", EVIL), [[2.0, EVIL], [None, None]], row_title=EVIL, note=EVIL),
    )
    monkeypatch.setitem(registry.STUDIES, numbers.id, evil)
    out = tmp_path / "out"
    assert reproduce(numbers.id, "--quiet", out=out) == 0
    for page in (out / "index.html", out / numbers.id / "index.html"):
        text = page.read_text()
        assert EVIL not in text
        assert "&lt;script&gt;alert(1)" in text
