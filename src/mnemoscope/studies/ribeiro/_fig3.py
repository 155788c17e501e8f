"""Figure 3: accuracy while an LSTM learns widely separated symbols, where it ends well (a) and badly (b)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np

from mnemoscope.report import Axis, Chart, Line
from mnemoscope.studies import (
    Cells,
    CellValue,
    Claim,
    Done,
    Result,
    Scale,
    Study,
    band,
    cell_words,
    settings,
    study,
    table,
)
from mnemoscope.studies.ribeiro._separated_symbols import (
    ALL_OF_CODE,
    CLIP_ERROR,
    CODE,
    FEW_WORDS,
    QUICK,
    SEEDS_OF_CODE,
    SETTINGS,
    TEXT,
    Scenario,
    accuracy_cells,
    run_of_code,
    runs,
)
from mnemoscope.sweeps import Job
from mnemoscope.training import FitConfig

TRAIN, HELD_OUT, RISE = "training accuracy", "held-out accuracy", "share of the run from 50 % to 95 %"
OF_CODE = settings(
    all_of_code=(
        "T = 200, symbols from steps 9 and 39 on, up to 10,000 epochs, rate x 0.25 at the milestones, clip 0.0025",
        "code",
        f"seeds 0 to {SEEDS_OF_CODE - 1}, stopped at 99 % of held-out data",
    )
)
ENOUGH_SEEDS = 10  # after which an ending that was never seen is said not to occur


def cells(scale: Scale, done: Done) -> dict[tuple[str, str], CellValue]:
    found: dict[tuple[str, str], CellValue] = {}
    for name, run in done.items():
        found[name, TRAIN], found[name, HELD_OUT] = accuracy_cells(run)
    return found


def cells_with_rise(scale: Scale, done: Done) -> dict[tuple[str, str], CellValue]:
    return cells(scale, done) | {(name, RISE): _rise(run) for name, run in done.items()}


def _rise(run: Result) -> float:
    """The share of the updates up to 95 % held-out accuracy in which it went from 50 %; NaN if it never got there."""
    updates, accuracy = run.curve("accuracy")
    high = np.nonzero(accuracy >= 0.95)[0]
    if not len(high):
        return np.nan
    low = np.nonzero(accuracy[: high[0]] < 0.5)[0]
    start = updates[low[-1]] if len(low) else 0.0
    return float((updates[high[0]] - start) / updates[high[0]])


def accuracy_chart(done: Sequence[Done], name: str) -> Chart:
    """Return both accuracies of a run against epochs."""
    lines: list[Line] = []
    for number, (split, words) in enumerate((("train", "training"), ("valid", "held out"))):
        curves = {one.seed: _by_epoch(one[name], split) for one in done if name in one}
        lines.append(band(words, curves, number))
    key, title = f"accuracy-{name.replace(' ', '-')}", f"Accuracy while learning ({name})"
    return Chart(key, title, Axis("epochs"), Axis("accuracy", share=True), tuple(lines))


def _by_epoch(run: Result, split: str) -> tuple[np.ndarray, np.ndarray]:
    updates, accuracy = run.curve("accuracy", split)
    fit = run.run.config.fit
    assert isinstance(fit, FitConfig)
    return updates / (run.run.task.steps_per_epoch(fit.batch_size) or 1), accuracy


def _abrupt(seeds: Sequence[Cells]) -> bool | None:
    """Whether half of the runs that got to 95 % went there from 50 % in a fifth of the time; open if none got there."""
    rises = [one[name, RISE] for one in seeds for name in (TEXT, CODE, ALL_OF_CODE) if (name, RISE) in one]
    return median(rises) <= 0.2 if rises else None


def _good(on_train: float, held_out: float) -> bool:
    return min(on_train, held_out) >= 0.99


def _bad(on_train: float, held_out: float) -> bool:
    return on_train >= 0.9 and held_out <= 0.3


def _occur(
    *endings: Callable[[float, float], bool], names: Sequence[str] = (TEXT, CODE), enough: int = ENOUGH_SEEDS
) -> Callable[[Sequence[Cells]], bool | None]:
    """A check that runs end in each of some ways, from any seed; open while they do not and more seeds are to be run.

    An ending is a function of the accuracies on the training data and held out.
    """

    def check(seeds: Sequence[Cells]) -> bool | None:
        known = [one for one in seeds if all((name, TRAIN) in one for name in names)]
        accuracies = [(one[name, TRAIN], one[name, HELD_OUT]) for one in known for name in names]
        found = all(any(ending(*pair) for pair in accuracies) for ending in endings)
        return found or (None if len(known) < enough else False)

    return check


def figure(
    part: str,
    scenario: Scenario,
    cells: Callable[[Scale, Done], Mapping[tuple[str, str], CellValue]],
    claims: tuple[Claim, ...],
    words: str,
    surprise: str | Callable[[Cells, Cells], str] = "",
    **published: Any,
) -> None:
    """Register one part of the figure; both look at the same runs of the full size."""

    def jobs(scale: Scale, seed: int) -> dict[Any, Job]:
        found = runs(scale, seed)
        if scale == "quick":
            return {scenario: found[scenario]}
        return {**found, ALL_OF_CODE: run_of_code(seed)} if seed < SEEDS_OF_CODE else dict(found)

    def charts(scale: Scale, done: Sequence[Done]) -> list[Chart]:
        names = (scenario,) if scale == "quick" else (TEXT, CODE, ALL_OF_CODE)
        return [accuracy_chart(done, name) for name in names if any(name in one for one in done)]

    study(
        Study(
            f"ribeiro/fig3{part}",
            f"Figure 3{part}",
            f"accuracy on widely separated symbols, {scenario} scenario",
            jobs,
            cells,
            charts,
            claims=claims,
            published=table((scenario, TEXT, CODE, ALL_OF_CODE), row_title="run", percent=True, **published),
            settings=(*SETTINGS, *OF_CODE),
            quick=QUICK,
            words=words,
            errata=(FEW_WORDS, CLIP_ERROR),
            would_change="More seeds or epochs at the paper's size.",
            surprise=surprise,
        )
    )


def _surprise(quick: Cells, full: Cells) -> str:
    on_train, held_out = (cell_words(full[TEXT, column], percent=True) for column in (TRAIN, HELD_OUT))
    short = cell_words(quick["good", HELD_OUT], percent=True)
    return (
        f"At the paper's size the LSTM learns by heart: in the median {on_train} on training and {held_out} on "
        "held-out sequences, where the paper shows both a run like that and one with 100 % on both. With T = 60 it has "
        f"{short} on held-out ones."
    )


figure(
    "a",
    "good",
    cells_with_rise,
    (
        Claim("99 % on training and held-out data", "good", (TRAIN, HELD_OUT), at_least=0.99, scale="quick"),
        Claim(
            "abrupt: from 50 to 95 % in a fifth of the time, in half of the good runs",
            check=_abrupt,
            over="all",
            scale="full",
        ),
        Claim(
            f"some of {ENOUGH_SEEDS} seeds reaches 99 % on both",
            check=_occur(_good),
            over="all",
            scale="full",
        ),
        Claim(
            f"both scenarios occur in {ENOUGH_SEEDS} seeds: this one, and that of Figure 3b",
            check=_occur(_good, _bad),
            over="all",
            scale="full",
        ),
        Claim(
            "with the clip of the text",
            check=_occur(_good, names=(TEXT,)),
            over="all",
            scale="full",
            headline=False,
        ),
        Claim(
            "with the clip of the code",
            check=_occur(_good, names=(CODE,)),
            over="all",
            scale="full",
            headline=False,
        ),
        Claim(
            "with all settings of the code",
            check=_occur(_good, names=(ALL_OF_CODE,), enough=SEEDS_OF_CODE),
            over="all",
            scale="full",
            headline=False,
        ),
    ),
    "The optimization procedure abruptly finds a solution that has good accuracy on both training and validation.",
    _surprise,
    columns=(TRAIN, HELD_OUT, RISE),
    values=[[1.0, 1.0, None]] * 4,
    note="accuracy around 100 %",
    within=0.01,
)
figure(
    "b",
    "bad",
    cells,
    (
        Claim("90 % on the training data", "bad", TRAIN, at_least=0.9, scale="quick"),
        Claim("no better than guessing on held-out data: 35 %", "bad", HELD_OUT, at_most=0.35, scale="quick"),
        Claim(
            "some seed ends with 90 % on the training data and at most 30 % on held-out data",
            check=_occur(_bad),
            over="all",
            scale="full",
        ),
    ),
    "The convergence is slow and steady towards a solution that has good accuracy on the training set (above 90 %) but "
    "is no better than random guessing on the validation set.",
    columns=(TRAIN, HELD_OUT),
    values=[[0.9, 0.25]] * 4,
    note="above 90 % on training data, below 25 % on held-out data",
    within=0.2,
)
