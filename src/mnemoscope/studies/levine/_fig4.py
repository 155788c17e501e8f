"""Figure 4: the tensor network of a shallow circuit, and the matrix product state of its weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mnemoscope.report import Chart
from mnemoscope.studies import Claim, Done, Scale, Study, graph_chart, measure, settings, study, table
from mnemoscope.studies.levine._networks import network_chart
from mnemoscope.sweeps import Job
from mnemoscope.theory.separation import circuit_network, min_cut, shallow_rank

SIZES = ((2, 2, 6), (3, 2, 6), (5, 2, 4), (9, 2, 6), (3, 3, 4), (9, 3, 4))


def jobs(scale: Scale, seed: int) -> dict[Any, Job]:
    return {"cuts": measure(cuts, seconds=1, sizes=[list(size) for size in SIZES])}


def cuts(*, sizes: Sequence[Sequence[int]]) -> Mapping[str, Any]:
    """The Start-End minimal cut of shallow networks with R channels, M input values and T steps."""
    return {"ranks": [min_cut(circuit_network(1, T, R, M)).rank for R, M, T in sizes]}


def cells(scale: Scale, done: Done) -> dict[tuple[str, str], float]:
    found = done["cuts"]["ranks"]
    return {(_name(*size), "minimal cut"): rank for size, rank in zip(SIZES, found, strict=True)}


def _name(R: int, M: int, T: int) -> str:
    return f"R = {R}, M = {M}, T = {T}"


def charts(scale: Scale, done: Sequence[Done]) -> list[Chart]:
    return [network_chart("network", "A shallow circuit, six steps", circuit_network(1, 6, 2, 2)), _train(6)]


def _train(length: int) -> Chart:
    """The matrix product state: a core for each step, with an open leg for its input."""
    nodes = {f"core {t}": (1.5 * t, 1.0) for t in range(1, length + 1)}
    nodes |= {f"d{t}": (1.5 * t, 0.0) for t in range(1, length + 1)}
    bonds = [(f"core {t}", f"core {t + 1}") for t in range(1, length)]
    middle = bonds[length // 2 - 1]
    edges = {
        "bond of dimension R": [bond for bond in bonds if bond != middle],
        "Start meets End": [middle],
        "input of M values": [(f"core {t}", f"d{t}") for t in range(1, length + 1)],
    }
    groups = {"core": [name for name in nodes if name.startswith("core")]}
    labels = {name: name for name in nodes if name.startswith("d")}
    title = "The matrix product state of its weights"
    return graph_chart("train", title, nodes, edges, groups=groups, labels=labels, directed=False)


study(
    Study(
        "levine/fig4",
        "Figure 4",
        "a shallow circuit's tensor network is a matrix product state: one bond joins Start to End",
        jobs,
        cells,
        charts,
        claims=(
            Claim(
                "the minimal cut is min(R, M^(T/2))",
                check=lambda c: all(c[_name(R, M, T), "minimal cut"] == shallow_rank(R, M, T) for R, M, T in SIZES),
            ),
        ),
        published=table(
            [_name(*size) for size in SIZES],
            ("minimal cut",),
            [[float(shallow_rank(R, M, T))] for R, M, T in SIZES],
            note="theorem 1.1's formula",
            within=1e-9,
        ),
        settings=settings(T=(6, "ours")),
        words="The network of a shallow circuit has the form of a matrix product state.",
        has_seeds=False,
    )
)
