"""Learning curves as a figure."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from mnemoscope.errors import MnemoscopeError
from mnemoscope.files import write_whole

FORMATS = (".png", ".svg", ".pdf")
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")  # Okabe and Ito
DASHES = ("-", "--", "-.", ":")


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Held-out loss and headline metric against updates, a line a run."""
    from matplotlib.figure import Figure

    names = _panels(rows)
    figure = Figure(figsize=(5.5 * len(names), 4), layout="constrained")
    for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        _panel(axes, rows, name)
    figure.axes[0].legend(frameon=False, fontsize="small")
    content = io.BytesIO()
    figure.savefig(content, format=path.suffix[1:], dpi=150)
    write_whole(path, content.getvalue())


def _panels(rows: list[dict[str, Any]]) -> list[str]:
    """What can be shown together: the loss, and the metric that the runs share."""
    if not any(row["curve"] for row in rows):
        raise MnemoscopeError("there is nothing to draw yet: none of these runs has been evaluated on held-out data")
    common = set.intersection(*(set(row["curve"][-1]) for row in rows if row["curve"]))
    metrics = {row["metric"] for row in rows if row["metric"]} & common - {"loss"}
    return ["loss", *(metrics if len(metrics) == 1 else ())]


def _panel(axes: Any, rows: list[dict[str, Any]], name: str) -> None:
    for i, row in enumerate(rows):
        points = [(record["update"], record[name]) for record in row["curve"] if record.get(name) is not None]
        style = {"color": COLOURS[i % len(COLOURS)], "linestyle": DASHES[i // len(COLOURS) % len(DASHES)]}
        label = f"{row['model']} ({Path(row['run']).name})".replace("$", r"\$")  # a name is not a formula
        axes.plot(*zip(*points, strict=True), label=label, marker=".", **style) if points else None
    for baseline in {row["baseline"] for row in rows if name == "loss" and row["baseline"] is not None}:
        axes.axhline(baseline, color="0.5", linestyle=":", linewidth=1)
        place: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "ha": "right", "va": "bottom"}
        axes.annotate("without memory", (1, baseline), fontsize=8, **place)
    axes.set(xlabel="updates", ylabel=f"held-out {name}")
    axes.spines[["top", "right"]].set_visible(False)
