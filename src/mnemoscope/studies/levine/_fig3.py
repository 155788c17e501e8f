"""Figure 3: tensors as nodes, contraction as joined legs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from mnemoscope.report import Chart
from mnemoscope.studies import Claim, Done, Scale, Study, graph_chart, measure, settings, study, table
from mnemoscope.sweeps import Job

CASES = ("a matrix times a vector", "a product of matrices", "a train of three tensors")


def jobs(scale: Scale, seed: int) -> dict[Any, Job]:
    return {"contractions": measure(contractions, seconds=1, seed=seed)}


def contractions(*, seed: int) -> Mapping[str, Any]:
    """How far the joined legs of each drawn network are, summed in two orders, from each other."""
    torch.manual_seed(seed)
    M, N, v, w = (torch.randn(shape, dtype=torch.float64) for shape in ((4, 5), (5, 3), (5,), (4,)))
    A, B, C = (torch.randn(shape, dtype=torch.float64) for shape in ((2, 6), (6, 2, 6), (6, 2)))
    pairs = {
        CASES[0]: (torch.einsum("ij,j->i", M, v), M @ v),
        CASES[1]: (torch.einsum("i,ij,jk->k", w, M, N), w @ (M @ N)),
        CASES[2]: (torch.einsum("ia,ajb,bk->ijk", A, B, C), (A @ B.flatten(1)).view(2, 2, 6) @ C),
    }
    return {case: float((one - other).abs().max()) for case, (one, other) in pairs.items()}


def cells(scale: Scale, done: Done) -> dict[tuple[str, str], float]:
    return {(case, "difference"): done["contractions"][case] for case in CASES}


def charts(scale: Scale, done: Sequence[Done]) -> list[Chart]:
    # A leg that ends at a node without a dot is open.
    nodes = {"v": (0.0, 0.0), "M": (1.5, 0.0), "open 1": (2.5, 0.0)}
    nodes |= {"w": (4.0, 0.0), "M ": (5.5, 0.0), "N": (7.0, 0.0), "open 2": (8.0, 0.0)}
    nodes |= {"A": (0.0, -2.0), "B": (1.5, -2.0), "C": (3.0, -2.0)}
    nodes |= {f"open {i}": (1.5 * (i - 3), -3.0) for i in (3, 4, 5)}
    legs = {
        "leg": [("v", "M"), ("w", "M "), ("M ", "N"), ("A", "B"), ("B", "C")],
        "open leg": [("M", "open 1"), ("N", "open 2"), ("A", "open 3"), ("B", "open 4"), ("C", "open 5")],
    }
    groups = {"tensor": [name for name in nodes if not name.startswith("open")]}
    labels = {name: name.strip() for name in groups["tensor"]}
    title = "A matrix times a vector, a product of matrices, a tensor train"
    return [graph_chart("networks", title, nodes, legs, groups=groups, labels=labels, directed=False)]


study(
    Study(
        "levine/fig3",
        "Figure 3",
        "introduction to tensor networks (a drawing)",
        jobs,
        cells,
        charts,
        claims=(Claim("joined legs are sums, in any order", column="difference", at_most=1e-12, headline=False),),
        published=table(CASES, ("difference",), [[0.0]] * 3, note="a drawing"),
        settings=settings(sizes=("2 to 6", "ours")),
        words="Tensors are nodes, their modes are legs; joined legs are summed over.",
        drawing=True,
    )
)
