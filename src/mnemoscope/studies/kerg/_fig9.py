"""Figure 9: where a network with full attention looks that reads digits seven pixels at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mnemoscope.report import Axis, Chart, HeatMap, Panels
from mnemoscope.studies import CellValue, Done, Scale, Study, measure, settings, study, table, train
from mnemoscope.studies.kerg._fig10_fig11 import look, map_and_sequence, sparse_attention
from mnemoscope.sweeps import Job
from mnemoscope.tasks import Digits
from mnemoscope.training import FitConfig, NetworkConfig, RunConfig

PIXELS = 7
STEPS = 784 // PIXELS
COLUMNS = ("accuracy", "states attended by the last step", "mean lag")


def jobs(scale: Scale, seed: int) -> dict[Any, Job]:
    task = Digits(pixels=PIXELS, seed=seed)
    if scale == "quick":
        network = NetworkConfig("MemRNN", 64, options={"recurrent_init": "henaff"})
        fit = FitConfig(
            updates=900, batch_size=50, evaluate_every=300, evaluate_batches=10, checkpoint_every=900, seed=seed
        )
    else:
        network = NetworkConfig("MemRNN", 100, options={"recurrent_init": "henaff"})
        fit = FitConfig(epochs=10, batch_size=100, evaluate_every=500, log_every=50, seed=seed)
    run = train(RunConfig(task, network, fit))
    return {"run": run, "look": measure(look, needs=run, seconds=3, sequences=16)}


def cells(scale: Scale, done: Done) -> dict[tuple[str, str], CellValue]:
    found: dict[tuple[str, str], CellValue] = {}
    if "run" in done:
        found["MemRNN", COLUMNS[0]] = done["run"].reached(0.1)
    if "look" in done:
        found["MemRNN", COLUMNS[1]] = done["look"].figure("states_attended_last")
        found["MemRNN", COLUMNS[2]] = done["look"].figure("mean_lag")
    return found


def charts(scale: Scale, done: Sequence[Done]) -> list[Chart | Panels]:
    seed, seen = done[0].seed, done[0]["look"]
    image = seen["inputs"].reshape(28, 28).astype(float)
    pixels = np.arange(28, dtype=float)
    digit = Chart(
        "digit",
        "The digit",
        Axis("column"),
        Axis("row, four steps each"),
        (HeatMap("brightness", pixels, pixels, image),),
        equal_axes=True,
    )
    return [map_and_sequence("attention", f"Full attention, seven pixels a step (seed {seed})", seen, digit)]


study(
    Study(
        "kerg/fig9",
        "Figure 9",
        "attention of a network that reads a digit, seven pixels a step",
        jobs,
        cells,
        charts,
        claims=sparse_attention(STEPS),
        published=table(("MemRNN",), COLUMNS, note="a heat map without numbers"),
        settings=settings(
            model=("MemRNN, Hénaff's V", "ours", "the paper says full attention"),
            n=(100, "code"),
            batch_size=(100, "code"),
            training=("Adam 1e-3, 10 epochs", "ours", "not said"),
            shown=("the first test image; figures over 16", "ours", "not said"),
        ),
        quick=settings(n=(64, "ours"), updates=("900, of 50 images", "ours")),
        words="Its caption alone: 7 pixels were grouped at each step to make the map easier to see.",
        would_change="Longer training: attention is flat at the start and narrows as the network learns.",
        data=("mnist",),
    )
)
