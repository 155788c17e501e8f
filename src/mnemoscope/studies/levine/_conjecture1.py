"""Conjecture 1: how the Start-End rank grows with depth, for an input of M values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mnemoscope.report import Axis, Bars, Chart, Style
from mnemoscope.studies import (
    Claim,
    Done,
    Scale,
    Study,
    measure,
    settings,
    statement_cells,
    statement_claims,
    statement_job,
    study,
    table,
)
from mnemoscope.sweeps import Job
from mnemoscope.theory.separation import conjectured_rank, generic_rank, separation_ceiling

FEW = ((6, 2, 3, 4), (6, 2, 3, 6), (4, 3, 4, 4), (5, 3, 4, 6), (8, 2, 4, 4))  # L, R, M, T with R < M
STATEMENTS = {
    "levine-conjecture-1-many-values": "it is true if the input takes enough values",
    "levine-conjecture-1": "for R >= M every circuit looked at reaches the bound",
}


def _name(L: int, R: int, M: int, T: int) -> str:
    return f"L = {L}, R = {R}, M = {M}, T = {T}"


def jobs(scale: Scale, seed: int) -> dict[Any, Job]:
    few = measure(ranks, seconds=4, sizes=[list(size) for size in FEW])
    return {"ranks": few, "statements": statement_job(list(STATEMENTS), 25)}


def ranks(*, sizes: Sequence[Sequence[int]]) -> Mapping[str, Any]:
    """Exact ranks of random circuits with fewer channels than input values."""
    return {"ranks": [generic_rank(L, R, M, T).rank for L, R, M, T in sizes]}


def cells(scale: Scale, done: Done) -> dict[tuple[str, str], float]:
    values = {}
    for size, rank in zip(FEW, done["ranks"]["ranks"], strict=True):
        values[_name(*size), "rank"] = rank
        values[_name(*size), "ceiling"] = separation_ceiling(*size, size[2])
        values[_name(*size), "as printed"] = conjectured_rank(*size)
    return {**values, **statement_cells(done["statements"])}


def charts(scale: Scale, done: Sequence[Done]) -> list[Chart]:
    import numpy as np

    names = tuple(_name(*size) for size in FEW)
    marks = (
        Bars("as printed", names, np.array([float(conjectured_rank(*size)) for size in FEW]), Style(1)),
        Bars("rank", names, np.array(done[0]["ranks"]["ranks"], dtype=float), Style(0)),
    )
    return [Chart("ranks", "Rank with fewer channels than input values", Axis(""), Axis("Start-End rank"), marks)]


study(
    Study(
        "levine/conjecture1",
        "Conjecture 1",
        "the Start-End rank of circuits of any depth",
        jobs,
        cells,
        charts,
        claims=(
            *statement_claims(STATEMENTS),
            Claim(
                "with R < M and an input of M values too, the rank reaches min(((min(M, R), ((T/2, L - 1)))), M^(T/2))",
                check=lambda c: all(c[_name(*size), "rank"] >= c[_name(*size), "as printed"] for size in FEW),
                form="printed",
            ),
            Claim(
                "with R < M and an input of M values it reaches the ceiling R M^(T/2 - 1) or less",
                check=lambda c: all(c[_name(*size), "rank"] == c[_name(*size), "ceiling"] for size in FEW),
                form="corrected",
            ),
        ),
        published=table(
            [_name(*size) for size in FEW],
            ("rank",),
            [[float(conjectured_rank(*size))] for size in FEW],
            note="the bound of conjecture 1",
            within=1e-9,
        ),
        settings=settings(arithmetic=("exact, modulo primes", "ours")),
        modules=("flint", "opt_einsum"),
        words="The rank is conjectured to grow with every further layer.",
        errata=(
            "For R < M and an input that takes M values only the cap is not M^(T/2): R = 2, M = 3, T = 4, L = 6 has "
            "rank 6 at most, and not 7.",
        ),
        would_change="A conjecture stated for inputs of unboundedly many values, for which it is true.",
        surprise="Conjecture 1 fails where the input takes M values only and a network has fewer channels: R = 2, "
        "M = 3, T = 4, L = 6 has rank 6 whatever its weights, and not 7. For R >= M every case looked at holds, and "
        "with enough values it is true.",
        has_seeds=False,
    )
)
