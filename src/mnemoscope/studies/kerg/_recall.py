"""Copy and Denoise as Kerg et al. ran them: the runs that Table 5, the figures and the transfer share."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch

from mnemoscope.report import Axis, Chart, Marker, Panels
from mnemoscope.studies import Cells, Done, Names, Note, Result, Scale, band
from mnemoscope.studies.kerg._published import BATCH, BUDGET, N, printed
from mnemoscope.tasks import Copy, Denoise
from mnemoscope.training import FitConfig, NetworkConfig, RunConfig, evaluate

LENGTHS = (100, 200, 300, 500, 1000, 2000)
MODELS = {
    "LSTM": "LSTM",
    "orth-RNN": "OrthRNN",
    "expRNN": "ExpRNN",
    "MemRNN": "MemRNN",
    "SAB": "SAB",
    "RelRNN": "RelRNN",
    "RelLSTM": "RelLSTM",
}
"""The paper's names of the models, and ours."""
PRINTED = ("LSTM", "OrthRNN", "ExpRNN")  # have rows in Table 6 that Table 5 follows
OF_BUDGET = f"of {BUDGET:,} updates"
GUESS = 1 / 8  # the accuracy of a run that diverged before it was evaluated
GAIN = 6.0  # of the read-out, with which attentive layers learn Copy faster
LOWER_RATE = 3e-4  # where 1e-3 did not learn
CLIP = 12.0  # times 10/(T + 20), the share of steps that ask for something: 1 at T = 100

TaskName = Literal["copy", "denoise"]
TASKS: dict[TaskName, type[Copy | Denoise]] = {"copy": Copy, "denoise": Denoise}

# Updates of 64 sequences, by T, where a run is not solved before: two to five times what was seen to be enough on Copy,
# and for an LSTM from T = 500 on, which learns nothing, fewer than the paper's.
_COPY_BUDGET = {
    "LSTM": dict.fromkeys((100, 200, 300), BUDGET) | dict.fromkeys((500, 1000, 2000), 6_000),
    "OrthRNN": dict.fromkeys((100, 200, 300, 500), BUDGET) | dict.fromkeys((1000, 2000), 15_000),
    "ExpRNN": dict.fromkeys(LENGTHS, BUDGET),
    "MemRNN": dict.fromkeys((100, 200, 300, 500), 6_000) | {1000: 3_000, 2000: 2_000},
    "SAB": dict.fromkeys((100, 200, 300), 15_000) | {500: 12_000, 1000: 10_000, 2000: 8_000},
    "RelRNN": dict.fromkeys((100, 200, 300), 6_000) | dict.fromkeys((500, 1000, 2000), 8_000),
    "RelLSTM": dict.fromkeys((100, 200, 300), 12_000) | dict.fromkeys((500, 1000, 2000), 8_000),
}
_DENOISE_BUDGET = {100: BUDGET, 300: 20_000, 1000: 12_000}


def by_the_paper(task: TaskName, model: str, T: int, seed: int, updates: int, **options: Any) -> RunConfig:
    """Return a run by its row of Table 6 or 7, in batches of 64."""
    row = printed("6" if task == "copy" else "7", model)
    fit = row.fit(updates=updates, batch_size=BATCH, seed=seed, **_watched(T))
    return RunConfig(TASKS[task](T=T, seed=seed), row.network(**options), fit)


def by_us(
    task: TaskName,
    model: str,
    T: int,
    seed: int,
    updates: int,
    lr: float = 1e-3,
    skip_nonfinite: int = 0,
    **options: Any,
) -> RunConfig:
    """Return a run by settings that were seen to work: Adam, a read-out with a gain, a clip that falls with T."""
    fit = FitConfig(
        updates=updates,
        batch_size=BATCH,
        lr=lr,
        clip=CLIP,
        scale_clip=True,
        skip_nonfinite=skip_nonfinite,
        seed=seed,
        **_watched(T),
    )
    network = NetworkConfig(model, N, readout_gain=GAIN, options=options)
    return RunConfig(TASKS[task](T=T, seed=seed), network, fit)


