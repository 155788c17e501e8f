"""Every study of the catalogue: its jobs can be made, are small where they must be, and its words fit its numbers."""

from __future__ import annotations

import contextlib
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from mnemoscope.report import Axis, Chart, Panels
from mnemoscope.studies import PAPERS, SCALES, Cells, Done, load, read_record
from mnemoscope.studies._pages import current_record
from mnemoscope.studies._record import ScaleResult, SeedResult
from mnemoscope.studies._reproduce import _charts
from mnemoscope.studies.summary import _bullet, _verdict, summary, verdicts
from mnemoscope.theory import load as load_statements

ROOT = Path(__file__).parents[2]
STUDIES = load()
QUICK_SECONDS = 240  # CPU seconds on the reference machine: two minutes of two cores
IDS = {
    "kerg": (
        *(f"fig{number}" for number in range(3, 12)),
        *(f"table{number}" for number in range(4, 10)),
        *("prop4", "theorem1", "theorem2", "transfer-copy", "gradient-vs-memory"),
    ),
    "miller": ("fig1a", "fig1b", "fig2", "fig3", "claim-stable", "prop3", "prop4", "prop5", "lemmas"),
    "ribeiro": (
        *(
            "fig1a",
            "fig1b",
            "fig2",
            "fig3a",
            "fig3b",
            "fig4",
            "fig5",
            "fig6a",
            "fig6b",
            "fig6c",
            "fig7",
            "fig8",
            "fig9",
        ),
        "claims",
    ),
    "nabli": ("q1", "q2", "q3", "q4", "q5", "q6"),
    "levine": (
        *("fig1", "fig2", "fig3", "fig4", "fig5", "fig6", "theorem1", "conjecture1", "claim3", "claim4", "accuracy"),
    ),
}


def test_the_catalogue_is_complete():
    ids = [f"{paper}/{name}" for paper, names in IDS.items() for name in names]
    assert [name for name in ids if name not in STUDIES] == []


def test_a_study_and_theory_agree_on_what_is_false_as_printed():
    statements = load_statements()
    asked = [study for study in STUDIES.values() if set(study.published.rows) <= set(statements)]
    assert len(asked) > 5
    differ = [
        (study.id, name)
        for study in asked
        for name, claim in zip(study.published.rows, study.claims, strict=False)
        if (claim.form == "corrected") != (statements[name].status == "corrected")
    ]
    assert differ == []


@pytest.mark.parametrize("name", [name for name, study in STUDIES.items() if not study.ours])
def test_only_what_a_paper_says_contradicts_it(name):
    record = current_record(STUDIES[name], ROOT / "studies" / name)
    for result in (record.quick, record.full):
        if result is not None and result.verdict.word == "contradicted":
            failing = [claim for claim in result.claims if claim.headline and claim.verdict.word == "contradicted"]
            assert not failing or any(claim.form != "ours" for claim in failing)


@pytest.mark.parametrize("name", STUDIES)
def test_jobs_can_be_made(name):
    study = STUDIES[name]
    for scale in SCALES:
        jobs = study.jobs(scale, 0)
        made: set[str] = set()
        for job in jobs.values():
            assert set(job.needs) <= made, "what a job needs comes before it"
            made.add(job.name)
        assert json.loads(json.dumps([job.config for job in jobs.values()]))
        again = study.jobs(scale, 0)
        assert [job.name for job in again.values()] == [job.name for job in jobs.values()]
        if scale == "quick":
            assert sum(job.seconds for job in {job.name: job for job in jobs.values()}.values()) <= QUICK_SECONDS


@pytest.mark.parametrize("name", STUDIES)
def test_charts_can_be_asked_for_before_all_jobs_have_ended(name):
    """A study that is not complete is drawn as far as it can be: it may miss a job, and breaks by nothing else."""
    for scale in SCALES:
        with contextlib.suppress(KeyError):
            assert all(isinstance(chart, Chart | Panels) for chart in STUDIES[name].charts(scale, [Done(0)]))


def test_charts_without_a_mark_are_not_drawn():
    empty = Chart("empty", "Nothing was run", Axis("x"), Axis("y"), ())
    study = replace(STUDIES["kerg/transfer-copy"], charts=lambda scale, done: [empty])
    assert not empty.marks
    assert _charts(study, "full", [Done(0)], False) == []


