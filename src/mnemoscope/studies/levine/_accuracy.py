"""Ours: does depth help to compare the start of a sequence with its end, at equal numbers of parameters?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mnemoscope.report import Axis, Chart, Panels
from mnemoscope.studies import (
    Cells,
    CellValue,
    Claim,
    Done,
    Note,
    Scale,
    Study,
    cell_line,
    settings,
    study,
    table,
    train,
)
from mnemoscope.sweeps import Job
from mnemoscope.tasks import StartEnd
from mnemoscope.training import FitConfig, NetworkConfig, RunConfig

MODELS = ("RAC", "RNN")
WIDTHS = {1: 48, 2: 28, 3: 21}  # n^2 (2 L - 1) is about the same
GUESS, SLACK = 0.5, 0.02
SPANS: dict[Scale, tuple[int, ...]] = {"quick": (2, 4), "full": (2, 4, 6, 8, 10)}
UPDATES: dict[Scale, int] = {"quick": 800, "full": 20_000}


def jobs(scale: Scale, seed: int) -> dict[Any, Job]:
    return {
        (model, depth, span): train(_config(model, depth, span, scale, seed))
        for model in MODELS
        for depth in WIDTHS
        for span in SPANS[scale]
    }


def _config(model: str, depth: int, span: int, scale: Scale, seed: int) -> RunConfig:
    network = NetworkConfig(model, WIDTHS[depth], depth, init="torch")
    fit = FitConfig(updates=UPDATES[scale], batch_size=64, lr=1e-3, evaluate_every=200, seed=seed)
    return RunConfig(StartEnd(T=2 * span, span=span, symbols=2, seed=seed), network, fit)


def _column(model: str, depth: int) -> str:
    return f"{model}, depth {depth}"


def cells(scale: Scale, done: Done) -> dict[tuple[str, str], CellValue]:
    return {(str(span), _column(model, depth)): run.reached(GUESS) for (model, depth, span), run in done.items()}


def charts(scale: Scale, done: Sequence[Done]) -> list[Chart | Panels]:
    return []  # the only one is made from the cells


def by_span(found: Mapping[int, Cells]) -> list[Chart | Panels]:
    """The best accuracy against the span, a line for each depth; a run that diverged at once has that of a guess."""
    drawn = []
    spans = sorted({span for size in SPANS.values() for span in size})
    for model in MODELS:
        lines = []
        for number, depth in enumerate(WIDTHS):
            at = {span: (str(span), _column(model, depth)) for span in spans}
            lines.append(cell_line(f"depth {depth}", found, at, number))
        known = tuple(line for line in lines if line.curves)
        drawn.append(Chart(model, model, Axis("span"), Axis("best held-out accuracy", share=True), known))
    return [Panels("accuracy", "Accuracy on Start-End against the span", tuple(drawn), 2)]


def _deeper_is_as_good(scale: Scale, model: str) -> Callable[[Cells], bool]:
    """A check: at every span the better of depth 2 and 3 is at most SLACK below depth 1."""

    def check(cells: Cells) -> bool:
        shallow, *deeper = ([cells[span, _column(model, depth)] for span in SPANS[scale]] for depth in WIDTHS)
        return all(max(deep) >= flat - SLACK for flat, *deep in zip(shallow, *deeper, strict=True))

    return check


def _claims(scale: Scale) -> tuple[Claim, ...]:
    """What is asked of the spans of either size."""
    return tuple(
        Claim(
            f"a {model} of depth 2 or 3 is as accurate as the shallow one at every span, up to {100 * SLACK:.0f} %",
            check=_deeper_is_as_good(scale, model),
            scale=scale,
            form="ours",
            headline=model == "RAC",
        )
        for model in MODELS
    )


def _surprise(quick: Cells, full: Cells) -> str:
    """What is to be said of the circuits that diverged at once; nothing if none did."""
    at_once = [span for span in SPANS["full"] if isinstance(full.value((span, _column("RAC", 3))), Note)]
    if not at_once:
        return ""
    return (
        f"A deep circuit is a polynomial whose degree grows like T^(L-1): of depth 3 it diverges at its first update "
        f"from span {at_once[0]} on, while the shallow one gets {100 * full[10, _column('RAC', 1)]:.0f} % at span 10."
    )


study(
    Study(
        "levine/accuracy",
        "beside Theorem 1",
        "accuracy of RAC and RNN of depth 1 to 3 on Start-End against the span",
        jobs,
        cells,
        charts,
        claims=(
            Claim("every model learns span 2", row=2, at_least=0.99, scale="quick", form="ours"),
            *_claims("quick"),
            *_claims("full"),
        ),
        published=table(
            SPANS["full"],
            [_column(model, depth) for model in MODELS for depth in WIDTHS],
            row_title="span",
            note="not in the paper",
            percent=True,
        ),
        settings=settings(
            T=("2 span", "ours"),
            symbols=(2, "ours"),
            widths=(WIDTHS, "ours", "about equal numbers of parameters"),
            updates=(UPDATES["full"], "ours"),
            batch_size=(64, "ours"),
            lr=("Adam 1e-3", "ours"),
        ),
        quick=settings(spans=(SPANS["quick"], "ours"), updates=(UPDATES["quick"], "ours")),
        words="The paper proves that depth raises the Start-End rank; it trains nothing.",
        derived_charts=by_span,
        would_change="Other widths, other initial weights, longer training, or more symbols.",
        surprise=_surprise,
        ours=True,
    )
)
