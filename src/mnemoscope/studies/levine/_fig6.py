"""Figure 6: weights of rank one split the network into pieces that show how often Start meets End."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mnemoscope.report import Chart
from mnemoscope.studies import Claim, Done, Scale, Study, measure, settings, study, table
from mnemoscope.studies.levine._networks import network_chart
from mnemoscope.sweeps import Job
from mnemoscope.theory.separation import basic_units, circuit_network, joining_bonds

SIZES = ((2, 4), (2, 6), (3, 4), (3, 6), (4, 4))


def jobs(scale: Scale, seed: int) -> dict[Any, Job]:
    return {"pieces": measure(pieces, seconds=1, sizes=[list(size) for size in SIZES])}


def pieces(*, sizes: Sequence[Sequence[int]]) -> Mapping[str, Any]:
    """Of networks whose second input weights are split: how often layer 1 joins Start to End."""
    split = [circuit_network(depth, length, 2, 2).split(2) for depth, length in sizes]
    return {"joined": [len(joining_bonds(network, 1)) for network in split]}


def cells(scale: Scale, done: Done) -> dict[tuple[str, str], float]:
    found = done["pieces"]["joined"]
    return {(f"L = {L}, T = {T}", "basic units left"): count for (L, T), count in zip(SIZES, found, strict=True)}


def charts(scale: Scale, done: Sequence[Done]) -> list[Chart]:
    return [network_chart("split", "Depth 2, four steps, split", circuit_network(2, 4, 2, 2).split(2))]


study(
    Study(
        "levine/fig6",
        "Figure 6",
        "input weights of rank one split the network; the basic units are what is left of Start and End",
        jobs,
        cells,
        charts,
        claims=(
            Claim(
                "((T/2, L - 1)) basic units are left",
                check=lambda c: all(c[f"L = {L}, T = {T}", "basic units left"] == basic_units(L, T) for L, T in SIZES),
            ),
        ),
        published=table(
            [f"L = {L}, T = {T}" for L, T in SIZES],
            ("basic units left",),
            [[float(basic_units(L, T))] for L, T in SIZES],
            note="the formula of claim 4",
            within=1e-9,
        ),
        settings=settings(
            L=("2, 3 and 4; 2 is drawn", "ours", "3 in the paper"), T=("4 and 6; 4 is drawn", "ours", "6 in the paper")
        ),
        words="With W^{I,2} of rank one the network falls into pieces, of which those that cross the middle count.",
        has_seeds=False,
    )
)