def _watched(T: int) -> dict[str, Any]:
    """How often a run is looked at: an evaluation costs about as much as two updates."""
    return {"evaluate_every": 100 if T < 500 else 200, "evaluate_batches": 4, "log_every": 50}


def copy_run(model: str, T: int, seed: int) -> RunConfig:
    """Return the run of a cell of Table 5. Hénaff's V for long T, torch's for short ones, as was seen to work."""
    updates = _COPY_BUDGET[model][T]
    if model in PRINTED:
        return by_the_paper("copy", model, T, seed, updates)
    if model == "MemRNN":
        return by_us("copy", model, T, seed, updates, recurrent_init="henaff")
    if model == "RelRNN":
        return by_us(
            "copy",
            model,
            T,
            seed,
            updates,
            lr=1e-3 if T < 2000 else 5e-4,
            recurrent_init="uniform" if T < 500 else "henaff",
        )
    return by_us("copy", model, T, seed, updates)


def copy_run_again(model: str, T: int, seed: int) -> RunConfig:
    """Return another run of a cell of Table 5, by settings chosen from the curves of the first, which did not learn it.

    RelLSTM and MemRNN: at 1e-3 the state becomes chaotic while it reads blanks, from one update to the next; RelLSTM's
    gradient was then 1e65 at T = 500 in float64, which float32 cannot hold. A lower rate is to stay clear of that, and
    a single gradient that overflows does not end the run. SAB: it was still learning when its budget was spent.
    """
    if model == "SAB":
        return by_us("copy", model, T, seed, BUDGET)
    options = {"recurrent_init": "henaff"} if model == "MemRNN" else {}
    updates = 12_000 if model == "RelLSTM" else 2 * _COPY_BUDGET[model][T]
    return by_us("copy", model, T, seed, updates, lr=LOWER_RATE, skip_nonfinite=10, **options)


def denoise_run_again(T: int, seed: int) -> RunConfig:
    """Return another run of RelRNN on Denoise, by a lower rate: by 1e-3 it diverged at T = 300."""
    return by_us("denoise", "RelRNN", T, seed, _DENOISE_BUDGET[T], lr=LOWER_RATE, skip_nonfinite=10, relevant=20)


def denoise_run(model: str, T: int, seed: int) -> RunConfig:
    """Return a run on Denoise: by Table 7 where a row can be run, else by us. RelRNN keeps 20 states."""
    updates = _DENOISE_BUDGET[T]
    if model in ("LSTM", "OrthRNN", "ExpRNN", "GORU"):
        return by_the_paper("denoise", model, T, seed, updates)
    if model == "RelRNN":
        return by_us("denoise", model, T, seed, updates, relevant=20)
    if model == "MemRNN":
        return by_us("denoise", model, T, seed, updates, recurrent_init="henaff")
    return by_us("denoise", model, T, seed, updates)


def quick_run(task: TaskName, model: str, seed: int, T: int = 100, updates: int = 1_500) -> RunConfig:
    """Return a run for one core and less than a minute: batches of 32, our settings for every model."""
    fit = FitConfig(updates=updates, batch_size=32, evaluate_batches=4, checkpoint_every=1_500, seed=seed)
    return RunConfig(TASKS[task](T=T, seed=seed), NetworkConfig(model, N, readout_gain=GAIN), fit)


def accuracy_on_test(run: Result, *, T: int, batches: int = 4) -> Mapping[str, Any]:
    """The accuracy of a run's best weights over the last ten steps, on batches of 64 of the test split at length T."""
    (accuracy,) = accuracy_by_length(run, lengths=[T], batches=[batches])["accuracy"]
    return {"accuracy": accuracy}


