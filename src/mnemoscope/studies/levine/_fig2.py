"""Figure 2: the tensor network of a circuit of depth 3 after six steps, with its basic units."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mnemoscope.report import Chart
from mnemoscope.studies import Claim, Done, Scale, Study, measure, settings, study, table
from mnemoscope.studies.levine._networks import network_chart
from mnemoscope.sweeps import Job
from mnemoscope.theory.separation import basic_units, circuit_network, joining_bonds

SIZES = ((1, 6), (2, 6), (3, 6), (4, 6), (3, 4), (3, 8))


def jobs(scale: Scale, seed: int) -> dict[Any, Job]:
    return {"units": measure(units, seconds=1, sizes=[list(size) for size in SIZES])}


def units(*, sizes: Sequence[Sequence[int]]) -> Mapping[str, Any]:
    """How often layer 1 of the network joins Start to End, counted."""
    return {"units": [len(joining_bonds(circuit_network(depth, length, 2, 2), 1)) for depth, length in sizes]}


def cells(scale: Scale, done: Done) -> dict[tuple[str, str], float]:
    found = done["units"]["units"]
    return {(f"L = {L}, T = {T}", "basic units"): count for (L, T), count in zip(SIZES, found, strict=True)}


def charts(scale: Scale, done: Sequence[Done]) -> list[Chart]:
    return [network_chart("network", "Depth 3, six steps", circuit_network(3, 6, 2, 2))]


study(
    Study(
        "levine/fig2",
        "Figure 2",
        "the tensor network of a circuit of depth 3 after 6 steps: Start and End meet six times",
        jobs,
        cells,
        charts,
        claims=(
            Claim("six basic units for L = 3, T = 6", "L = 3, T = 6", "basic units", 6, 6),
            Claim(
                "((T/2, L - 1)) of them for every size",
                check=lambda c: all(c[f"L = {L}, T = {T}", "basic units"] == basic_units(L, T) for L, T in SIZES),
            ),
        ),
        published=table(
            [f"L = {L}, T = {T}" for L, T in SIZES],
            ("basic units",),
            [[float(basic_units(L, T))] for L, T in SIZES],
            note="from the formula of claim 4; the figure shows the six of L = 3, T = 6",
            within=1e-9,
        ),
        settings=settings(L=(3, "paper"), T=(6, "paper")),
        words="The basic unit that connects Start and End appears six times.",
        has_seeds=False,
    )
)
