"""Figure 1a: where the orbits of the chaotic LSTM end up, as its weights are scaled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from mnemoscope.report import Axis, Chart, Marker, Points, Style
from mnemoscope.scopes import attractors, lyapunov
from mnemoscope.studies import Claim, Done, Scale, Study, measure, settings, study, table
from mnemoscope.studies.ribeiro._chaotic_lstm import (
    DISCARDED,
    INTRICATE,
    SETTINGS,
    SIGN_ERROR,
    SIGNS,
    SMOOTH,
    STEPS,
    Signs,
    inside,
    network,
    silence,
)
from mnemoscope.sweeps import Job

POINTS = {"quick": 601, "full": 5000}
DRAWN = 600  # values of s in the chart, with as many steps as keep it below 20,000 points
WITHOUT_PERIOD, ELSEWHERE = "no period, s in [0.9, 1.45]", "no period, s in [1.5, 2]"
FIRST, LAST = "no period from s on (5 % below)", "up to s (5 % above)"
EXPONENT = "exponent at s = 1"


def jobs(scale: Scale, seed: int) -> dict[Any, Job]:
    found: dict[Any, Job] = {}
    for signs in SIGNS:
        found["orbits", signs] = measure(orbits, seconds=POINTS[scale] / 100, signs=signs, points=POINTS[scale])
        found["exponent", signs] = measure(exponent, seconds=4, signs=signs)
    return found


def orbits(*, signs: Signs, points: int) -> Mapping[str, Any]:
    """The first output after the transient for `points` values of s in [0.5, 2], and the period of each orbit."""
    s = np.linspace(0.5, 2, points)
    model = network(signs)
    found = attractors(
        model,
        silence(),
        path="scale",
        values=s.tolist(),
        start=model.initial_state(1),
        steps=DISCARDED,
        recorded=STEPS - DISCARDED,
    )
    every = max(1, points // DRAWN)
    return {
        "s": s,
        "period": found.series["period"][:, 0],
        "drawn_s": s[::every],
        "drawn": found.series["orbits"][::every, 0, ::3].astype(np.float32),
    }


def exponent(*, signs: Signs) -> Mapping[str, Any]:
    """The largest Lyapunov exponent at s = 1, over 2,000 steps."""
    model = network(signs)
    found = lyapunov(model, torch.zeros(2000, 1, 1, dtype=torch.float64))
    return {"largest": found.figures["largest"]}


def cells(scale: Scale, done: Done) -> dict[tuple[str, str], float]:
    found: dict[tuple[str, str], float] = {}
    for (what, signs), result in done.items():
        if what == "exponent":
            found[signs, EXPONENT] = result["largest"]
            continue
        s, aperiodic = result["s"], result["period"] == 0
        found[signs, WITHOUT_PERIOD] = float(aperiodic[inside(s, INTRICATE)].mean())
        found[signs, ELSEWHERE] = float(aperiodic[inside(s, SMOOTH)].mean())
        if aperiodic.any():
            found[signs, FIRST], found[signs, LAST] = (float(v) for v in np.quantile(s[aperiodic], (0.05, 0.95)))
    return found


def charts(scale: Scale, done: Sequence[Done]) -> list[Chart]:
    found = []
    titles = {"corrected": "with the right signs", "printed": "with the printed signs"}
    for signs, words in titles.items():
        result = done[0]["orbits", signs]
        y = result["drawn"].astype(float)
        x = np.broadcast_to(result["drawn_s"][:, None], y.shape)
        marks = (Points("first output", x.flatten(), y.flatten(), Style(0, 0)),)
        edges = tuple(Marker("x", edge, f"{edge}: of the paper") for edge in INTRICATE)
        title = f"Where the orbits end up, {words}"
        found.append(Chart(f"orbits-{signs}", title, Axis("s"), Axis("first output"), marks, edges))
    return found


def _claims(signs: Signs, words: str) -> tuple[Claim, ...]:
    return (
        Claim(f"{words}: most orbits have no period for s in [0.9, 1.45]", signs, WITHOUT_PERIOD, 0.5, form=signs),
        Claim(f"{words}: every orbit has a period for s in [1.5, 2]", signs, ELSEWHERE, at_most=0.0, form=signs),
        Claim(f"{words}: orbits without a period begin within 0.05 of s = 0.9", signs, FIRST, 0.85, 0.95, form=signs),
        Claim(f"{words}: orbits without a period end within 0.05 of s = 1.45", signs, LAST, 1.4, 1.5, form=signs),
        Claim(f"{words}: s = 1 is chaotic, its exponent in [0.1, 0.25]", signs, EXPONENT, 0.1, 0.25, form=signs),
    )


study(
    Study(
        "ribeiro/fig1a",
        "Figure 1a",
        "bifurcation diagram of the chaotic LSTM",
        jobs,
        cells,
        charts,
        claims=(*_claims("printed", "printed signs"), *_claims("corrected", "right signs")),
        published=table(
            SIGNS,
            (WITHOUT_PERIOD, ELSEWHERE, FIRST, LAST, EXPONENT),
            [[None, None, INTRICATE[0], INTRICATE[1], None]] * 2,
            row_title="weights",
            note="only the range of s is in print",
            within=0.05,
        ),
        settings=(
            *SETTINGS,
            *settings(values=("5,000 of s in [0.5, 2]", "code"), period=("at most 32", "ours")),
        ),
        quick=settings(values=("601 of s in [0.5, 2]", "ours")),
        words="The data-generating parameters correspond to a chaotic attractor; limit cycles or chaos between about "
        "s = 0.9 and 1.45.",
        errata=(SIGN_ERROR,),
        would_change="Other weights than those of the authors' code.",
        surprise="Two signs of the printed weights are wrong: as printed, the LSTM at s = 1 runs on a cycle and is not "
        "chaotic. With the signs of the authors' code the range of chaos is the paper's.",
        has_seeds=False,
    )
)
