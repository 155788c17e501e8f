"""Figure 2: how the entropy of a state changes, and the bound of eq. 9, which is printed the wrong way round."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from mnemoscope.report import Axis, Chart, Line, SeedLine, Style
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
from mnemoscope.theory.smoothness import entropy_bound, entropy_change, gaussian_entropy

LIPSCHITZ = (0.9, 1.0, 1.1)
STEPS, MAPS, SIZE = 20, 200, 2
FLAT = "diag(2, 0.1)"
STATEMENTS = {"ribeiro-equation-9": "one step raises the entropy by at most N_x log L_f"}


def jobs(scale: Scale, seed: int) -> dict[Any, Job]:
    return {"entropies": measure(entropies, seconds=2, seed=seed), "statements": statement_job(list(STATEMENTS), 3)}


def entropies(*, seed: int) -> Mapping[str, Any]:
    """The entropy of a Gaussian state under linear maps, and its change under random maps with each L_f."""
    random = torch.Generator().manual_seed(seed)
    found: dict[str, Any] = {}
    angle = torch.tensor([1.0], dtype=torch.float64)
    turn = torch.stack([torch.cat([angle.cos(), -angle.sin()]), torch.cat([angle.sin(), angle.cos()])])
    maps = {f"L_f = {L}": L * turn for L in LIPSCHITZ} | {FLAT: torch.tensor([2.0, 0.1]).diag().double()}
    for name, A in maps.items():
        covariance, line = torch.eye(SIZE, dtype=torch.float64), []
        for _ in range(STEPS + 1):
            line.append(gaussian_entropy(covariance))
            covariance = A @ covariance @ A.T
        found[name] = line
    for L in LIPSCHITZ:
        A = torch.randn(MAPS, SIZE, SIZE, generator=random, dtype=torch.float64)
        A = L * A / torch.linalg.matrix_norm(A, ord=2)[:, None, None]
        found[f"change {L}"] = entropy_change(A)
    return found


def cells(scale: Scale, done: Done) -> dict[tuple[str, str], float]:
    result = done["entropies"]
    values = {}
    for L in LIPSCHITZ:
        change, bound = result[f"change {L}"], entropy_bound(L, SIZE)
        values[f"random maps, L_f = {L}", "largest change less N_x log L_f"] = float(change.max() - bound)
        values[f"random maps, L_f = {L}", "least change less N_x log L_f"] = float(change.min() - bound)
    step = result[FLAT][1] - result[FLAT][0]
    for name in ("largest", "least"):
        values[FLAT, f"{name} change less N_x log L_f"] = step - entropy_bound(2.0, SIZE)
    return {**values, **statement_cells(done["statements"])}


def charts(scale: Scale, done: Sequence[Done]) -> list[Chart]:
    t = np.arange(STEPS + 1, dtype=float)
    names = (*(f"L_f = {L}" for L in LIPSCHITZ), FLAT)
    lines: list[Line] = [
        SeedLine(name, {one.seed: (t, one["entropies"][name]) for one in done}, Style(number, 0))
        for number, name in enumerate(names)
    ]
    bound = done[0]["entropies"][FLAT][0] + t * SIZE * math.log(2)
    lines.append(Line(f"the bound of {FLAT}, L_f = 2", t, bound, style=Style(3, 2)))
    return [Chart("entropy", "Entropy of a Gaussian state under linear maps", Axis("t"), Axis("H_t"), tuple(lines))]


study(
    Study(
        "ribeiro/fig2",
        "Figure 2, eqs 7-9",
        "how much entropy a state can gain or must lose in a step",
        jobs,
        cells,
        charts,
        claims=(
            Claim(
                "H_{t+1} >= H_t + N_x log L_f",
                column="least change less N_x log L_f",
                at_least=-1e-9,
                form="printed",
            ),
            Claim(
                "H_{t+1} <= H_t + N_x log L_f",
                column="largest change less N_x log L_f",
                at_most=1e-9,
                form="corrected",
            ),
            *statement_claims(STATEMENTS, corrected=tuple(STATEMENTS)),
        ),
        published=table(
            [*(f"random maps, L_f = {L}" for L in LIPSCHITZ), FLAT],
            ("largest change less N_x log L_f", "least change less N_x log L_f"),
            note="a sketch, without numbers",
        ),
        settings=settings(maps=(MAPS, "ours"), N_x=(SIZE, "ours"), state=("Gaussian", "ours")),
        words="A sketch: the entropy of a contractive system decays, one with L_f > 1 can keep information.",
        errata=("Eq. 9 is printed the other way round: Hadamard's inequality bounds log|det| from above.",),
        surprise="Eq. 9 holds the other way round: a step raises the entropy by at most N_x log L_f. So L_f > 1 allows "
        "information to be kept, but does not make it so: diag(2, 0.1) loses entropy.",
    )
)
