"""Figures 5 and 6: training curves of LSTM and GORU on Denoise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mnemoscope.report import Chart, Panels
from mnemoscope.studies import CellValue, Claim, Done, Scale, Study, settings, study, table, train
from mnemoscope.studies.kerg._published import BATCH, BUDGET
from mnemoscope.studies.kerg._recall import GAIN, GUESS, curve_panels, denoise_run, loss_share, quick_run, unlearned
from mnemoscope.sweeps import Job

LENGTHS = (100, 300, 1000)
QUICK_T = 50


def figure(number: int, model: str, rate: str, claims: tuple[Claim, ...]) -> None:
    """Register the figure of one model."""

    def jobs(scale: Scale, seed: int) -> dict[Any, Job]:
        if scale == "quick":
            return {("denoise", model, QUICK_T): train(quick_run("denoise", model, seed, QUICK_T))}
        return {("denoise", model, T): train(denoise_run(model, T, seed)) for T in LENGTHS}

    def cells(scale: Scale, done: Done) -> dict[tuple[int, str], CellValue]:
        shares: dict[tuple[int, str], CellValue] = {
            (T, "loss"): loss_share(scale, run) for (_, _, T), run in done.items()
        }
        return shares | {(T, "accuracy"): run.reached(GUESS) for (_, _, T), run in done.items()}

    def charts(scale: Scale, done: Sequence[Done]) -> list[Chart | Panels]:
        lengths = (QUICK_T,) if scale == "quick" else LENGTHS
        drawn = [T for T in lengths if any(("denoise", model, T) in one for one in done)]
        title = f"{model} on Denoise" + (f", T = {drawn[0]}" if len(drawn) == 1 else "")
        return [
            chart for panels in curve_panels("denoise", title, done, {title: model}, lengths) for chart in panels.charts
        ]

    study(
        Study(
            f"kerg/fig{number}",
            f"Figure {number}",
            f"training curves of {model} on Denoise",
            jobs,
            cells,
            charts,
            claims=claims,
            published=table(
                LENGTHS,
                ("loss", "accuracy"),
                row_title="T",
                column_title="lowest loss, as a share of the loss without a memory; best accuracy",
                note="curves without numbers",
            ),
            settings=settings(
                optimizer=(rate, "paper", "Table 7"),
                T=("100, 300, 1000", "ours", "the paper also has 200, 500, 2000"),
                batch_size=(BATCH, "ours", "the code has 10"),
                updates=(f"{BUDGET:,}, 20,000 and 12,000", "ours"),
                clip=(1, "code"),
            ),
            quick=settings(
                T=(QUICK_T, "ours"),
                batch_size=(32, "ours"),
                optimizer=(f"Adam 1e-3, gain {GAIN:g}, 1,500 updates", "ours"),
            ),
            words=f"Its caption alone: training curves for {model} on Denoise.",
            would_change="More updates: the paper says neither how many nor of how many sequences.",
        )
    )


figure(
    5,
    "LSTM",
    "Adam 2e-4",
    (
        Claim(
            f"at T = {QUICK_T} LSTM hardly learns: its loss stays above half of that without a memory",
            QUICK_T,
            "loss",
            at_least=0.5,
            scale="quick",
            form="ours",
        ),
        Claim(
            "LSTM stays within 10 % of the loss without a memory at T = 1000",
            check=unlearned(1000, "loss", at_least=0.9),
            scale="full",
            over="median",
        ),
    ),
)
figure(
    6,
    "GORU",
    "RMSprop 1e-3",
    (
        Claim(
            f"at T = {QUICK_T} GORU begins to learn: its loss falls below 90 % of that without a memory",
            QUICK_T,
            "loss",
            at_most=0.9,
            scale="quick",
            form="ours",
        ),
        Claim(
            "GORU falls below half of the loss without a memory for T to 300",
            (100, 300),
            "loss",
            at_most=0.5,
            scale="full",
            over="median",
        ),
    ),
)
