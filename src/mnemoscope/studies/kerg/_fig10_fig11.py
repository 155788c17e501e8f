"""Figures 10 and 11: where a network looks that has the short-term buffer alone, on Copy and on Denoise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mnemoscope.report import Axis, Chart, HeatMap, Panels, Points
from mnemoscope.scopes import attention
from mnemoscope.studies import CellValue, Claim, Done, Result, Scale, Study, measure, settings, study, table, train
from mnemoscope.studies.kerg._published import BATCH, N
from mnemoscope.studies.kerg._recall import GAIN, GUESS, TASKS, TaskName, by_us
from mnemoscope.sweeps import Job
from mnemoscope.training import FitConfig, NetworkConfig, RunConfig

NU = 10
T = 100
RELEVANT = (0, 10)
COLUMNS = ("accuracy", "longest lag", "states attended", "beyond the buffer")


def sparse_attention(steps: int) -> tuple[Claim, ...]:
    """What is claimed of full attention over `steps` states; nothing of it counts for a network that hardly learned.

    The paper shows a heat map and says nothing about it: the claims are ours.
    """
    cell = ("MemRNN", "states attended by the last step")
    return (
        Claim(
            "the last step attends to fewer than half of the states",
            *cell,
            at_most=steps / 2,
            scale="full",
            form="ours",
        ),
        Claim(
            "a step looks further back than one step on average",
            "MemRNN",
            "mean lag",
            at_least=1.0,
            scale="full",
            form="ours",
        ),
        Claim(
            "attention is no longer flat: the last step attends to fewer than 95 % of the states",
            *cell,
            at_most=0.95 * steps,
            scale="quick",
            form="ours",
            headline=False,
        ),
    )


def look(run: Result, *, sequences: int) -> Mapping[str, Any]:
    """Where the best weights of a run look on test sequences: figures of the scope, and the map of the first."""
    inputs, _ = run.run.config.task.batch(0, sequences, "test")
    found = attention(run.run.model("best"), inputs)
    return {
        "longest_lag": found.figures["longest_lag"],
        "mean_lag": found.figures["mean_lag"],
        "states_attended": found.figures["states_attended"],
        "states_attended_last": float(found.series["states_attended"][-1]),
        "beyond_buffer": found.figures.get("beyond_buffer", float("nan")),
        "map": found.series["attention_of_sequence"].astype(np.float32),
        "inputs": inputs[:, 0].numpy(),
    }


def map_and_sequence(key: str, title: str, found: Result, sequence: Chart) -> Panels:
    """Return the map of who attends to whom beside the sequence that was read."""
    weights = found["map"].astype(float)
    seen = np.where(weights > 0, weights, np.nan)
    steps = np.arange(len(weights), dtype=float)
    where = Chart(
        f"{key}-map",
        "Attention",
        Axis("state made at step"),
        Axis("attending step"),
        (HeatMap("attention", steps, steps, seen),),
    )
    return Panels(key, title, (where, sequence), columns=2, share_x=False, share_y=False)


def figure(number: int, task: TaskName) -> None:
    """Register the figure of one task."""

    def jobs(scale: Scale, seed: int) -> dict[Any, Job]:
        found: dict[Any, Job] = {}
        for rho in RELEVANT:
            if scale == "quick":
                network = NetworkConfig("RelRNN", N, readout_gain=GAIN, options={"relevant": rho})
                fit = FitConfig(updates=700, batch_size=32, evaluate_batches=4, checkpoint_every=700, seed=seed)
                config = RunConfig(TASKS[task](T=T, seed=seed), network, fit)
            else:
                config = by_us(task, "RelRNN", T, seed, 6_000, relevant=rho)
            found["run", rho] = train(config)
            found["look", rho] = measure(look, needs=found["run", rho], seconds=3, sequences=8)
        return found

    def cells(scale: Scale, done: Done) -> dict[tuple[str, str], CellValue]:
        found: dict[tuple[str, str], CellValue] = {}
        for rho in RELEVANT:
            if ("look", rho) in done:
                seen, row = done["look", rho], f"rho = {rho}"
                found[row, "accuracy"] = done["run", rho].reached(GUESS)
                found[row, "longest lag"] = seen.figure("longest_lag")
                found[row, "states attended"] = seen.figure("states_attended")
                found[row, "beyond the buffer"] = seen.figure("beyond_buffer")
        return found

    def charts(scale: Scale, done: Sequence[Done]) -> list[Chart | Panels]:
        seen = done[0]["look", 0]
        symbols = seen["inputs"].argmax(-1).astype(float)
        steps = np.arange(len(symbols), dtype=float)
        sequence = Chart(
            "sequence",
            "The sequence",
            Axis("step"),
            Axis("symbol; 0: blank, 9: marker"),
            (Points("symbol", steps, symbols),),
        )
        title = f"Attention over the last {NU} states alone (seed {done[0].seed})"
        return [map_and_sequence("attention", title, seen, sequence)]

    name = task.capitalize()
    study(
        Study(
            f"kerg/fig{number}",
            f"Figure {number}",
            f"attention over the short-term buffer alone, {name}",
            jobs,
            cells,
            charts,
            claims=(
                Claim("nothing beyond the buffer is attended", "rho = 0", "beyond the buffer", at_most=0.0),
                Claim(f"no step looks further back than {NU - 1}", "rho = 0", "longest lag", at_most=NU - 1),
                Claim(
                    "with rho = 10 older states are attended, and accuracy is higher",
                    check=lambda found: (
                        found["rho = 10", "accuracy"] > found["rho = 0", "accuracy"]
                        and found["rho = 10", "beyond the buffer"] > 0
                    ),
                ),
            ),
            published=table([f"rho = {rho}" for rho in RELEVANT], COLUMNS, note="a heat map without numbers"),
            settings=settings(
                nu=(NU, "ours", "not said; 10 is Table 6's and 7's"),
                rho=("0, beside 10", "ours", "the paper shows the buffer alone"),
                T=(T, "code", "120 columns in the plotting code"),
                n=(N, "code"),
                training=(f"Adam 1e-3, gain {GAIN:g}, at most 6,000 updates of {BATCH}", "ours"),
                shown=("the first test sequence; figures over 8", "ours", "not said"),
            ),
            quick=settings(updates=("700 of 32", "ours")),
            words=f"Its caption alone: attention on {name} when only doing attention over the Short Term Buffer.",
            would_change="Nothing can: with rho = 0 the memory holds the last nu states and no others.",
        )
    )


figure(10, "copy")
figure(11, "denoise")
