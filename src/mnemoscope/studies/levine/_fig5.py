"""Figure 5: a deep circuit's network needs copies of its inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mnemoscope.report import Chart
from mnemoscope.studies import Claim, Done, Scale, Study, measure, settings, study, table
from mnemoscope.studies.levine._networks import network_chart
from mnemoscope.sweeps import Job
from mnemoscope.theory.separation import circuit_network, multiset_coefficient

SIZES = ((1, 4), (2, 4), (3, 3), (2, 6), (3, 6), (4, 4))


def jobs(scale: Scale, seed: int) -> dict[Any, Job]:
    return {"copies": measure(copies, seconds=1, sizes=[list(size) for size in SIZES])}


def copies(*, sizes: Sequence[Sequence[int]]) -> Mapping[str, Any]:
    """How often the networks hold their first input, and all of their inputs, counted."""
    inputs = [circuit_network(depth, length, 2, 2).of_kind("input") for depth, length in sizes]
    first = [sum(node.time == 1 for node in found) for found in inputs]
    return {"first": first, "all": [len(found) for found in inputs]}


def cells(scale: Scale, done: Done) -> dict[tuple[str, str], float]:
    values: dict[tuple[str, str], float] = {}
    for number, (L, T) in enumerate(SIZES):
        values[f"L = {L}, T = {T}", "copies of x_1"] = done["copies"]["first"][number]
        values[f"L = {L}, T = {T}", "copies in all"] = done["copies"]["all"][number]
    return values


def charts(scale: Scale, done: Sequence[Done]) -> list[Chart]:
    drawn = []
    for depth, length in ((2, 4), (3, 3)):
        network = circuit_network(depth, length, 2, 2)
        first = [node for node in network.nodes if node.layer <= 1 and node.time == 1]
        drawn.append(network_chart(f"depth-{depth}", f"Depth {depth}, {length} steps", network, first))
    return drawn


def _formula(L: int, T: int) -> list[float]:
    return [float(multiset_coefficient(T, L - 1)), float(multiset_coefficient(T, L))]


study(
    Study(
        "levine/fig5",
        "Figure 5",
        "duplicated inputs in the tensor networks of deep circuits",
        jobs,
        cells,
        charts,
        claims=(
            Claim(
                "x_1 is there ((T, L - 1)) times, and ((T, L)) inputs in all",
                check=lambda c: all(
                    [c[f"L = {L}, T = {T}", name] for name in ("copies of x_1", "copies in all")] == _formula(L, T)
                    for L, T in SIZES
                ),
            ),
        ),
        published=table(
            [f"L = {L}, T = {T}" for L, T in SIZES],
            ("copies of x_1", "copies in all"),
            [_formula(L, T) for L, T in SIZES],
            note="the formulas of A.3",
            within=1e-9,
        ),
        settings=settings(L=("2 and 3", "paper"), T=("4 and 3", "paper")),
        words="Every layer above the first reads copies of the states below it, so inputs appear many times.",
        has_seeds=False,
    )
)