def test_a_chart_from_cells_has_a_line_for_what_was_run():
    found = {seed: Cells({("100", "LSTM"): 0.2 + seed / 10, ("200", "LSTM"): 0.1}) for seed in (0, 1)}
    (chart,) = STUDIES["kerg/transfer-copy"].derived_charts(found)
    (line,) = chart.marks
    assert line.name == "LSTM"
    assert sorted(line.curves) == [0, 1]


@pytest.mark.parametrize("name", STUDIES)
def test_words_and_claims_are_whole(name):
    study = STUDIES[name]
    assert study.shows
    assert not study.shows.endswith(".")
    assert study.settings or not study.has_seeds
    assert len({(claim.text, claim.form, claim.scale) for claim in study.claims}) == len(study.claims)
    record = current_record(study, ROOT / "studies" / name)
    assert len(re.findall(r"[.!?](?: |$)", record.surprise)) <= 3
    for claim in study.claims:
        assert claim.check or claim.at_least is not None or claim.at_most is not None, claim.text


def test_recorded_results_are_read_and_shipped():
    folder = ROOT / "studies"
    recorded = sorted(path.parent.relative_to(folder).as_posix() for path in folder.glob("*/*/study.json"))
    for name in recorded:
        record, current = read_record(folder / name), current_record(STUDIES[name], folder / name)
        assert record.id == name
        assert (record.quick, record.full) == (current.quick, current.full), "python -m mnemoscope.studies.summary"
        assert name.split("/")[0] in PAPERS
    shipped = json.loads((ROOT / "src/mnemoscope/studies/verdicts.json").read_text())
    assert shipped == verdicts(folder), "python -m mnemoscope.studies.summary"
    assert list(shipped) == sorted(recorded, key=list(STUDIES).index)
    assert (ROOT / "docs/studies.md").read_text() == summary(folder), "python -m mnemoscope.studies.summary"
    assert [path for path in folder.glob("*/*/*.png") if path.stat().st_size > 200_000] == []
    assert [path for path in folder.glob("*/*/*.json") if path.stat().st_size > 300_000] == []


def test_the_summary_is_made_from_the_files(tmp_path):
    page = summary(ROOT / "studies")
    assert all(line.count(" | ") == 6 for line in page.splitlines() if line.startswith("| ["))
    assert {scale for found in verdicts(ROOT / "studies").values() for scale in found} <= set(SCALES)
    assert "| study |" not in summary(tmp_path)


def test_the_summary_says_which_claims_fail():
    page = (ROOT / "docs/studies.md").read_text()  # which is the summary, by the test above
    section = page[page.index("## What fails") : page.index("## Where a paper")]
    told = re.findall(r"^- \*\*(\S+)\*\*", section, flags=re.MULTILINE)
    shipped = json.loads((ROOT / "src/mnemoscope/studies/verdicts.json").read_text())
    assert set(told) >= {name for name, found in shipped.items() if _last_word(found) == "contradicted"}
    assert {_last_word(shipped[name]) for name in told} <= {"contradicted", "partly"}
    assert "- **nabli/q6** (Question 6), full: eqs 31 and 32 give the gradients\n" in section


def _last_word(found):
    """The verdict as printed at the larger size that is not open."""
    words = [found[scale]["printed"]["word"] for scale in SCALES if scale in found]
    return next((word for word in reversed(words) if word != "open"), "open")


def test_points_of_the_summary_break_where_markdown_sees_no_mark():
    point = _bullet(f"`{'mnemoscope reproduce ' * 4}`: {'lambda - 1 >= x, ' * 12}1. and")
    lines = point.splitlines()
    assert len(lines) > 2
    assert max(map(len, lines)) <= 120
    assert not [line for line in lines[1:] if not line.startswith(("  lambda", "  x,", "  1", "  and"))]
    assert (
        " ".join(line.strip() for line in lines)
        == f"- `{'mnemoscope reproduce ' * 4}`: {'lambda - 1 >= x, ' * 12}1. and"
    )


def test_the_summary_says_what_was_not_run():
    half, whole = SeedResult(0, ("a", "b"), (), missing=("b",)), SeedResult(1, ("c",), ())
    assert _verdict(ScaleResult((half, whole))) == "open, 2 seeds, 1 job not run"
    assert _verdict(ScaleResult((whole,))) == "open"
