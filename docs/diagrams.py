"""Draw the pictures of docs/architecture.md: python docs/diagrams.py writes docs/images/walk-*.svg.

Boxes are opaque with dark text and everything between them is mid-grey, so that the pictures read on a light and on a
dark page.
"""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import NamedTuple

IMAGES = Path(__file__).parent / "images"
INK, LINE, LOOP = "#1d2733", "#7b8794", "#c05621"
FILL = {
    "user": "#ffffff",
    "layers": "#dbeafe",
    "kernels": "#fde8cf",
    "training": "#dcf3e2",
    "tasks": "#e6f4c9",
    "adapters": "#efe3fb",
    "scopes": "#fbe0ea",
    "report": "#d9f1f1",
    "files": "#eceff3",
    "finding": "#eceff3",
}
STYLE = (
    f"text{{font-family:Helvetica,Arial,sans-serif;fill:{INK}}} .t{{font-size:15px;font-weight:600}} "
    f".s{{font-size:12.5px}} .l{{font-size:12.5px;fill:{LINE}}} .r{{font-size:11px;fill:#5b6673}}"
)


class Box(NamedTuple):
    """A box with its upper left corner, its size, the room it belongs to, a title and its text."""

    x: float
    y: float
    width: float
    height: float
    room: str
    title: str
    text: str = ""  # lines, separated by |

    def draw(self) -> str:
        middle = self.x + self.width / 2
        first = self.y + 24
        parts = [
            f'<rect x="{self.x}" y="{self.y}" width="{self.width}" height="{self.height}" rx="7" '
            f'fill="{FILL[self.room]}" stroke="{LINE}" stroke-width="1.2"/>',
            f'<text class="t" x="{middle}" y="{first}" text-anchor="middle">{escape(self.title)}</text>',
        ]
        for number, line in enumerate(self.text.split("|")):
            y = first + 19 + 16.5 * number
            parts.append(f'<text class="s" x="{middle}" y="{y}" text-anchor="middle">{escape(line)}</text>')
        if self.room != "user":
            x, y = self.x + self.width - 7, self.y + self.height - 7
            parts.append(f'<text class="r" x="{x}" y="{y}" text-anchor="end">{self.room}</text>')
        return "".join(parts)


def arrow(*points: tuple[float, float], color: str = LINE, dashed: bool = False) -> str:
    """A line through `points` with a head at its end."""
    path = " ".join(f"{x},{y}" for x, y in points)
    dash = ' stroke-dasharray="6 4"' if dashed else ""
    marker = "loop" if color == LOOP else "head"
    return (
        f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="1.8"{dash} marker-end="url(#{marker})"/>'
    )


def label(x: float, y: float, text: str, anchor: str = "middle") -> str:
    return f'<text class="l" x="{x}" y="{y}" text-anchor="{anchor}">{escape(text)}</text>'


def write(name: str, width: int, height: int, title: str, parts: list[str]) -> None:
    heads = "".join(
        f'<marker id="{key}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        f'<path d="M0,0 L8,4 L0,8 z" fill="{color}"/></marker>'
        for key, color in (("head", LINE), ("loop", LOOP))
    )
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img"><title>{escape(title)}</title><defs>{heads}</defs><style>{STYLE}</style>{"".join(parts)}</svg>\n'
    )
    (IMAGES / name).write_text(svg)


def layer_call() -> None:
    # fmt: off
    boxes = [
        Box(10, 20, 190, 96, "user", "layer(x, state)", "tensor or PackedSequence,|time or batch first,|batched or not"),
        Box(240, 20, 220, 96, "layers", "Layer.forward", "checks, layout, initial state;|then, for each layer|and direction, one run"),
        Box(500, 20, 220, 96, "layers", "run", "one layer, one direction;|in segments of √T steps|with checkpoint=True"),
        Box(760, 20, 230, 96, "kernels", "dispatch", "kernel, device, dtype, size,|transforms, changed equations:|which of the three may run?"),
        Box(10, 190, 310, 118, "kernels", "compiled kernel", "one operator for the whole sequence,|forward and backward:|C++ (AVX2, AVX-512, NEON) on the CPU,|CUDA C++ on a GPU; cuDNN if wide"),
        Box(345, 190, 310, 118, "kernels", "portable", "attention on a machine without|compiled kernels: torch operations|with a backward pass of their own"),
        Box(680, 190, 310, 118, "layers", "eager loop", "cell(w, u, state) at every step:|the equations beside the paper;|every kernel is compared with it"),
        Box(240, 380, 480, 84, "layers", "what the caller gets", "outputs in the layout of x (dropout between layers),|and a state that holds all that the next step needs"),
        Box(10, 380, 190, 84, "user", "output, state", "as from nn.LSTM"),
        Box(760, 380, 230, 84, "scopes", "state gradients", "recorded where a scope asks:|dL/dh at every step"),
    ]
    # fmt: on
    parts = [
        arrow((200, 68), (238, 68)),
        arrow((460, 68), (498, 68)),
        arrow((720, 68), (758, 68)),
        arrow((875, 116), (875, 150), (165, 150), (165, 188)),
        arrow((500, 150), (500, 188)),
        arrow((835, 150), (835, 188)),
        label(160, 140, "where a kernel exists"),
        label(500, 140, "attention, no kernel"),
        label(730, 140, "everything else"),
        arrow((165, 308), (165, 344), (400, 344), (400, 378)),
        arrow((500, 308), (500, 378)),
        arrow((800, 308), (800, 344), (600, 344), (600, 378)),
        arrow((240, 422), (202, 422)),
        arrow((722, 422), (758, 422), dashed=True),
    ]
    write("walk-layer-call.svg", 1000, 480, "A layer's call", parts + [box.draw() for box in boxes])


