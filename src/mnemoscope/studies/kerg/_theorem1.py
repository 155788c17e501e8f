"""Theorem 1: whether gradients under uniform attention fall no faster than 1/T."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mnemoscope.report import Axis, Chart, Line, Style
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
from mnemoscope.theory.attention import keeps_inverse_rate, uniform_norm

T = 100_000
LAMBDAS = (-0.9, -0.5, 0.0, 0.3, 0.7)
MEETING = tuple(x for x in LAMBDAS if keeps_inverse_rate(complex(x)))
STATEMENTS = {
    "kerg-theorem-1": "Omega(1/T) if V has an eigenvalue with Re lambda >= |lambda|^2",
    "kerg-remark-8": "where scores do not depend on their arguments the gradient is a sum over paths",
    "kerg-remark-17": "for V that is not normal the eigenvalues bound the norm from below",
}


def jobs(scale: Scale, seed: int) -> dict[Any, Job]:
    return {"norms": measure(norms, seconds=3), "statements": statement_job(list(STATEMENTS), 4)}


def norms() -> Mapping[str, Any]:
    """T ||ds_T/dh_1|| for V = lambda I, at 60 values of T."""
    at = np.unique(np.geomspace(10, T, 60).astype(int))
    found = {str(x): at * uniform_norm([x], 1, T - 1).numpy()[at - 1] for x in LAMBDAS}
    return {"T": at.astype(float), **found}


def cells(scale: Scale, done: Done) -> dict[tuple[str, str], float]:
    at = done["norms"]["T"]
    early = int(np.searchsorted(at, 1000))
    values = {}
    for x in LAMBDAS:
        scaled = done["norms"][str(x)]
        values[str(x), "T ||ds_T/dh_1|| at 10^5 over that at 10^3"] = float(scaled[-1] / scaled[early])
    return {**values, **statement_cells(done["statements"])}


def charts(scale: Scale, done: Sequence[Done]) -> list[Chart]:
    lines = tuple(
        Line(f"lambda = {x}", done[0]["norms"]["T"], done[0]["norms"][str(x)], style=Style(number, number))
        for number, x in enumerate(LAMBDAS)
    )
    x_axis, y_axis = Axis("T", log=True, switch=True), Axis("T ||ds_T/dh_1||", log=True, switch=True)
    return [Chart("norms", "Gradient times T: level or rising is Omega(1/T)", x_axis, y_axis, lines)]


RATIO = "T ||ds_T/dh_1|| at 10^5 over that at 10^3"

study(
    Study(
        "kerg/theorem1",
        "Theorem 1, eq. 264",
        "whether gradients under uniform attention fall no faster than 1/T",
        jobs,
        cells,
        charts,
        claims=(
            Claim("Omega(1/T) for every |lambda| < 1", LAMBDAS, RATIO, at_least=0.97, form="printed"),
            Claim("Omega(1/T) where Re lambda >= |lambda|^2", MEETING, RATIO, at_least=0.97, form="corrected"),
            *statement_claims(STATEMENTS, corrected=("kerg-theorem-1",)),
        ),
        published=table(LAMBDAS, (RATIO,), row_title="lambda", note="at least 1, up to terms that vanish"),
        settings=settings(T=(T, "ours"), V=("lambda times the identity", "ours")),
        words="Under uniform attention gradients decay no faster than 1/T.",
        errata=("The paper asks no more than |lambda| < 1; V = -0.5 I has ||ds_T/dh_t|| ~ T^(-4/3).",),
        surprise="Theorem 1 does not hold as stated: for V = -0.5 I the gradient falls like T^(-4/3). It needs an "
        "eigenvalue with Re lambda >= |lambda|^2, and real eigenvalues above 1/2 even make gradients grow.",
        has_seeds=False,
    )
)
