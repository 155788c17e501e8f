"""Trained on Copy at T = 100, tested at up to T = 5000 (of the main text; settings from the authors' code)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mnemoscope.report import Axis, Chart, Marker
from mnemoscope.studies import (
    Cells,
    CellValue,
    Claim,
    Done,
    Names,
    Note,
    Result,
    Scale,
    Study,
    cell_line,
    measure,
    settings,
    study,
    table,
    train,
)
from mnemoscope.studies.kerg._recall import GUESS, MODELS, accuracy_by_length, by_us, copy_run, quick_run
from mnemoscope.sweeps import Job

# Lengths, and batches of 64 that are tested: at T = 100 as many as in Table 5, fewer of longer sequences.
BATCHES = {100: 4, 200: 2, 400: 2, 1000: 2, 2000: 2, 5000: 1}
QUICK_BATCHES = {100: 4, 200: 1, 400: 1, 1000: 1, 2000: 1}
QUICK_MODELS = ("ExpRNN", "OrthRNN", "RelRNN")
HENAFF = "RelRNN, Hénaff's V"
COLUMNS = {**MODELS, HENAFF: HENAFF}


def jobs(scale: Scale, seed: int) -> dict[Any, Job]:
    batches = QUICK_BATCHES if scale == "quick" else BATCHES
    if scale == "quick":
        runs = {model: quick_run("copy", model, seed) for model in QUICK_MODELS}
    else:
        runs = {model: copy_run(model, 100, seed) for model in MODELS.values()}
        runs[HENAFF] = by_us("copy", "RelRNN", 100, seed, 6_000, recurrent_init="henaff")
    found: dict[Any, Job] = {}
    for model, config in runs.items():
        found["copy", model] = train(config)
        found["test", model] = measure(
            accuracy_by_length,
            needs=found["copy", model],
            seconds=5,
            lengths=list(batches),
            batches=list(batches.values()),
        )
    return found


def cells(scale: Scale, done: Done) -> dict[tuple[Any, str], CellValue]:
    names = {model: name for name, model in COLUMNS.items()}
    found: dict[tuple[Any, str], CellValue] = {}
    for (kind, model), result in done.items():
        if kind == "test":
            found |= {(T, names[model]): accuracy for T, accuracy in _accuracies(scale, done["copy", model], result)}
    return found


def _accuracies(scale: Scale, run: Result, test: Result) -> list[tuple[int, CellValue]]:
    """Lengths, and the accuracy at each; a guess if the run diverged before it was evaluated."""
    if run.diverged_at_once:
        return [(T, Note("diverged", GUESS)) for T in (QUICK_BATCHES if scale == "quick" else BATCHES)]
    return list(zip(test["lengths"], test["accuracy"], strict=True))


def by_length(found: Mapping[int, Cells]) -> list[Chart]:
    """Accuracy against the length of the test; a failed run guesses."""
    lines = []
    for number, name in enumerate(COLUMNS):
        at = {T: (str(T), name) for T in LENGTHS}
        if any(key in one for key in at.values() for one in found.values()):
            lines.append(cell_line(name, found, at, number))
    marker = Marker("y", GUESS, "a guess among eight", left=True)
    title = "Trained on Copy at T = 100, tested at other lengths"
    return [Chart("transfer", title, Axis("T", log=True), Axis("accuracy", share=True), tuple(lines), (marker,))]


def _falls(row: Names, column: Names) -> Callable[[Cells], bool | None]:
    """A check that what was learned at T = 100 is lost at other lengths; open of what was not learned."""

    def check(found: Cells) -> bool | None:
        if min(found.select(100, column)) < 0.9:
            return None
        return max(found.select(row, column)) <= 0.5

    return check


def _surprise(quick: Cells, full: Cells) -> str:
    short, long = (f"{100 * full[T, HENAFF]:.0f} %" for T in (100, 400))
    carried = f"{100 * full[5000, 'RelRNN']:.1f} %"
    return (
        f"RelRNN carries over, {carried} at T = 5000, but only from a V that does not rotate: with the code's Hénaff "
        f"start it has {short} at T = 100 and {long} at T = 400."
    )


QUICK_LENGTHS, LENGTHS = tuple(QUICK_BATCHES), tuple(BATCHES)
OTHERS = ("orth-RNN", "expRNN", "MemRNN")

study(
    Study(
        "kerg/transfer-copy",
        "main text, by the authors' code (transfer.py)",
        "trained on Copy at T = 100, tested at longer T",
        jobs,
        cells,
        derived_charts=by_length,
        claims=(
            Claim("RelRNN keeps 99 % to T = 2000", QUICK_LENGTHS, "RelRNN", at_least=0.99, scale="quick"),
            Claim(
                "orth-RNN and expRNN learn T = 100, and fall below 50 % at T = 400 and beyond",
                check=_falls(QUICK_LENGTHS[2:], ("orth-RNN", "expRNN")),
                scale="quick",
            ),
            Claim("RelRNN keeps 99 % to T = 5000", LENGTHS, "RelRNN", at_least=0.99, scale="full"),
            Claim("RelLSTM keeps 99 % to T = 5000", LENGTHS, "RelLSTM", at_least=0.99, scale="full"),
            Claim(
                "orth-RNN, expRNN and MemRNN learn T = 100, and fall below 50 % at T = 5000",
                check=_falls(5000, OTHERS),
                scale="full",
            ),
            Claim(
                "with Hénaff's V, the code's, RelRNN learns T = 100, and falls below 50 % from T = 400 on",
                check=_falls(LENGTHS[2:], HENAFF),
                scale="full",
                form="ours",
                headline=False,
            ),
        ),
        published=table(
            LENGTHS, tuple(MODELS), row_title="T", column_title="model", percent=True, note="not known to us"
        ),
        settings=settings(
            runs=("those of Table 5 at T = 100", "ours"),
            T=("100, tested to 5000", "code"),
            V=("RelRNN: torch's uniform", "ours", "the last column has Hénaff's, as the code does"),
            test=("256 sequences at T = 100, 128 to T = 2000, 64 at T = 5000", "ours", "the code has batches of 10"),
        ),
        quick=settings(runs=("those of Table 5's quick version", "ours"), T=("tested to 2000", "ours")),
        words="The paper's claim is that screened memories carry over to lengths that were not trained on.",
        errata=(
            "On Copy the relevant set takes the first rho = 10 states that leave the buffer; nothing pushes them out, "
            "and nothing depends on T. The task says little about the screening; Denoise does.",
        ),
        would_change="The main text's numbers, which are not in our copy of the paper.",
        surprise=_surprise,
    )
)