def training_run() -> None:
    # fmt: off
    boxes = [
        Box(10, 20, 230, 100, "user", "RunConfig", "task, network and fit:|all that the run depends on;|written to config.json"),
        Box(280, 20, 230, 100, "training", "SequenceModel", "embedding, recurrent layer,|read-out; drawn from|the run's seed"),
        Box(550, 20, 230, 100, "training", "Session", "the loop, and when to log,|evaluate, save and stop"),
        Box(10, 190, 230, 100, "tasks", "task.batch(step)", "depends on seed, split and|step alone: any batch again,|at any time"),
        Box(280, 190, 230, 100, "layers", "forward", "windows of bptt steps; the|state is carried on, detached"),
        Box(550, 190, 230, 100, "training", "update", "loss, backward, clipping,|optimizer, projections|(stable sets)"),
        Box(820, 20, 170, 100, "files", "metrics.jsonl", "a line for each log|and evaluation"),
        Box(820, 190, 170, 100, "files", "checkpoints/", "last three, and best:|weights, optimizer,|random state"),
        Box(550, 360, 230, 84, "files", "summary.json", "written last: outcome,|best and final metrics"),
        Box(280, 360, 230, 84, "training", "resume", "newest sound checkpoint;|metrics cut back to it"),
        Box(10, 360, 230, 84, "user", "Ctrl-C, kill, power cut", "at any moment"),
    ]
    # fmt: on
    parts = [
        arrow((240, 70), (278, 70)),
        arrow((510, 70), (548, 70)),
        arrow((780, 70), (818, 70)),
        arrow((600, 120), (600, 155), (125, 155), (125, 188), color=LOOP),
        arrow((240, 240), (278, 240), color=LOOP),
        arrow((510, 240), (548, 240), color=LOOP),
        arrow((700, 190), (700, 122), color=LOOP),
        label(692, 176, "loss, norm", "end"),
        label(360, 146, "every update"),
        arrow((780, 105), (800, 105), (800, 240), (818, 240)),
        arrow((905, 290), (905, 400), (782, 400)),
        label(895, 345, "solved, or budget spent", "end"),
        arrow((240, 402), (278, 402), dashed=True),
        arrow((395, 360), (395, 325), (530, 325), (530, 135), (560, 135), (560, 122), dashed=True),
        label(400, 316, "bit for bit the run that was never stopped"),
    ]
    write("walk-training-run.svg", 1000, 460, "A training run", parts + [box.draw() for box in boxes])


def examination() -> None:
    # fmt: off
    boxes = [
        Box(10, 20, 220, 100, "user", "examine(model, inputs)", "targets, loss, needs,|budget: if you have them"),
        Box(270, 20, 220, 100, "adapters", "adapt", "torch's layers, any step,|a plain forward, Lightning,|Hugging Face"),
        Box(530, 20, 220, 100, "scopes", "Subject", "the model as a Recurrence|where it has a step;|features, loss, deadline"),
        Box(790, 20, 200, 100, "scopes", "cheapest scope first", "each leaves the model as it|was, even when it fails"),
        Box(790, 190, 200, 110, "finding", "Finding", "figures, series, sentence;|certified, estimated,|not applicable, skipped,|failed: and why"),
        Box(530, 190, 220, 110, "scopes", "verdict", "the findings of horizon,|stability, truncation …|in a few sentences"),
        Box(270, 190, 220, 110, "finding", "Examination", "findings.json, and arrays|in safetensors;|loads without the model"),
        Box(10, 190, 220, 110, "report", "charts", "one description a chart;|scopes without one of their|own are drawn generically"),
        Box(10, 370, 220, 84, "report", "report.html", "one file, no network"),
        Box(270, 370, 220, 84, "report", "figures/", "svg, png: the same charts"),
        Box(530, 370, 460, 84, "user", "exit code", "0 done · 2 wrong target · 4 a condition of --fail-if holds|130 stopped: what was found is a page, marked partial"),
    ]
    # fmt: on
    parts = [
        arrow((230, 70), (268, 70)),
        arrow((490, 70), (528, 70)),
        arrow((750, 70), (788, 70)),
        arrow((860, 120), (860, 188), color=LOOP),
        arrow((930, 190), (930, 122), color=LOOP),
        label(852, 160, "every scope that applies", "end"),
        arrow((790, 245), (752, 245)),
        arrow((530, 245), (492, 245)),
        arrow((270, 245), (232, 245)),
        arrow((120, 300), (120, 368)),
        arrow((180, 300), (180, 335), (380, 335), (380, 368)),
        arrow((440, 300), (440, 335), (760, 335), (760, 368)),
        label(610, 326, "command line"),
    ]
    write("walk-examination.svg", 1000, 470, "An examination", parts + [box.draw() for box in boxes])


if __name__ == "__main__":
    layer_call()
    training_run()
    examination()