def accuracy_by_length(run: Result, *, lengths: Sequence[int], batches: Sequence[int]) -> Mapping[str, Any]:
    """The same at several lengths, each on its own number of batches."""
    model = run.run.model("best").to("cuda" if torch.cuda.is_available() else "cpu")
    tasks = [run.run.config.task.with_length(T) for T in lengths]
    found = [
        evaluate(model, task, batch_size=BATCH, batches=count, split="test")["accuracy"]
        for task, count in zip(tasks, batches, strict=True)
    ]
    return {"lengths": list(lengths), "accuracy": found}


def loss_share(scale: Scale, run: Result) -> float | Note:
    """Return the lowest held-out loss of a run on Copy or Denoise, as a share of the loss without a memory.

    One of the full size says so if it had fewer updates than the paper's.
    """
    _, loss = run.curve("loss")
    if run.diverged_at_once or not np.isfinite(loss).any():
        return Note("diverged", "infinity")
    baseline = run.run.config.task.baseline
    assert baseline
    share = float(np.nanmin(loss)) / baseline
    remarks = end_of(run) if scale == "full" else []
    return Note(", ".join(remarks), share, failed=False) if remarks else share


def end_of(run: Result) -> list[str]:
    """Return what there is to say of how a run ended: that it diverged, or had fewer updates than the paper's."""
    updates = run.summary["updates"]
    if run.diverged:
        return [f"diverged at update {updates:,}"]
    if run.summary["outcome"] == "solved" or updates >= BUDGET:
        return []
    return [f"{updates:,} {OF_BUDGET}"]


def unlearned(
    row: Names, column: Names, at_least: float = -math.inf, at_most: float = math.inf
) -> Callable[[Cells], bool | None]:
    """A check that something is not learned. It stays open while a run had fewer updates than the paper's."""

    def check(found: Cells) -> bool | None:
        if not all(at_least <= value <= at_most for value in found.select(row, column)):
            return False
        cells = [found.value(key) for key in found.keys_of(row, column)]
        return None if any(isinstance(cell, Note) and OF_BUDGET in cell.words for cell in cells) else True

    return check


def curve_panels(
    key: str, title: str, done: Sequence[Done], names: Mapping[str, str], T: Sequence[int]
) -> list[Panels]:
    """Return one panel a model: held-out loss against updates, a line for each T; runs are under (task, model, T).

    What was not run is left out; nothing is returned if that is all. A length has the same color in every panel.
    """
    task = key.split("-")[0]
    panels = []
    drawn = {length for one in done for (kind, model, length) in one if kind == task and model in names.values()}
    if len(T) > 1 and len(drawn) == 1:  # so far: there is no legend then
        title = f"{title}, T = {drawn.pop()}"
    for name, model in names.items():
        lines = []
        for number, length in enumerate(T):
            runs = {one.seed: one[task, model, length] for one in done if (task, model, length) in one}
            if runs:
                curves = {seed: run.curve("loss") for seed, run in runs.items()}
                lines.append(band(f"T = {length}", curves, number))
        if lines:
            axes = Axis("updates"), Axis("cross-entropy", log=True)
            panels.append(Chart(f"{key}-{_slug(model)}", name, *axes, tuple(lines)))
    return [Panels(key, title, tuple(panels), columns=min(4, len(panels)), share_x=False)] if panels else []


def _slug(words: str) -> str:
    return re.sub(r"\W+", "-", words)


def accuracy_chart(key: str, title: str, done: Sequence[Done], runs: Mapping[str, Any]) -> Chart:
    """Return held-out accuracy against updates, a line for each run; `runs` has their keys by name."""
    lines = [
        band(name, {one.seed: one[at].curve("accuracy") for one in done}, number)
        for number, (name, at) in enumerate(runs.items())
    ]
    return Chart(
        key,
        title,
        Axis("updates"),
        Axis("accuracy", share=True),
        tuple(lines),
        (Marker("y", GUESS, "a guess among eight", left=True),),
    )
