"""Figure 7: where a network with full attention looks that reads characters of the Penn Treebank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mnemoscope.report import Axis, Chart, HeatMap, Panels
from mnemoscope.scopes import attention
from mnemoscope.studies import CellValue, Done, Result, Scale, Study, measure, settings, study, table, train
from mnemoscope.studies.kerg._fig10_fig11 import sparse_attention
from mnemoscope.sweeps import Job
from mnemoscope.tasks import Characters
from mnemoscope.training import FitConfig, NetworkConfig, RunConfig

STEPS = 125
SHOWN = 60  # characters of the figure
COLUMNS = ("bits a character", "states attended by the last step", "mean lag")


def jobs(scale: Scale, seed: int) -> dict[Any, Job]:
    task = Characters(bptt=STEPS, ids=True, seed=seed)
    options = {"recurrent_init": "henaff"}
    if scale == "quick":
        network = NetworkConfig("MemRNN", 64, embedding=32, options=options)
        fit = FitConfig(
            updates=600,
            batch_size=16,
            evaluate_every=300,
            evaluate_batches=4,
            checkpoint_every=600,
            carry_memory=0,
            seed=seed,
        )
    else:
        network = NetworkConfig("MemRNN", 1024, embedding=200, options=options)
        fit = FitConfig(epochs=5, batch_size=128, lr=3e-4, evaluate_every=313, carry_memory=0, seed=seed)
    run = train(RunConfig(task, network, fit))
    return {"run": run, "look": measure(read_and_look, needs=run, seconds=4, sequences=4)}


def read_and_look(run: Result, *, sequences: int) -> Mapping[str, Any]:
    """Where the best weights look in a chunk of test text, from an empty memory: figures, map and characters."""
    task = run.run.config.task
    assert isinstance(task, Characters)
    inputs, _ = task.batch(0, sequences, "test")
    found = attention(run.run.model("best"), inputs)
    return {
        "mean_lag": found.figures["mean_lag"],
        "states_attended_last": float(found.series["states_attended"][-1]),
        "map": found.series["attention_of_sequence"].astype(np.float32),
        "text": [task.corpus.symbols[index] for index in inputs[:, 0].tolist()],
    }


def cells(scale: Scale, done: Done) -> dict[tuple[str, str], CellValue]:
    found: dict[tuple[str, str], CellValue] = {}
    if "run" in done:
        found["MemRNN", COLUMNS[0]] = done["run"].reached("infinity")
    if "look" in done:
        found["MemRNN", COLUMNS[1]] = done["look"].figure("states_attended_last")
        found["MemRNN", COLUMNS[2]] = done["look"].figure("mean_lag")
    return found


def charts(scale: Scale, done: Sequence[Done]) -> list[Chart | Panels]:
    seed, seen = done[0].seed, done[0]["look"]
    weights = seen["map"][:SHOWN, :SHOWN].astype(float)
    text = tuple("␣" if character == " " else character for character in seen["text"][:SHOWN])
    steps = np.arange(len(weights), dtype=float)
    marks = HeatMap("attention", steps, steps, np.where(weights > 0, weights, np.nan), text, text)
    title = f"Full attention over characters, the first {SHOWN} of a chunk (seed {seed})"
    x, y = Axis("character that was read"), Axis("character that is read")
    return [Chart("attention", title, x, y, (marks,))]


study(
    Study(
        "kerg/fig7",
        "Figure 7",
        "attention of a network that reads characters of PTB",
        jobs,
        cells,
        charts,
        claims=sparse_attention(STEPS),
        published=table(("MemRNN",), COLUMNS, note="a heat map without numbers"),
        settings=settings(
            model=("MemRNN, Hénaff's V", "ours", "the paper says full attention"),
            steps=(STEPS, "paper"),
            n=(1024, "code"),
            embedding=(200, "code"),
            batch_size=(128, "code"),
            memory=("emptied at every chunk, h carried on", "code"),
            training=("Adam 3e-4, 5 epochs", "ours", "the code has 100 epochs and a rate that is halved"),
            shown=("the first test chunk; figures over 4", "ours", "not said"),
        ),
        quick=settings(
            n=(64, "ours"), embedding=(32, "ours"), updates=("600, of 16 streams", "ours"), lr=(1e-3, "ours")
        ),
        words="Its caption alone: attention scores on PTB, training with full attention and BPTT of 125.",
        would_change="Longer training: attention is flat at the start and narrows as the network learns.",
        data=("ptb-char",),
    )
)
