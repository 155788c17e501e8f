"""An episode of an agent as a film strip: what it saw, step by step, and what it looked back at when it decided."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mnemoscope.report._chart import Axis, Chart, HeatMap, Line, Marker, Picture, Style
from mnemoscope.report._charts.registry import draws_scope
from mnemoscope.report._view import View

COLUMNS = 6
GAP = 10  # pixels between frames
BAR = 8  # height of the bar below a frame
TEXT = 14  # height of a line of text below it
SIDE = 112  # of a frame, at least
LABEL = 100  # width of the text below a frame
INK = (214, 93, 14)  # of the bars: seen on light and on dark


@draws_scope
def episode(shown: Sequence[View]) -> list[Chart]:
    """The film strip of each model's episode, and its attention: at the decision, and of every step."""
    charts = []
    for view in shown:
        x, y = Axis("frame"), Axis("row")
        title = f"An episode of {view.name}" if not view.alone else "An episode"
        if "decision" in view.finding.figures:
            title += f"; below each frame its share of the attention of step {view.finding.figures['decision']:.0f}"
        charts.append(Chart(f"episode-strip-{view.index}", title, x, y, (film_strip(view),)))
        decision = _decision(view)
        if decision is not None:
            charts.append(decision)
            charts.append(_attention_map(view))
    return charts


def film_strip(view: View) -> Picture:
    """Frames side by side in rows, with their step; below each a bar as long as the attention that it got."""
    series = view.finding.series
    frames, steps = _enlarged(series["frames"]), series["frame_steps"].astype(int)
    attention = series.get("attention_at_decision")
    shares = None if attention is None else attention[steps - _first_step(view)]
    count, height, width, _ = frames.shape
    columns = min(COLUMNS, count)
    rows = -(-count // columns)
    cell_height, cell_width = height + BAR + 2 * TEXT + GAP, max(width, LABEL) + GAP
    pixels = np.zeros((rows * cell_height, columns * cell_width, 4), dtype=np.uint8)

    # A frame, its bar (the longest one is as wide as a frame), and the place of its label.
    places, labels = [], []
    for number, (step, frame) in enumerate(zip(steps, frames, strict=True)):
        top, left = number // columns * cell_height, number % columns * cell_width + (cell_width - width) // 2
        pixels[top : top + height, left : left + width, :3] = frame
        pixels[top : top + height, left : left + width, 3] = 255
        label = f"step {step}"
        if shares is not None:
            length = round(width * float(shares[number] / max(shares.max(), 1e-12)))
            pixels[top + height + 2 : top + height + BAR, left : left + length] = (*INK, 255)
            label += f": {100 * shares[number]:.0f} %"
        places.append((left + width / 2, top + height + BAR + TEXT))
        labels.append(label)
    x, y = np.array(places).T
    return Picture(view.name, pixels, x, y, tuple(labels))


def _enlarged(frames: np.ndarray) -> np.ndarray:
    """Frames (N, height, width, 3) whose pixels are repeated until they can be made out."""
    if frames.ndim != 4 or frames.shape[3] != 3 or frames.dtype != np.uint8 or not frames.size:
        raise ValueError("these are not frames")
    times = max(1, -(-SIDE // max(frames.shape[1:3])))
    return frames.repeat(times, axis=1).repeat(times, axis=2)


def _decision(view: View) -> Chart | None:
    """What the deciding step attends to, against the step at which each state was made."""
    attention = view.finding.series.get("attention_at_decision")
    if attention is None:
        return None
    at = _first_step(view) + np.arange(len(attention), dtype=float)
    line = Line(view.name, at, attention.astype(float), style=Style(view.index))
    cue = view.finding.figures.get("cue_last_seen")
    markers = () if cue is None else (Marker("x", cue, "cue last seen"),)
    decision = view.finding.figures.get("decision", at[-1])
    title = f"What step {decision:.0f} of {view.name} looks back at"
    return Chart(
        f"episode-decision-{view.index}", title, Axis("state made at step"), Axis("attention"), (line,), markers
    )


def _attention_map(view: View) -> Chart:
    weights = view.finding.series["attention"].astype(float)
    seen = np.where(weights > 0, weights, np.nan)
    steps = _first_step(view) + np.arange(len(weights))
    heat = HeatMap(view.name, steps, steps, seen)
    title = f"Where {view.name} looks in this episode"
    return Chart(f"episode-attention-{view.index}", title, Axis("state made at step"), Axis("attending step"), (heat,))


def _first_step(view: View) -> int:
    """The step of the episode that its series begin with."""
    return int(view.finding.figures.get("first_step", 0.0))
