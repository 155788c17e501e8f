"""Proposition 4: how the eigenvalues of ds_T/dh_t grow with T under uniform attention."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mnemoscope.report import Axis, Chart, Line, Points, Style
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
from mnemoscope.theory.attention import growth_exponent, paper_exponent, uniform_gain

T = 100_000
LAMBDAS = (-0.9, -0.5, 0.0, 0.3, 0.5, 0.7)
TELLING = (-0.5, 0.5, 0.7)  # where the printed and the right exponent are far apart
STATEMENTS = {"kerg-proposition-4": "the eigenvalue is asymptotically c T^(lambda/(1 - lambda) - 1)"}


def _printed(eigenvalue: float) -> tuple[float, float]:
    """The exponents of eq. 248's two terms, c/T and c' T^(lambda - 1)."""
    return -1.0, float(paper_exponent(eigenvalue).real)


def jobs(scale: Scale, seed: int) -> dict[Any, Job]:
    return {"exponents": measure(exponents, seconds=3), "statements": statement_job(list(STATEMENTS), 4)}


def exponents() -> Mapping[str, Any]:
    """The exponent of |p(lambda)| at T = 10^5, from its values at T/2 and T."""
    found = []
    for eigenvalue in LAMBDAS:
        p = uniform_gain(eigenvalue, 1, T - 1).abs()
        found.append(math.log2(float(p[T - 1] / p[T // 2 - 1])))
    return {"measured": found}


def cells(scale: Scale, done: Done) -> dict[tuple[str, str], float]:
    values: dict[tuple[str, str], float] = {}
    for eigenvalue, measured in zip(LAMBDAS, done["exponents"]["measured"], strict=True):
        values[str(eigenvalue), "measured"] = measured
        values[str(eigenvalue), "off the printed"] = min(abs(measured - one) for one in _printed(eigenvalue))
        values[str(eigenvalue), "off the corrected"] = abs(measured - growth_exponent(eigenvalue).real)
    return {**values, **statement_cells(done["statements"])}


def charts(scale: Scale, done: Sequence[Done]) -> list[Chart]:
    grid = np.linspace(-0.9, 0.75, 100)
    marks = (
        Line("as printed", grid, np.array([max(_printed(x)) for x in grid]), style=Style(1, 1)),
        Line("corrected", grid, np.array([growth_exponent(x).real for x in grid]), style=Style(0, 0)),
        Points("measured at T = 10^5", np.array(LAMBDAS), np.array(done[0]["exponents"]["measured"]), Style(2, 2)),
    )
    return [Chart("exponent", "Exponent of the gradient in T", Axis("eigenvalue of V"), Axis("exponent"), marks)]


study(
    Study(
        "kerg/prop4",
        "Proposition 4, eq. 248",
        "how the eigenvalues of ds_T/dh_t grow with T under uniform attention",
        jobs,
        cells,
        charts,
        claims=(
            Claim("the exponent is lambda - 1, or -1", TELLING, "off the printed", at_most=0.1, form="printed"),
            Claim(
                "the exponent is lambda/(1 - lambda) - 1", LAMBDAS, "off the corrected", at_most=0.01, form="corrected"
            ),
            *statement_claims(STATEMENTS, corrected=tuple(STATEMENTS)),
        ),
        published=table(
            LAMBDAS,
            ("measured",),
            [[max(_printed(x))] for x in LAMBDAS],
            row_title="lambda",
            note="the larger of the two printed exponents",
            within=0.01,
        ),
        settings=settings(T=(T, "ours"), t=(1, "ours")),
        words="The eigenvalues of the gradient decay like T^(lambda - 1) + c/T.",
        errata=("The exponent is lambda/(1 - lambda) - 1, and there is no separate term c/T.",),
        surprise="The exponent that Proposition 4 prints is wrong: at lambda = 0.7 the gradient grows like T^1.33 "
        "instead of falling like T^-0.3. From eq. 260 to 261 a binomial coefficient is treated as a constant.",
        has_seeds=False,
    )
)
