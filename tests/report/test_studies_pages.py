"""Pages of studies and charts in a grid: as files, and as readers meet them in a real Chromium."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from browser import HOW, browser, chromium

from mnemoscope.errors import MnemoscopeError
from mnemoscope.report import (
    Axis,
    Bars,
    Cell,
    Chart,
    ClaimLine,
    HeatMap,
    IndexRow,
    Line,
    Marker,
    Panels,
    Plane,
    Points,
    StudyPage,
    StudyResult,
    Style,
    TwoValues,
    VerdictWords,
    charts_from_json,
    charts_to_json,
    write_numbered_figures,
    write_studies_index,
    write_study_page,
)
from mnemoscope.report._panels import panel_charts

EVIL = "<script>document.title='taken'</script>"
GOOD = VerdictWords("reproduced", "reproduced")
x = np.arange(1.0, 6.0)


def curves(key, scale, log=False):
    low, high = 0.5 * scale * x, 2 * scale * x
    y = Axis("loss", log=log, switch=True)
    return Chart(key, f"{EVIL} {key}", Axis("updates"), y, (Line("a", x, scale * x, low, high), Points("b", x, x)))


def grid(**options):
    return Panels("grid", "Four models", tuple(curves(f"m{i}", 10.0**i) for i in range(4)), 2, **options)


def picture():
    """A heat map beside its sequence."""
    z = np.outer(x, x)
    attention = Chart("map", "Attention", Axis("state"), Axis("step"), (HeatMap("attention", x, x, z),))
    letters = HeatMap("text", x[:1], x, z[:, :1], y_labels=tuple("hello"))
    text = Chart("text", "Text", Axis(""), Axis("character"), (letters,))
    return Panels("picture", "Attention beside its text", (attention, text), 2, share_x=False)


def all_marks():
    plane = Plane("p", x, x, np.outer(x, x), np.stack([x, x], 1), (0.0, 9.0))
    bars = Bars("b", ("one", "two"), np.array([1.0, np.nan]), low=np.array([0.5, np.nan]), high=np.array([2.0, np.nan]))
    marker = (Marker("x", 2.0, "here", left=True),)
    return [
        Chart("plane", "Plane", Axis("x"), Axis("y"), (plane,), marker, equal_axes=True),
        Chart("bars", "Bars", Axis("", hidden=True), Axis("share", share=True), (bars,)),
        grid(share_x=False),
        picture(),
    ]


def test_charts_survive_json():
    content = charts_to_json(all_marks())
    again = charts_from_json(content, "here")
    assert charts_to_json(again) == content
    assert [chart.summary for chart in again] == [chart.summary for chart in all_marks()]


@pytest.mark.parametrize("damage", [[{}], [1], {"a": 1}, [{"key": "k", "title": "t", "panels": []}], None])
def test_damaged_charts_are_refused_in_one_line(damage):
    with pytest.raises(MnemoscopeError, match="here is not a list of charts"):
        charts_from_json(damage, "here")


def test_stored_lines_are_thinned_out():
    long = np.arange(1e5)
    chart = Chart("long", "Long", Axis("x"), Axis("y"), (Line("a", long, long, long, long), Points("b", long, long)))
    ((line, points),) = [stored["marks"] for stored in charts_to_json([chart])]
    assert len(line["x"]) == len(line["low"]) == 1500
    assert (line["x"][0], line["x"][-1]) == (0, 99999)
    assert len(points["x"]) == 4000


def test_panels_share_the_axes_that_they_are_told_to():
    both = panel_charts(grid())
    assert {(chart.y.extent.low, chart.y.extent.high) for chart in both} == {(0.5, 10_000.0)}
    assert {chart.x.extent.high for chart in both} == {5.0}
    assert [chart.key for chart in both] == ["grid-1", "grid-2", "grid-3", "grid-4"]
    assert all(chart.y.extent is None for chart in panel_charts(grid(share_y=False)))


def test_panels_have_one_legend():
    names = ("LSTM", "RNN")
    one, two = (
        Chart(
            f"c{n}",
            str(n),
            Axis("x"),
            Axis("y"),
            tuple(Line(name, x, x, style=Style(i)) for i, name in enumerate(names)),
        )
        for n in range(2)
    )
    panels = Panels("p", "P", (one, two))
    assert panels.legend == {"LSTM": 0, "RNN": 1}
    assert not any(chart.has_legend for chart in panel_charts(panels))
    assert one.has_legend

    # Where one name has two colors, or a map is among them, every chart keeps its own.
    other = replace(two, marks=(Line("LSTM", x, x, style=Style(3)), *two.marks[1:]))
    assert Panels("p", "P", (one, other)).legend == {}
    assert all(chart.has_legend for chart in panel_charts(Panels("p", "P", (one, other))))


def test_figures_are_numbered_and_have_the_same_bytes_twice(tmp_path):
    first = write_numbered_figures([grid(), picture()], tmp_path, ("svg", "png"))
    assert [path.name for path in first] == ["figure-1.svg", "figure-1.png", "figure-2.svg", "figure-2.png"]
    before = [path.read_bytes() for path in first]
    write_numbered_figures([grid(), picture()], tmp_path, ("svg", "png"))
    assert [path.read_bytes() for path in first] == before
    assert max(map(len, before)) < 200_000


def page_of(*charts):
    cells = [TwoValues("100 %", "99.7 %", "[99, 100] %", "agrees"), TwoValues("OOM", "42", "", "differs", EVIL)]
    unknown = [TwoValues("–", "–", "", "unknown"), TwoValues(EVIL, "1")]
    result = StudyResult(
        scale="quick",
        verdict=VerdictWords("contradicted", "contradicted"),
        corrected=GOOD,
        claims=[ClaimLine(EVIL, "printed", True, GOOD)],
        columns=["LSTM", EVIL],
        rows=[("100", cells), (EVIL, unknown)],
        seeds="seeds 0, 1",
        facts=[("cost", "3 s")],
        problems=[EVIL],
        charts=charts,
    )
    words = dict(paper="P", where="Table 1", shows=EVIL, ours=False, words=EVIL, errata=[EVIL], would_change=EVIL)
    settings = [("lr", EVIL, "paper", "note")]
    more = dict(
        surprise=EVIL,
        settings=settings,
        quick_settings=settings,
        corner="T",
        columns="model",
        published_note="one run",
        has_published=True,
    )
    return StudyPage(id="p/table1", results=[result], files=["study.json"], **words, **more)


def index_rows():
    rows = []
    for number, (paper, word) in enumerate([("Kerg", "reproduced"), ("Kerg", "contradicted"), ("Miller", "open")]):
        verdicts = {"quick": [VerdictWords(word, word)], "full": []}
        cost = Cell("3 s", str(number), True)
        rows.append(IndexRow(f"s{number}", "", paper, "Table", EVIL, verdicts, "1 | 2", cost, "2026-11-16"))
    return rows


def test_the_index_counts_the_verdicts_of_each_size(tmp_path):
    rows = index_rows()
    rows[0] = replace(rows[0], verdicts={"quick": [GOOD], "full": [VerdictWords("open", "open")]})
    text = write_studies_index(rows, tmp_path / "index.html", "Studies").read_text()
    assert "3 studies. Quick: 1 reproduced, 1 contradicted, 1 open. Full: 1 open.</p>" in text
    assert "0 studies.</p>" in write_studies_index([], tmp_path / "index.html", "Studies").read_text()


def test_a_share_stays_on_one_line_with_its_percent_sign(tmp_path):
    text = write_study_page(page_of(), tmp_path / "index.html").read_text()
    assert "99.7\u00a0%" in text
    assert "\\xa0" not in text


def test_a_page_says_what_its_columns_are_and_the_index_what_its_words_mean(tmp_path):
    """As that "spread" is a standard deviation, and that claims beside the headline do not count."""
    text = write_study_page(page_of(), tmp_path / "index.html").read_text()
    assert "Columns: model." in text
    text = write_studies_index(index_rows(), tmp_path / "index.html", "Studies").read_text()
    for word in ("Contradicted:", "Corrected:", "Partly:", "Open:", "beside the headline do not count"):
        assert word in text


def test_a_page_says_when_nothing_was_published(tmp_path):
    text = write_study_page(page_of(), tmp_path / "index.html").read_text()
    assert "<h3>Published and ours</h3>" in text
    assert '<span class="published">OOM</span>' in text
    text = write_study_page(replace(page_of(), has_published=False), tmp_path / "index.html").read_text()
    assert "<h3>Our values</h3>" in text
    assert "There are no published values (one run)." in text
    assert 'class="published"' not in text


def test_a_page_says_what_a_line_over_several_seeds_is(tmp_path):
    words = "A line over several seeds is their median"
    assert words in write_study_page(page_of(curves("one", 1.0)), tmp_path / "index.html").read_text()
    single = Chart("one", "One", Axis("x"), Axis("y"), (Line("a", x, x),))
    assert words not in write_study_page(page_of(single), tmp_path / "index.html").read_text()


needs_browser = pytest.mark.skipif(chromium() is None, reason=HOW)


@pytest.fixture(scope="module")
def page():
    pytest.importorskip("websocket", reason="pip install websocket-client")
    with browser() as opened:
        yield opened


@needs_browser
@pytest.mark.xdist_group("browser")
def test_a_study_page_in_the_browser(page, tmp_path):
    page.look()
    path = write_study_page(page_of(grid(), picture(), curves("one", 1.0)), tmp_path / "index.html")
    page.open(path)
    assert page.errors == []
    assert [url for url in page.requests if not url.startswith(("file:", "data:", "blob:"))] == []
    assert page.evaluate("document.title") == "p/table1 · Mnemoscope"
    assert page.evaluate("document.querySelectorAll('.plot[data-drawn]').length") == 7
    ranges = "new Set([...document.querySelectorAll('#quick-grid .plot')].map(p => p._fullLayout.yaxis.range.join()))"
    assert page.evaluate(f"{ranges}.size") == 1

    # One button switches all panels, and their axes stay the same.
    page.evaluate("document.querySelector('#quick-grid [data-log=y]').click()")
    kinds = "[...document.querySelectorAll('#quick-grid .plot')].map(p => p._fullLayout.yaxis.type).join(' ')"
    page.wait(f"{kinds} === 'log log log log' && {ranges}.size === 1")
    assert page.evaluate("document.querySelectorAll('td.agrees, td.differs, td.unknown').length") == 3

    page.look(width=360, height=740, touch=True)
    page.open(path)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_names_of_one_color_differ_in_the_legend_of_panels(tmp_path):
    """There are seven colors: the eighth name looked like the first."""
    points = tuple(Points(f"name {n}", x, n * x, Style(n, n // 7)) for n in range(9))
    panels = Panels("p", "P", (Chart("c", "C", Axis("x"), Axis("y"), points),))
    page = write_study_page(page_of(panels), tmp_path / "index.html").read_text()
    swatches = re.findall(r'<span class="swatch" ([^>]*) aria-hidden="true"></span>name', page)
    assert len(set(swatches)) == len(swatches) == 9


@needs_browser
@pytest.mark.xdist_group("browser")
def test_panels_with_legends_of_their_own_keep_room_for_their_axes(page, tmp_path):
    def panel(name):
        lines = (Line(f"{name} {n}, of earlier runs", x, n * x, 0 * x, 9 * x, Style(n % 3, n)) for n in range(10))
        return Chart(name, name, Axis("updates"), Axis("loss"), tuple(lines))

    four = Panels("four", "Four", tuple(panel(name) for name in "abcd"), 4)
    assert not four.legend
    path = write_study_page(page_of(four), tmp_path / "index.html")
    for width in (1400, 420):
        page.look(width=width)
        page.open(path)
        heights = "[...document.querySelectorAll('#quick-four .plot')].map(p => p._fullLayout._size.h)"
        assert min(page.evaluate(heights)) > 90
        scrolling = (
            "[...document.querySelectorAll('#quick-four .legend .scrollbar')].map(b => +b.getAttribute('height'))"
        )
        assert max(page.evaluate(scrolling)) == 0  # all names are seen
    assert page.errors == []


@needs_browser
@pytest.mark.xdist_group("browser")
def test_the_index_filters_and_sorts(page, tmp_path):
    page.look()
    page.open(write_studies_index(index_rows(), tmp_path / "index.html", "Studies"))
    shown = (
        "[...document.querySelectorAll('tbody tr')].filter(r => !r.hidden).map(r => r.cells[0].textContent).join(' ')"
    )

    def choose(name, value):
        field = f"document.querySelector('[data-filter={name}]')"
        page.evaluate(f"{field}.value = {value!r}; {field}.dispatchEvent(new Event('input'))")
        return page.evaluate(shown)

    assert choose("paper", "Kerg") == "s0 s1"
    assert choose("verdict", "contradicted") == "s1"
    assert page.evaluate("document.querySelector('[data-filtered]').textContent") == "1 of 3"
    assert choose("paper", "") == "s1"
    assert choose("verdict", "") == "s0 s1 s2"
    assert choose("words", "S2") == "s2"
    assert choose("words", "script") == "s0 s1 s2"
    assert page.errors == []


@needs_browser
@pytest.mark.xdist_group("browser")
def test_the_index_shows_verdicts_on_a_phone_without_scrolling(page, tmp_path):
    page.look(width=360, height=740, touch=True)
    page.open(write_studies_index(index_rows(), tmp_path / "index.html", "Studies"))
    ends = "[...document.querySelectorAll('tbody .badge')].map(badge => badge.getBoundingClientRect().right)"
    assert max(page.evaluate(ends)) <= 360
    hidden = "(() => { const t = document.querySelector('.scroll'); return t.scrollWidth - t.clientWidth })()"
    assert page.evaluate(hidden) == 0
    page.look()


@needs_browser
@pytest.mark.xdist_group("browser")
def test_the_index_shows_all_columns_on_a_wide_screen(page, tmp_path):
    (row, *_) = index_rows()
    remarks = [VerdictWords("", "2 claims beside the headline fail"), VerdictWords("", "13 jobs not run")]
    shows = "Theorem 1, Lemmas 1-2, Definition 2, appendix B: how steep and how curved the cost can be"
    row = replace(row, shows=shows, verdicts={scale: [GOOD, *remarks] for scale in ("quick", "full")})
    page.look(width=1440)
    page.open(write_studies_index([row], tmp_path / "index.html", "Studies"))
    hidden = "(() => { const t = document.querySelector('.scroll'); return t.scrollWidth - t.clientWidth })()"
    assert page.evaluate(hidden) == 0
    page.look()
