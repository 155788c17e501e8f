"""Figure 3: the gradient by each state after training on Denoise, against the sizes of buffer and relevant set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mnemoscope.report import Axis, Chart, Panels
from mnemoscope.studies import (
    CellValue,
    Claim,
    Done,
    Result,
    Scale,
    Study,
    band,
    measure,
    settings,
    study,
    table,
    train,
)
from mnemoscope.studies.kerg._gradients import log_gradient_norms
from mnemoscope.studies.kerg._published import BATCH, N
from mnemoscope.studies.kerg._recall import CLIP, GAIN, GUESS
from mnemoscope.sweeps import Job
from mnemoscope.tasks import Denoise
from mnemoscope.training import FitConfig, NetworkConfig, RunConfig

SIZES = (3, 8, 18, 25)
FIXED = 15
CASES = [(FIXED, rho) for rho in SIZES] + [(nu, FIXED) for nu in SIZES]  # (nu, rho)
QUICK_CASES = [(FIXED, rho) for rho in SIZES] + [(3, FIXED), (25, FIXED)]


def jobs(scale: Scale, seed: int) -> dict[Any, Job]:
    found: dict[Any, Job] = {}
    for nu, rho in QUICK_CASES if scale == "quick" else CASES:
        options = {"buffer": nu, "relevant": rho}
        if scale == "quick":
            network = NetworkConfig("RelLSTM", 64, readout_gain=GAIN, options=options)
            fit = FitConfig(updates=700, batch_size=32, evaluate_batches=2, checkpoint_every=700, seed=seed)
            config = RunConfig(Denoise(T=100, seed=seed), network, fit)
        else:
            network = NetworkConfig("RelLSTM", N, readout_gain=GAIN, options=options)
            fit = FitConfig(
                updates=8_000,
                batch_size=BATCH,
                clip=CLIP,
                scale_clip=True,
                evaluate_every=200,
                evaluate_batches=4,
                log_every=50,
                seed=seed,
            )
            config = RunConfig(Denoise(T=1000, seed=seed), network, fit)
        found["run", nu, rho] = train(config)
        found["gradient", nu, rho] = measure(gradient_by_state, needs=found["run", nu, rho], seconds=2, sequences=16)
    return found


def gradient_by_state(run: Result, *, sequences: int) -> Mapping[str, Any]:
    """log ||dL/dh_t|| by steps before the last one, and its standard deviation away from both ends."""
    task = run.run.config.task
    log_norm = log_gradient_norms(run.run.model("best"), task, sequences).numpy()[::-1]
    inner = log_norm[_inner(task.length)]
    return {"log_norm": np.ascontiguousarray(log_norm), "spread": float(inner.std()), "mean": float(inner.mean())}


def _inner(length: int) -> slice:
    """The lags between the answers and the first steps."""
    return slice(50, length - 40) if length > 500 else slice(20, length - 10)


def _name(nu: int, rho: int) -> str:
    return f"nu = {nu}, rho = {rho}"


def cells(scale: Scale, done: Done) -> dict[tuple[str, str], CellValue]:
    found: dict[tuple[str, str], CellValue] = {}
    for (kind, nu, rho), result in done.items():
        if kind == "run":
            found[_name(nu, rho), "accuracy"] = result.reached(GUESS)
        else:
            found[_name(nu, rho), "spread"] = result.figure("spread")
            found[_name(nu, rho), "mean"] = result.figure("mean")
    return found


def charts(scale: Scale, done: Sequence[Done]) -> list[Chart | Panels]:
    def panel(key: str, title: str, cases: Sequence[tuple[int, int]]) -> Chart:
        lines = []
        for number, (nu, rho) in enumerate(cases):
            at = ("gradient", nu, rho)
            norms = {one.seed: one[at]["log_norm"].astype(float) for one in done if at in one}
            if norms:
                curves = {seed: (np.arange(len(y)), y) for seed, y in norms.items()}
                lines.append(band(_name(nu, rho), curves, number))
        return Chart(key, title, Axis("steps before the last one"), Axis("log of the gradient's norm"), tuple(lines))

    cases = QUICK_CASES if scale == "quick" else CASES
    by_rho = panel("by-rho", f"nu = {FIXED}", cases[:4])
    by_nu = panel("by-nu", f"rho = {FIXED}", cases[4:])
    return [Panels("gradients", "The gradient by each state after training on Denoise", (by_rho, by_nu), columns=2)]


study(
    Study(
        "kerg/fig3",
        "Figure 3",
        "the gradient by each state against nu and rho, Denoise",
        jobs,
        cells,
        charts,
        claims=(
            # After the quick version's 700 updates the networks have hardly learned: neither of its claims counts.
            Claim(
                "the curve is less steady with rho = 3 than with rho = 25",
                check=lambda found: found[_name(FIXED, 3), "spread"] > found[_name(FIXED, 25), "spread"],
                scale="quick",
                headline=False,
            ),
            Claim(
                "nu matters less: the spread changes less from nu = 3 to 25 than from rho = 3 to 25",
                check=lambda found: (
                    abs(found[_name(3, FIXED), "spread"] - found[_name(25, FIXED), "spread"])
                    < abs(found[_name(FIXED, 3), "spread"] - found[_name(FIXED, 25), "spread"])
                ),
                scale="quick",
                headline=False,
            ),
            Claim(
                "rho = 3 is unstable: its spread is more than twice that of rho = 18",
                check=lambda found: found[_name(FIXED, 3), "spread"] > 2 * found[_name(FIXED, 18), "spread"],
                scale="full",
                over="median",
            ),
            Claim(
                "nu matters less: between nu = 8 and 25 the spread changes by less than half of that of rho = 3",
                check=lambda found: (
                    abs(found[_name(8, FIXED), "spread"] - found[_name(25, FIXED), "spread"])
                    < found[_name(FIXED, 3), "spread"] / 2
                ),
                scale="full",
                over="median",
            ),
        ),
        published=table(
            [_name(nu, rho) for nu, rho in CASES],
            ("spread", "mean", "accuracy"),
            note="curves without numbers",
            column_title="standard deviation and mean of log ||dL/dh_t|| over t",
        ),
        settings=settings(
            model=("RelLSTM", "code", "the caption says MemLSTM"),
            T=(1000, "paper", "its axis"),
            n=(N, "code"),
            loss=("cross-entropy of the last ten steps / (T + 20)", "code"),
            training=(
                f"Adam 1e-3, gain {GAIN:g}, clip {CLIP:g} * 10/(T + 20), 8,000 updates of {BATCH}",
                "ours",
                "the code has RMSprop 1e-3 in batches of 10; the number of updates is not said",
            ),
            spread=("standard deviation over lags 50 to T - 20", "ours", "a gradient of 0 counts as the least float"),
        ),
        quick=settings(
            T=(100, "ours"), n=(64, "ours"), updates=("700 of 32", "ours"), spread=("over lags 20 to 110", "ours")
        ),
        words="rho = 3 is unstable, larger values are stable; nu matters much less, nu = 3 is slightly less stable.",
        errata=("The caption says MemLSTM, which has neither nu nor rho; the models are RelLSTMs (names of files).",),
        would_change="Networks that have learned Denoise at T = 1000; the accuracy of each is in the table.",
    )
)
