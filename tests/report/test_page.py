import base64
import hashlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise

import numpy as np
import pytest
from specimens import bare, batch_over_time, horizon_of, made, measured, orbits_of

from mnemoscope.errors import MnemoscopeError
from mnemoscope.finding import Examination, Finding
from mnemoscope.report import RunRow, render, write_index, write_page
from mnemoscope.report._page import MAX_BYTES

EVIL = "<script>alert(1)</script>\"'&<img src=x onerror=alert(2)>"
VOID = {"meta", "link", "br", "img", "input", "hr"}


class Reader(HTMLParser):
    """The page's elements, its words, and whether every element is closed where it must be."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.words, self.headings, self.bodies = [], [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)
        if re.fullmatch("h[1-6]", tag):
            self.headings.append([int(tag[1]), ""])

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("script", "style"):
            self.bodies.append((self.open[-1], data))
        else:
            self.words.append(data)
        if any(re.fullmatch("h[1-6]", tag) for tag in self.open):
            self.headings[-1][1] += data

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())

    def ids(self):
        return [attributes["id"] for _, attributes in self.tags if "id" in attributes]


@pytest.fixture(scope="module")
def both():
    return Reader(render({"LSTM": measured("LSTM"), "RelRNN": measured("RelRNN")}))


def test_a_section_has_the_title_question_and_help_of_its_findings():
    finding = Finding("own", "Fine.", "estimated", title="My title", question="What?", help=("Read it.", "Twice."))
    page = Reader(render(made(own=finding)))
    assert "My title" in [words.split(" #")[0].strip() for _, words in page.headings]
    for text in ("What?", "How to read this Read it. Twice."):
        assert text in page.text


def test_texts_come_from_a_finding_that_has_them():
    old, new = horizon_of(10), replace(horizon_of(20), title="Memory horizon", question="How far back?")
    page = Reader(render({"old": made(horizon=old), "new": made(horizon=new)}))
    assert "Memory horizon" in [words.split(" #")[0].strip() for _, words in page.headings]


def test_a_finding_of_an_unknown_scope_without_texts_is_drawn():
    finding = Finding("my_scope", "Fine.", "estimated", series={"curve": np.arange(5.0)})
    page = Reader(render(made(my_scope=finding)))
    assert "My scope" in [words.split(" #")[0].strip() for _, words in page.headings]
    assert "Fine." in page.text


def test_headings_come_in_order(both):
    levels = [level for level, _ in both.headings]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))


def test_ids_are_unique_and_every_link_leads_somewhere(both):
    ids = both.ids()
    assert len(ids) == len(set(ids))
    links = [attributes["href"] for tag, attributes in both.tags if tag == "a"]
    assert len(links) > 30
    assert {link[1:] for link in links} <= set(ids)


def test_every_chart_has_an_alternative_text_and_can_be_reached(both):
    plots = [attributes for _, attributes in both.tags if attributes.get("class") == "plot"]
    assert len(plots) > 15
    assert all(plot["role"] == "img" and plot["tabindex"] == "0" and len(plot["aria-label"]) > 40 for plot in plots)
    data = next(body for kind, body in both.bodies if kind == "script" and body.startswith('{"charts"'))
    assert len(re.findall('"key":', data)) == len(plots)


def test_page_needs_no_network(both):
    for tag, attributes in both.tags:
        assert tag not in ("img", "iframe", "object", "form", "base")
        assert not attributes.get("src")
        assert attributes.get("href", "#")[:1] == "#" or attributes["href"] == "data:,"
    policy = next(a["content"] for t, a in both.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert "default-src 'none'" in policy
    scripts = [body for kind, body in both.bodies if kind == "script" and not body.startswith('{"charts"')]
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    assert re.findall(r"'sha256-([^']+)'", policy) == hashes
    assert "'unsafe-inline'" not in policy.split("style-src")[0]


def test_the_verdict_and_the_four_figures_come_first(both):
    titles = [words.split(" #")[0].strip() for _, words in both.headings]
    assert titles[1] == "Verdict"
    text = both.text
    four = ("Memory horizon", "Dynamics", "Safe BPTT length", "Gradient at the far end")
    assert max(map(text.index, four)) < text.index("How to read this")


def test_verdict_compares_horizons_with_the_need():
    short, far = (replace(made(horizon=horizon_of(reach)), about={"needs": "30"}) for reach in (10, 39))
    page = Reader(render({"LSTM": short, "RelRNN": far}))
    said = "where the task needs 30: LSTM 10 steps, which is not enough; RelRNN all 39 steps."
    assert said in page.text


@pytest.mark.parametrize(
    ("status", "exponent", "said"),
    [
        ("certified", -0.1, "not contractive λ = 2 certified"),  # what is proved comes first
        ("estimated", -0.1, "contractive exponent -0.1 per step"),  # a step may stretch what the long run shrinks
        ("estimated", np.nan, "not contractive λ ≈ 2"),
    ],
)
def test_dynamics_on_the_page(status, exponent, said):
    certified = ("lambda",) if status == "certified" else ()
    labels = {"regime": "not contractive"}
    stability = Finding("stability", "S.", status, figures={"lambda": 2.0}, certified=certified, labels=labels)
    lyapunov = Finding("lyapunov", "L.", "estimated", figures={"largest": exponent}, labels={"regime": "contractive"})
    page = Reader(render(made(stability=stability, lyapunov=lyapunov)))
    assert said in " ".join(page.text.split())


def test_each_figure_is_marked_certified_or_estimated():
    figures = {"window": 9.0, "certified_window": 40.0}
    truncation = Finding("truncation", "T.", "estimated", figures=figures, certified=("certified_window",))
    words = " ".join(Reader(render(made(truncation=truncation))).text.split())
    assert "window 9 estimated" in words
    assert "certified_window 40 certified" in words


def test_needs_that_differ_are_shown_for_each_model():
    near, far = (replace(made(horizon=horizon_of(10)), about={"needs": needs}) for needs in ("8", "30"))
    page = Reader(render({"LSTM": near, "RelRNN": far}))
    assert "reach: LSTM 10 steps (the task needs 8); RelRNN 10 steps (the task needs 30)." in page.text


def test_forgotten_batch_first_is_the_first_heading():
    page = Reader(render(made(horizon=horizon_of(), recurrence=batch_over_time())))
    assert "does not remember as it should" in page.headings[1][1]
    assert page.text.index("batch_first=True") < page.text.index("Verdict")


def test_alarm_names_the_model_that_runs_over_the_batch():
    page = Reader(render({"good": made(horizon=horizon_of()), "bad": made(recurrence=batch_over_time())}))
    assert page.headings[1][1].startswith("bad does not remember")


def test_every_status_is_shown_with_its_reason():
    findings = {
        "horizon": horizon_of(),
        "stability": Finding("stability", "Stable.", "certified", "||V|| < 1"),
        "lyapunov": Finding("lyapunov", "lyapunov failed: boom.", "failed", "boom"),
        "attention": Finding("attention", "attention does not apply.", "not applicable", "it does not attend"),
        "paths": Finding("paths", "paths was skipped.", "skipped", "the budget was spent"),
    }
    page = Reader(render(made(**findings)))
    badges = {attributes["class"] for tag, attributes in page.tags if "badge" in attributes.get("class", "")}
    assert badges == {f"badge {s}" for s in ("estimated", "certified", "failed", "not-applicable", "skipped")}
    for reason in ("||V|| < 1", "boom", "it does not attend", "the budget was spent"):
        assert reason in page.text


def test_a_reason_that_scopes_share_is_said_once():
    def without(scope, why):
        return Finding(scope, f"{scope} does not apply: {why}.", "not applicable", why)

    findings = {name: without(name, "it has no step") for name in ("stability", "lyapunov", "signal")}
    page = Reader(render(made(**findings, attention=without("attention", "it does not attend"))))
    assert page.text.count("it has no step") == 1
    assert page.text.count("it does not attend") == 1
    assert {"stability", "lyapunov", "signal", "attention"} <= {attributes.get("id") for _, attributes in page.tags}


def test_partial_examination_is_marked():
    whole = made(horizon=horizon_of())
    part = Examination(whole.findings, whole.verdict, whole.about, partial=True)
    assert "Partial:" in Reader(render(part)).text
    assert "Partial:" not in Reader(render(whole)).text


def test_names_are_escaped_in_the_page():
    finding = Finding(EVIL, EVIL, "failed", EVIL, warnings=(EVIL,), method=EVIL, assumptions=(EVIL,))
    known = Finding(
        "horizon",
        EVIL,
        "estimated",
        EVIL,
        {EVIL: 1.0},
        {"input_gradient": np.ones(3), EVIL: np.ones(3)},
        labels={EVIL: EVIL},
        warnings=(EVIL,),
        method=EVIL,
        assumptions=(EVIL,),
    )
    evil = Examination({EVIL: finding, "horizon": known}, EVIL, {EVIL: EVIL, f"{EVIL}/{EVIL}": EVIL})
    page = Reader(render({EVIL: evil, "b": evil}, EVIL))
    tags = [tag for tag, _ in page.tags]
    assert tags.count("script") == 3
    assert "img" not in tags
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    assert EVIL in "".join(page.words)


def test_a_name_cannot_turn_around_the_numbers_behind_it():
    turned = "x\u202e29"  # from here on a browser would write to the left, also our words behind the name
    found = made(horizon=horizon_of())
    page = render({turned: found, "b": found}, turned)
    assert "\u202e" not in page
    assert "x\\u202e29" in Reader(page).text
    charts = json.loads(page.partition('id="data">')[2].partition("</script>")[0])["charts"]
    names = {trace.get("name") for chart in charts for trace in chart["data"]}
    assert "x\\u202e29: by inputs" in names


def test_needs_decide_between_good_and_bad():
    def tone(reach):
        examination = made(horizon=horizon_of(reach))
        examination.about["needs"] = "20"
        page = Reader(render(examination))
        return next(a["class"].split()[1:] for t, a in page.tags if a.get("class", "").startswith("headline-value"))

    assert tone(10) == ["bad"]
    assert tone(25) == ["good"]


def test_figures_are_in_tables(both):
    value = measured("LSTM")["horizon"].figures["rate"]
    assert f"{value:.4g}" in both.text


def test_table_of_figures_keeps_their_order_and_rounds_them():
    first = Finding("own", "F.", "estimated", figures={"zeta": 0.123456, "alpha": 1234.6})
    second = Finding("own", "F.", "estimated", figures={"alpha": np.inf, "new_one": 2.0})
    text = Reader(render({"b": made(own=first), "a": made(own=second)})).text
    assert "zeta 0.1235 estimated – alpha 1,235 estimated ∞ estimated new_one – 2 estimated" in text


@pytest.mark.parametrize(("models", "title"), [("ab", "a and b"), ("abc", "a and b and c"), ("abcd", "4 models")])
def test_title_names_up_to_three_models(models, title):
    page = Reader(render({name: made(own=Finding("own", "F.", "estimated")) for name in models}))
    assert page.headings[0] == [1, title]


def test_configuration_versions_and_cost_are_at_the_end():
    examination = made(horizon=horizon_of())
    examination.about.update({"configuration/fit.lr": "0.001", "versions/torch": "2.13.0"})
    text = Reader(render(examination)).text
    assert text.index("Details") < text.index("fit.lr 0.001") < text.index("torch 2.13.0") < text.index("in all 1.00 s")


def test_page_stays_under_six_megabytes():
    rng = np.random.default_rng(0)
    heavy = Finding("novel", "Much.", "estimated", series={f"s{i}": rng.random((200, 200)) for i in range(12)})
    text = render({f"m{i}": made(novel=heavy, attractors=orbits_of()) for i in range(3)})
    assert len(text.encode()) <= MAX_BYTES


def test_a_page_of_two_models_is_light():
    assert len(render({"LSTM": bare("LSTM"), "RelRNN": bare("RelRNN")}).encode()) < 5_600_000


def test_pages_are_written_atomically(tmp_path):
    path = write_page(made(horizon=horizon_of()), tmp_path / "report.html")
    assert path.read_text().rstrip().endswith("</html>")
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]
    with pytest.raises(MnemoscopeError, match="cannot write"):
        write_page(made(horizon=horizon_of()), tmp_path / "nowhere" / "report.html")
    with pytest.raises(MnemoscopeError, match="at least one"):
        render({})


def _run(name, best, curve=((10, 1.0), (20, 0.5))):
    return RunRow(
        run=name,
        task="copy",
        model="LSTM",
        parameters=5000,
        updates=20,
        outcome="solved",
        metric="accuracy",
        best=best,
        best_update=20,
        baseline=0.3,
        updates_per_second=9.5,
        curve=[{"update": u, "split": "valid", "loss": v, "accuracy": 1 - v} for u, v in curve],
    )


def test_the_index_has_a_row_and_a_curve_for_every_run(tmp_path):
    runs = [_run("a", 0.9), _run(EVIL, None, ()), _run("c", 0.5)]
    path = write_index(runs, tmp_path / "index.html", "Runs in runs", {"a": "a/examination/report.html"})
    page = Reader(path.read_text())
    assert sum(tag == "tr" for tag, _ in page.tags) == 4
    assert EVIL in "".join(page.words)
    links = [a["href"] for t, a in page.tags if t == "a" and not a["href"].startswith("#")]
    assert links == ["a/examination/report.html"]
    plots = [a["aria-label"] for _, a in page.tags if a.get("class") == "plot"]
    assert len(plots) == 2
    assert "a: from 1 at 10 to 0.5 at 20" in plots[0]


def test_the_index_of_runs_without_curves_says_so(tmp_path):
    page = Reader(write_index([_run("a", None, ())], tmp_path / "i.html", "t", {}).read_text())
    assert "None of these runs has been evaluated" in page.text


def test_figures_have_the_names_that_fail_if_takes():
    truncation = Finding("truncation", "T.", "estimated", figures={"bptt_window": 8.0, "steps": 64.0})
    page = render({"a": made(truncation=truncation)})
    assert "<code>bptt_window</code>" in page


def test_a_scope_that_does_not_apply_to_one_model_says_only_why():
    why = "it does not attend to its own past states"
    missing = Finding("horizon", f"horizon does not apply: {why}.", "not applicable", why=why)
    page = render({"a": made(horizon=horizon_of()), "b": made(horizon=missing)})
    assert why in page
    assert "does not apply:" not in page
