"""The page as its readers meet it: in a real Chromium."""

from dataclasses import replace

import pytest
from browser import HOW, browser, chromium
from specimens import bare, batch_over_time, horizon_of, landscape_of, made, orbits_of

from mnemoscope.report import RunRow, SweepGroup, write_index, write_page, write_sweep
from mnemoscope.report._palette import DARK, LIGHT

pytest.importorskip("websocket", reason="pip install websocket-client")
pytestmark = [pytest.mark.skipif(chromium() is None, reason=HOW), pytest.mark.xdist_group("browser")]
EVIL = "<script>document.title='taken'</script>"


@pytest.fixture(scope="module")
def page():
    with browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """A curve, a bifurcation diagram and a plane of two models, one of them named to do harm."""
    shown = dict(horizon=horizon_of(), attractors=orbits_of(), landscape=landscape_of())
    return write_page({"LSTM": made(**shown), EVIL: made(**shown)}, tmp_path_factory.mktemp("page") / "report.html")


@pytest.fixture(autouse=True)
def _as_found(page):
    page.look()
    page.errors.clear()
    page.requests.clear()


def _hex(rgb):
    return "#" + "".join(f"{int(float(n)):02X}" for n in rgb.removeprefix("rgb(").rstrip(")").split(",")[:3])


def test_every_chart_is_drawn_without_errors_or_network_requests(page, tmp_path):
    rel = bare("RelRNN")
    odd = replace(rel, findings={**rel.findings, "attractors": orbits_of()})
    report = write_page({"LSTM": bare("LSTM"), EVIL: odd}, tmp_path / "report.html")
    page.open(report)
    drawn = page.evaluate("""[...document.querySelectorAll('.plot')].map(plot => ({
        key: plot.dataset.chart, failed: plot.dataset.failed ?? null,
        marks: plot.querySelectorAll(
            '.scatterlayer path, .barlayer path, .heatmaplayer image, .contourlayer path, .gl-canvas').length,
        inside: plot.querySelector('.main-svg').getBoundingClientRect().width > 200
             && plot.querySelector('.main-svg').getBoundingClientRect().height > 150,
    }))""")
    assert len(drawn) > 20
    assert [chart for chart in drawn if chart["failed"] or not chart["marks"] or not chart["inside"]] == []
    assert page.errors == []
    outside = [url for url in page.requests if not url.startswith(("file:", "data:", "blob:"))]
    assert outside == []
    assert [url for url in page.requests if url.startswith("file:")] == [report.resolve().as_uri()]


@pytest.mark.slow
def test_opening_the_page_takes_less_than_three_cpu_seconds(page, report):
    page.call("Performance.enable", timeDomain="threadTicks")
    costs = (_opening(page, report) for _ in range(3))
    assert any(0 < cost < 3 for cost in costs)  # a busy machine only adds, so that one opening is enough
    page.call("Performance.disable")


def _opening(page, report):
    """Processor seconds of the page's own thread until it is open."""
    page.go_to("about:blank")
    before = _cost(page)
    page.go_to(report.resolve().as_uri())
    page.wait("document.documentElement?.dataset.opened !== undefined")
    return _cost(page) - before


def _cost(page):
    metrics = {m["name"]: m["value"] for m in page.call("Performance.getMetrics")["metrics"]}
    return metrics["TaskDuration"]


def test_names_are_escaped_in_the_browser(page, report):
    page.open(report)
    assert page.evaluate("document.title").startswith("LSTM and <script>")
    assert EVIL in page.evaluate("document.querySelector('.model:last-of-type, .card').parentElement.textContent")
    assert "<script>" in page.evaluate("document.querySelector('#horizon-gradient .legend').textContent")


def test_content_security_policy_refuses_injected_scripts(page, report):
    page.open(report)
    page.evaluate("""(() => { const s = document.createElement('script'); s.textContent = 'window.taken = 1';
                     document.body.append(s); })()""")
    assert page.evaluate("window.taken === undefined")
    page.wait_for_error("Content Security Policy")


