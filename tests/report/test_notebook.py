"""What a notebook shows of an examination: its sentences, or the whole page in a frame."""

import html
import io
import re
import time

import numpy as np
import pytest
import torch
from browser import HANG, HOW, browser, chromium
from specimens import horizon_of, made, orbits_of
from torch import nn

from mnemoscope import Finding, MnemoscopeError, examine
from mnemoscope.report import InlinePage, Panels, all_charts, draw_figure, render

EVIL = "</td><script>document.title='taken'</script>"


def test_an_examination_is_a_table_of_its_sentences():
    found = examine(nn.Linear(3, 2), torch.randn(2, 6, 3), scopes=["recurrence", "horizon", "lyapunov", "stability"])
    shown = found._repr_html_()
    assert shown.startswith(f"<p>{html.escape(found.verdict)}</p><table>")
    cells = [re.findall(r">([^<>]*)</t[hd]>", row) for row in shown.split("</tr>")[:-1]]
    assert [row[:2] for row in cells] == [
        ["recurrence", "estimated"],
        ["horizon", "estimated"],
        ["stability, lyapunov", "not applicable"],
    ]
    assert cells[0][2] == html.escape(found["recurrence"].sentence)
    assert cells[2][2] == html.escape(found["stability"].why + ".")


def test_names_and_sentences_are_escaped_in_a_notebook():
    found = made(**{"horizon": Finding("horizon", EVIL, "estimated"), EVIL: Finding(EVIL, "", "failed")})
    assert "<script" not in found._repr_html_()
    assert "<script" not in InlinePage({EVIL: found}, EVIL)._repr_html_()


def test_the_frame_holds_the_page_and_lets_its_scripts_reach_nothing():
    found = made(horizon=horizon_of())
    frame = InlinePage(found, "Mine", height=432)._repr_html_()
    attributes = dict(re.findall(r' ([a-z]+)="([^"]*)"', frame))
    assert html.unescape(attributes["srcdoc"]) == render(found, "Mine")
    assert "allow-same-origin" not in attributes["sandbox"].split()
    assert "height: 432px" in attributes["style"]


@pytest.mark.parametrize("height", [0, -1, 2.5, True])
def test_a_frame_has_a_height(height):
    with pytest.raises(MnemoscopeError, match=re.escape(f"height must be a whole number of at least 1; got {height}")):
        InlinePage(made(horizon=horizon_of()), height=height)


def test_a_chart_is_a_matplotlib_figure():
    charts = all_charts(made(horizon=horizon_of()))
    figure = draw_figure(charts[:2])
    assert [axes.get_xlabel() for axes in figure.axes] == [chart.x.title for chart in charts[:2]]


def test_what_is_no_chart_is_not_drawn():
    chart = all_charts(made(horizon=horizon_of()))[0]
    for given, got in ((chart, "Chart"), ([chart, Panels("p", "", (chart,))], "Chart, Panels"), ("x", "str")):
        with pytest.raises(MnemoscopeError, match=f"takes a list of charts.*; got {got}$"):
            draw_figure(given)
    with pytest.raises(MnemoscopeError, match="draw_figure got no charts"):
        draw_figure([])


@pytest.mark.skipif(chromium() is None, reason=HOW)
@pytest.mark.xdist_group("browser")
def test_the_frame_looks_as_the_page_does(tmp_path):
    pytest.importorskip("websocket", reason="pip install websocket-client")
    shown = {"LSTM": made(horizon=horizon_of(), attractors=orbits_of())}
    alone, inline = tmp_path / "alone.html", tmp_path / "inline.html"
    alone.write_text(render(shown), "utf-8")
    ready = "onload=\"document.documentElement.dataset.ready = 'yes'\""
    frame = InlinePage(shown, height=1600)._repr_html_()
    inline.write_text(f'<!doctype html><meta charset="utf-8"><body style="margin: 0" {ready}>{frame}', "utf-8")
    with browser() as page:
        page.look(height=1600)
        page.open(alone)
        expected = _pixels(page)
        assert (expected < 100).any()  # something is drawn
        page.open(inline)
        end = time.monotonic() + HANG
        while (difference := np.abs(_pixels(page) - expected).mean()) > 1:  # of 255
            assert time.monotonic() < end, f"the frame differs from the page by {difference}"
        assert page.errors == []


def _pixels(page):
    """What the browser shows, as numbers (height, width, 3)."""
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(page.picture())).convert("RGB"), dtype=float)
