"""The film strip of an episode: pictures on the page, in figures and in files."""

import base64
import io

import numpy as np
import pytest

from mnemoscope.errors import MnemoscopeError
from mnemoscope.finding import Examination, Finding
from mnemoscope.report import Picture, charts_from_json, charts_of, charts_to_json, render, write_figures
from mnemoscope.report._interactive import plotly_chart


def finding(attention=True):
    rng = np.random.default_rng(0)
    series = {
        "frames": rng.integers(256, size=(8, 14, 14, 3), dtype=np.uint8),
        "frame_steps": np.array([0, 1, 2, 5, 8, 10, 18, 19]),
    }
    figures = {"steps": 20.0, "return": 0.9}
    if attention:
        weights = np.tril(rng.random((20, 20)))
        weights /= weights.sum(1, keepdims=True)
        series |= {"attention": weights, "attention_at_decision": weights[18]}
        figures |= {"decision": 18.0, "cue_last_seen": 1.0}
    return Finding("episode", "It reached the goal.", "estimated", figures=figures, series=series, title="An episode")


def strips(found):
    return charts_of({"agent": Examination({"episode": found}, "", {"model": "agent"})}, "episode")


def test_strip_shows_frames_bars_and_labels():
    chart, decision, heat = strips(finding())
    (picture,) = chart.marks
    assert isinstance(picture, Picture)
    weights = finding().series["attention_at_decision"]
    assert picture.labels[0] == f"step 0: {100 * weights[0]:.0f} %"
    frame = finding().series["frames"][0]
    drawn = picture.pixels[:112, 5 : 5 + 112, :3]  # half of the gap lies to its left
    np.testing.assert_array_equal(drawn[::8, ::8], frame)  # each pixel eight times
    bar = picture.pixels[112 + 3, 5 : 5 + 112]
    assert (bar[:, 3] > 0).sum() == round(112 * weights[0] / weights[[0, 1, 2, 5, 8, 10, 18, 19]].max())
    assert decision.markers[0].at == 1.0
    assert heat.marks[0].z.shape == (20, 20)


def test_without_attention_there_is_the_strip_alone():
    (chart,) = strips(finding(attention=False))
    assert chart.marks[0].labels[-1] == "step 19"


def test_page_and_figures(tmp_path):
    chart = strips(finding())[0]
    image, labels = plotly_chart(chart)["data"]
    content = base64.b64decode(image["source"].removeprefix("data:image/png;base64,"))
    from matplotlib.image import imread

    drawn = (imread(io.BytesIO(content), format="png") * 255).round().astype(np.uint8)
    np.testing.assert_array_equal(drawn, chart.marks[0].pixels)
    assert labels["text"] == list(chart.marks[0].labels)
    page = render(Examination({"episode": finding()}, "", {"model": "agent"}))
    assert "episode-strip-0" in page
    assert "data:image/png;base64," in page
    (path,) = write_figures([chart], tmp_path, ["png"])
    assert path.stat().st_size > 1000


def test_pictures_are_kept_in_files():
    chart = strips(finding())[0]
    (back,) = charts_from_json(charts_to_json([chart]), "here")
    np.testing.assert_array_equal(back.marks[0].pixels, chart.marks[0].pixels)
    assert back.marks[0].labels == chart.marks[0].labels


@pytest.mark.parametrize(
    "damage", [{"bytes": "!"}, {"bytes": "AAAA"}, {"shape": [1 << 30, 4, 4]}, {"shape": [2, 2, 4]}]
)
def test_damaged_pictures_are_one_line(damage):
    (content,) = charts_to_json(strips(finding())[:1])
    content["marks"][0]["pixels"] |= damage
    with pytest.raises(MnemoscopeError, match="here is not a list of charts"):
        charts_from_json([content], "here")


@pytest.mark.parametrize("frames", [np.zeros((2, 3, 3), np.uint8), np.zeros((0, 3, 3, 3), np.uint8)])
def test_findings_that_hold_no_frames_are_drawn_otherwise(frames):
    found = finding()
    found.series["frames"] = frames
    assert all(not isinstance(mark, Picture) for chart in strips(found) for mark in chart.marks)