@pytest.mark.parametrize(("dark", "palette"), [(False, LIGHT), (True, DARK)])
def test_page_and_charts_follow_dark_and_light_theme(page, report, dark, palette):
    page.look(dark=not dark)
    page.open(report)
    page.look(dark=dark)  # while the page is open
    strokes = "[...document.querySelectorAll('#horizon-gradient .js-line')].map(l => getComputedStyle(l).stroke)"
    page.wait(f"{strokes}.some(s => s === 'rgb({', '.join(str(int(palette[0][i : i + 2], 16)) for i in (1, 3, 5))})')")
    ground = _hex(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert ground == ("#14171B" if dark else "#FFFFFF")
    swatch = _hex(page.evaluate("getComputedStyle(document.querySelector('.swatch')).backgroundColor"))
    assert swatch == palette[0].upper()


def test_phone_layout_has_no_horizontal_scrolling(page, report):
    page.look(width=360, height=740, touch=True)
    page.open(report)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    wide = page.evaluate("""[...document.querySelectorAll('main *')].filter(e => !e.closest('.scroll, svg, .plot'))
        .filter(e => e.getBoundingClientRect().right > 361).map(e => e.outerHTML.slice(0, 80))""")
    assert wide == []
    sizes = page.evaluate("[...document.querySelectorAll('.plot')].map(p => p.querySelector('.main-svg').clientWidth)")
    assert max(sizes) <= 360


def test_tables_on_a_phone_do_not_wrap_word_by_word(page, tmp_path):
    figures = dict.fromkeys(("runs", "ended", "diverged", "failed", "mean", "median", "updates_to_solved"), 0.12345)
    groups = [SweepGroup({"network.model": model, "fit.lr": 0.001}, figures) for model in ("LSTM", "RelRNN")]
    page.look(width=390, height=844, touch=True)
    page.open(write_sweep(groups, tmp_path / "table.html", "Sweep", "accuracy"))
    lines = """[...document.querySelectorAll('thead th, tbody th')].map(cell => {
        const range = document.createRange();
        range.selectNodeContents(cell.querySelector('button') ?? cell);
        return new Set([...range.getClientRects()].map(box => box.top)).size;
    })"""
    assert set(page.evaluate(lines)) == {1}
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_names_of_groups_do_not_break_word_by_word_beside_many_numbers(page, tmp_path):
    names = ("runs", "ended", "diverged", "failed", "solved", "mean", "median", "iqm", "iqm_low", "iqm_high")
    figures = dict.fromkeys((*names, "updates_to_solved", "seconds_to_solved"), 0.009961)
    groups = [SweepGroup({"network.buffer": buffer, "network.relevant": 5}, figures) for buffer in (2, 5)]
    page.look()
    page.open(write_sweep(groups, tmp_path / "table.html", "Sweep", "accuracy"))
    lines = """(() => {
        const range = document.createRange();
        range.selectNodeContents(document.querySelector('tbody th'));
        return new Set([...range.getClientRects()].map(box => box.top)).size;
    })()"""
    assert page.evaluate(lines) <= 2


def test_headings_are_aligned_like_the_numbers_below(page, tmp_path):
    figures = {"outcome": "solved", "mean": 0.5, "median": None}
    groups = [SweepGroup({"fit.lr": rate}, figures) for rate in (0.1, 0.2)]
    page.open(write_sweep(groups, tmp_path / "table.html", "Sweep", "accuracy"))
    alignment = "[...document.querySelectorAll('thead th')].map(th => getComputedStyle(th).textAlign)"
    assert page.evaluate(alignment) == ["left", "left", "right", "right"]


def test_a_long_legend_leaves_room_for_the_axis_on_a_phone(page, tmp_path):
    horizon = horizon_of()
    horizon.series["state_gradient"] = horizon.series["input_gradient"]  # two lines of each model
    page.look(width=360, height=740, touch=True)
    models = {name: made(horizon=horizon) for name in ("one model", "another", "the third")}
    page.open(write_page(models, tmp_path / "report.html"))
    assert page.evaluate("document.querySelectorAll('.plot .legend .traces').length") == 6
    cut = page.evaluate("""[...document.querySelectorAll('.plot')].flatMap(plot => {
        const title = plot.querySelector('.ytitle')?.getBoundingClientRect(), box = plot.getBoundingClientRect();
        return title && (title.top < box.top || title.bottom > box.bottom) ? [plot.dataset.chart] : [];
    })""")
    assert cut == []


def test_keyboard_reaches_everything(page, report):
    page.open(report)
    page.tab()
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    wanted = page.evaluate("""[...document.querySelectorAll('a, button:not([hidden]), summary, [tabindex="0"]')]
        .filter(e => e.checkVisibility()).length""")
    kinds, seen = set(), 1
    for _ in range(wanted + 5):
        page.tab()
        here = page.evaluate("[document.activeElement.tagName, document.activeElement.className]")
        if here[0] == "BODY":
            break
        seen += 1
        kinds.add("plot" if "plot" in here[1].split() else here[0])
    assert seen >= wanted - 1
    assert {"A", "BUTTON", "SUMMARY", "plot"} <= kinds


def test_keys_pan_and_zoom_a_chart(page, report):
    page.open(report)
    page.evaluate("document.querySelector('#horizon-gradient .plot').focus()")
    span = "document.querySelector('#horizon-gradient .plot')._fullLayout.xaxis.range.slice()"
    before = page.evaluate(span)
    page.press("+")
    page.wait(f"({span})[0] > {before[0]}")
    page.press("0")
    page.wait(f"Math.abs(({span})[0] - {before[0]}) < 1e-6")
    page.press("ArrowRight")
    page.wait(f"({span})[1] > {before[1]}")


def test_log_switch_and_3d_surface(page, report):
    page.open(report)
    kind = "document.querySelector('#horizon-gradient .plot')._fullLayout.yaxis.type"
    button = "document.querySelector('#horizon-gradient [data-log=y]')"
    assert page.evaluate(kind) == "log"
    page.evaluate(f"{button}.click()")
    page.wait(f"{kind} === 'linear' && {button}.getAttribute('aria-pressed') === 'false'")
    page.evaluate(f"{button}.click()")
    page.wait(f"{kind} === 'log'")
    plane = "document.querySelector('[id^=landscape-plane] .plot')"
    assert page.evaluate(f"{plane}._fullData[0].type") == "contour"
    page.evaluate("document.querySelector('[id^=landscape-plane] [data-surface]').click()")
    page.wait(f"{plane}._fullData?.[0]?.type === 'surface' && {plane}.querySelector('canvas') !== null")
    assert page.errors == []


def test_numbers_can_be_copied(page, report):
    page.open(report)
    page.evaluate("""Object.defineProperty(navigator, 'clipboard',
        { value: { writeText: async (text) => { window.copied = text; } }, configurable: true })""")
    page.evaluate("document.querySelector('#horizon-gradient [data-numbers]').click()")
    page.wait("window.copied !== undefined")
    rows = page.evaluate("window.copied").split("\n")
    lags = len(horizon_of().series["input_gradient"])
    assert len([row for row in rows if row.startswith("LSTM: by inputs\t")]) == lags
    page.evaluate("window.copied = undefined; document.querySelector('#horizon .copy').click()")
    page.wait("window.copied !== undefined")
    assert page.evaluate("window.copied").startswith("figure\tLSTM\t")


def test_page_prints_in_light_colors(page, report):
    page.look(dark=True)
    page.open(report)
    pdf = page.printed()
    assert pdf.startswith(b"%PDF")
    assert len(pdf) > 50_000
    assert page.errors == []


def test_forgotten_batch_first_alarm_is_on_the_first_screen(page, tmp_path):
    page.open(write_page(made(horizon=horizon_of(), recurrence=batch_over_time()), tmp_path / "report.html"))
    box = page.evaluate("(({top, bottom}) => [top, bottom])(document.querySelector('.alarm').getBoundingClientRect())")
    assert 0 < box[0] < box[1] < page.evaluate("document.querySelector('#verdict').getBoundingClientRect().top")
    assert box[1] < 900


def test_index_table_sorts(page, tmp_path):
    curve = [{"update": 10, "split": "valid", "loss": 1.0}, {"update": 20, "split": "valid", "loss": 0.4}]
    shared = dict(task="copy", model="LSTM", parameters=1, updates=2, outcome="solved", metric="loss", baseline=0.3)
    bests = (("a", 9.5), ("b", 10.5), ("c", None), ("d", 0.5))
    runs = [RunRow(run=name, best=best, best_update=1, curve=curve, **shared) for name, best in bests]
    page.open(write_index(runs, tmp_path / "index.html", "Runs", {}))
    names = "[...document.querySelectorAll('tbody th')].map(th => th.textContent).join('')"
    head = "[...document.querySelectorAll('th button')].find(b => b.textContent === 'best')"
    page.evaluate(f"{head}.click()")
    assert page.evaluate(names) == "dabc"
    page.evaluate(f"{head}.click()")
    assert page.evaluate(names) == "badc"
    assert page.evaluate(f"{head}.closest('th').getAttribute('aria-sort')") == "descending"
    assert page.errors == []
    assert page.evaluate("document.querySelectorAll('.scatterlayer .js-line').length") == 4


def test_sweep_page_has_heat_maps_bands_and_a_sortable_table(page, tmp_path):
    groups = []
    for buffer in (2, 10):
        for model in ("LSTM", EVIL):
            curves = [[(10, 0.1 * seed), (20, 0.02 * buffer * seed)] for seed in range(1, 4)]
            figures = {"runs": 3, "solved": buffer // 5, "iqm": 0.1 * buffer if model == EVIL else None}
            groups.append(SweepGroup({"network.buffer": buffer, "network.model": model}, figures, curves))
    page.open(write_sweep(groups, tmp_path / "table.html", "Sweep", "accuracy"))
    assert page.evaluate("document.querySelectorAll('.heatmaplayer .hm').length") == 2
    assert (
        page.evaluate("document.querySelectorAll('.scatterlayer .js-line').length") == 12
    )  # 4 lines, 8 edges of bands
    assert page.evaluate("document.querySelector('.lead').textContent") == "12 runs in 4 groups."
    names = "[...document.querySelectorAll('tbody th')].map(th => th.textContent.split(',')[0]).join(' ')"
    page.evaluate("[...document.querySelectorAll('th button')].find(b => b.textContent === 'solved').click()")
    page.evaluate("[...document.querySelectorAll('th button')].find(b => b.textContent === 'solved').click()")
    assert page.evaluate(names).startswith("buffer 10 buffer 10")
    assert page.evaluate("document.title") == "Sweep · Mnemoscope"
    assert page.errors == []
