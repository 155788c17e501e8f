"""Section 7.2: a stable RNN predicts words as well as an unconstrained one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from mnemoscope.report import Axis, Chart
from mnemoscope.studies import (
    Cells,
    CellValue,
    Claim,
    Done,
    Result,
    Scale,
    Study,
    band,
    measure,
    settings,
    study,
    table,
    train,
)
from mnemoscope.studies.miller._language import EPOCHS, PRECISION, language_model, quick_name, test_perplexity
from mnemoscope.sweeps import Job
from mnemoscope.training import NetworkConfig

STABLE = {"unconstrained": None, "stable": 1.0}
PERPLEXITY, NORM = "test perplexity", "||W||"
PUBLISHED = {"unconstrained": 146.7, "stable": 143.5}
NETWORK = NetworkConfig("RNN", 256, embedding=1024, dropout=0.25, init="uniform")


def jobs(scale: Scale, seed: int) -> dict[Any, Job]:
    found: dict[Any, Job] = {}
    for name, stable in STABLE.items():
        config = language_model(scale, NETWORK, chunk=35, lr=2.0, seed=seed, quick_updates=800, stable=stable)
        found[name] = train(config)
        found[name, "tested"] = measure(tested, needs=found[name], seconds=4 if scale == "quick" else 160)
    return found


def tested(run: Result) -> Mapping[str, Any]:
    """The perplexity of the best weights on the test text, and the largest singular value of W."""
    W = run.run.model("best").state_dict()["layer.weight_hh_l0"]
    return {"perplexity": test_perplexity(run), "norm": float(torch.linalg.matrix_norm(W.double(), 2))}


def cells(scale: Scale, done: Done) -> dict[tuple[str, str], CellValue]:
    found: dict[tuple[str, str], CellValue] = {}
    for name in STABLE:
        if (name, "tested") not in done:
            continue
        result = done[name, "tested"]
        found[quick_name(scale, name), PERPLEXITY] = result.figure("perplexity", "infinity")
        found[quick_name(scale, name), NORM] = result.figure("norm")
    return found


def charts(scale: Scale, done: Sequence[Done]) -> list[Chart]:
    lines = [
        band(name, {one.seed: one[name].curve("perplexity") for one in done if name in one}, number)
        for number, name in enumerate(STABLE)
        if any(name in one for one in done)
    ]
    y = Axis("held-out perplexity", log=True, switch=True)
    return [Chart("perplexity", "Perplexity while learning", Axis("updates"), y, tuple(lines))]


def _perplexities_are_near(scale: Scale) -> Callable[[Cells], bool]:
    def check(cells: Cells) -> bool:
        stable, free = (cells[quick_name(scale, name), PERPLEXITY] for name in ("stable", "unconstrained"))
        return abs(math.log(stable) - math.log(free)) <= 0.03

    return check


def _claims(scale: Scale) -> tuple[Claim, ...]:
    """What is asked at either size."""
    stable, free = quick_name(scale, "stable"), quick_name(scale, "unconstrained")
    return (
        Claim("the two perplexities are within 3 %", check=_perplexities_are_near(scale), scale=scale),
        Claim("the stable one's ||W|| is at most 1", stable, NORM, at_most=1 + 1e-6, scale=scale),
        Claim("the other's ||W|| is above 1: the constraint matters", free, NORM, at_least=1.0, scale=scale),
    )


def _surprise(quick: Cells, full: Cells) -> str:
    ours = {name: full[name, PERPLEXITY] for name in STABLE}
    by_bound, published = (_percent(one["stable"] / one["unconstrained"]) for one in (ours, PUBLISHED))
    above = " and ".join(_percent(ours[name] / PUBLISHED[name]) for name in STABLE)
    return (
        f"The bound on ||W|| changes the perplexity by {by_bound}, in the paper by {published}. Against the published "
        f"perplexities ours are {above}, unconstrained and stable."
    )


def _percent(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.1f} %"


study(
    Study(
        "miller/claim-stable",
        "Section 7.2",
        "a stable RNN predicts WikiText-2 as well as an unconstrained one",
        jobs,
        cells,
        charts,
        claims=(
            *_claims("quick"),
            *_claims("full"),
            Claim(
                "the unconstrained one is at 146.7, within 5 %",
                "unconstrained",
                PERPLEXITY,
                at_least=0.95 * PUBLISHED["unconstrained"],
                at_most=1.05 * PUBLISHED["unconstrained"],
                scale="full",
            ),
        ),
        published=table(
            tuple(STABLE),
            (PERPLEXITY, NORM),
            [[PUBLISHED[name], None] for name in STABLE],
            row_title="network",
            within=0.05,
        ),
        settings=settings(
            network=("tanh RNN, n = 256, embedding 1024", "paper"),
            dropout=(0.25, "paper"),
            lr=(2, "paper", "the first one"),
            epochs=(EPOCHS, "paper"),
            batch=("20 streams, 35 steps", "paper"),
            stable=("||W|| <= 1, projected after every update", "paper"),
            optimizer=("SGD; lr / 4 when the held-out loss does not fall", "code", "word_language_model"),
            clip=(0.25, "code"),
            init=("embedding and decoder uniform in [-0.1, 0.1]", "code"),
            evaluation=("test text in 10 streams", "code"),
            weights=("the best on the validation text", "code"),
            precision=PRECISION,
        ),
        quick=settings(
            words=("the 2,000 most frequent", "ours"),
            n=("64, embedding 64, no dropout", "ours"),
            updates=(800, "ours"),
        ),
        words="At convergence there is little difference between the two models: 146.7 unconstrained, 143.5 stable.",
        errata=(
            "The text gives 146.7 for this RNN (n = 256, dropout 0.25) and for that of Figure 2 (n = 1500, dropout "
            "0.65): the same number for two networks.",
        ),
        would_change="More seeds: the paper has one run of each, with settings chosen for the unconstrained one.",
        surprise=_surprise,
        data=("wikitext-2",),
    )
)
