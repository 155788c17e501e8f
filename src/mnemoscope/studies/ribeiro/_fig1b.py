"""Figure 1b: the cost of the chaotic LSTM along theta(s) = s theta_true."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mnemoscope.report import Axis, Chart, Line, Marker, Style
from mnemoscope.scopes import landscape
from mnemoscope.studies import Claim, Done, Scale, Study, measure, settings, study, table
from mnemoscope.studies.ribeiro._chaotic_lstm import (
    INTRICATE,
    SETTINGS,
    SIGN_ERROR,
    SIGNS,
    SMOOTH,
    Signs,
    inside,
    local_minima,
    mean_square,
    network,
    silence,
)
from mnemoscope.sweeps import Job

POINTS = {"quick": 601, "full": 5001}
DRAWN = 1250  # points of the curve in the chart
HERE, ELSEWHERE, AT_ONE = "minima, s in [0.9, 1.45]", "minima, s in [1.5, 2]", "cost at s = 1"


def jobs(scale: Scale, seed: int) -> dict[Any, Job]:
    points = POINTS[scale]
    return {signs: measure(cost_line, seconds=points / 1000 + 1, signs=signs, points=points) for signs in SIGNS}


def cost_line(*, signs: Signs, points: int) -> Mapping[str, Any]:
    """The cost at `points` values of s in [0.5, 2]: from the network of zeros to theta_true and beyond."""
    true = network(signs)
    x = silence()
    found = landscape(
        network(signs, 0.0),
        x,
        targets=true(x)[0].detach(),
        loss=mean_square,
        to=true.state_dict(),
        line=True,
        points=points,
        x_range=(0.5, 2.0),
        x_label="s",
    )
    return {"s": found.series["x"], "cost": found.series["cost"], "at_one": found.figures["cost_to"]}


def cells(scale: Scale, done: Done) -> dict[tuple[str, str], float]:
    found: dict[tuple[str, str], float] = {}
    for signs, result in done.items():
        minima = local_minima(result["cost"])
        found[signs, HERE] = float(minima[inside(result["s"], INTRICATE)].sum())
        found[signs, ELSEWHERE] = float(minima[inside(result["s"], SMOOTH)].sum())
        found[signs, AT_ONE] = result["at_one"]
    return found


def charts(scale: Scale, done: Sequence[Done]) -> list[Chart]:
    found = []
    for signs, words in (("corrected", "with the right signs"), ("printed", "with the printed signs")):
        result = done[0][signs]
        every = max(1, len(result["s"]) // DRAWN)
        line = Line("cost", result["s"][::every], result["cost"][::every], style=Style(0, 0))
        edges = tuple(Marker("x", edge, f"{edge}: of the paper") for edge in INTRICATE)
        title = f"Cost along s theta, {words}"
        found.append(Chart(f"cost-{signs}", title, Axis("s"), Axis("mean-square cost"), (line,), edges))
    return found


study(
    Study(
        "ribeiro/fig1b",
        "Figure 1b",
        "the cost of the chaotic LSTM along a line",
        jobs,
        cells,
        charts,
        claims=(
            Claim("printed signs: 20 local minima for s in [0.9, 1.45]", "printed", HERE, 20, form="printed"),
            Claim("right signs: 20 local minima for s in [0.9, 1.45]", "corrected", HERE, 20, form="corrected"),
            Claim("printed signs: no local minimum for s in [1.5, 2]", "printed", ELSEWHERE, at_most=0, form="printed"),
            Claim(
                "right signs: no local minimum for s in [1.5, 2]", "corrected", ELSEWHERE, at_most=0, form="corrected"
            ),
        ),
        published=table(SIGNS, (HERE, ELSEWHERE, AT_ONE), row_title="weights", note="the paper counts no minima"),
        settings=(*SETTINGS, *settings(cost=("mean over steps of the squared distance", "paper", "eq. 2; code: half"))),
        quick=settings(points=(601, "ours")),
        words="The cost function is intricate in an entire region around s = 1, where 0.9 <~ s <~ 1.45.",
        errata=(SIGN_ERROR, "The authors' code takes the mean over the two outputs, which is half of eq. 2."),
        would_change="Other weights than those of the authors' code; the number of minima grows with the resolution.",
        has_seeds=False,
    )
)
