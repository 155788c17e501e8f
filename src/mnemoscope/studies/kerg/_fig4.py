"""Figure 4: training curves on Copy and on Denoise, a panel for each model, a line for each length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mnemoscope.report import Chart, Panels
from mnemoscope.studies import Cells, CellValue, Claim, Done, Scale, Study, settings, study, table, train
from mnemoscope.studies.kerg._published import BATCH, BUDGET
from mnemoscope.studies.kerg._recall import (
    GAIN,
    LENGTHS,
    LOWER_RATE,
    MODELS,
    by_the_paper,
    copy_run,
    curve_panels,
    denoise_run,
    denoise_run_again,
    loss_share,
    quick_run,
    unlearned,
)
from mnemoscope.sweeps import Job

DENOISE_LENGTHS = (100, 300, 1000)
TRIED_AGAIN = (300, 1000)
DENOISE_MODELS = {name: model for name, model in MODELS.items() if name != "LSTM"}  # Figure 5's
QUICK_COPY = {"expRNN": "ExpRNN", "RelRNN": "RelRNN"}
QUICK_T = 30  # on Denoise
LEARNED = 0.1  # of the loss without a memory
TABLE_7 = "RelRNN by Table 7, halved sum"
AGAIN = f"RelRNN, lr {LOWER_RATE:g}"  # on Denoise


def jobs(scale: Scale, seed: int) -> dict[Any, Job]:
    if scale == "quick":
        runs = {("copy", model, 100): quick_run("copy", model, seed) for model in QUICK_COPY.values()}
        runs["denoise", "RelRNN", QUICK_T] = quick_run("denoise", "RelRNN", seed, QUICK_T)
    else:
        order = ("RelRNN", "RelLSTM", "MemRNN", "ExpRNN", "OrthRNN", "SAB")
        runs = {("denoise", model, T): denoise_run(model, T, seed) for T in DENOISE_LENGTHS for model in order}
        # Table 7's own row, with the sum halved as in the code: with s = h + c it explodes.
        runs["denoise", TABLE_7, 100] = by_the_paper("denoise", "RelRNN", 100, seed, BUDGET, mix="mean")
        runs |= {("denoise", AGAIN, T): denoise_run_again(T, seed) for T in TRIED_AGAIN}
        runs |= {("copy", model, T): copy_run(model, T, seed) for T in LENGTHS for model in MODELS.values()}
    return {key: train(config) for key, config in runs.items()}


def cells(scale: Scale, done: Done) -> dict[tuple[str, str], CellValue]:
    names = {model: name for name, model in MODELS.items()}
    return {(f"{task} {T}", names.get(model, model)): loss_share(scale, run) for (task, model, T), run in done.items()}


def charts(scale: Scale, done: Sequence[Done]) -> list[Chart | Panels]:
    copy, denoise = "Copy: held-out loss while learning", "Denoise: held-out loss while learning"
    if scale == "quick":
        return [
            *curve_panels("copy", copy, done, QUICK_COPY, (100,)),
            *curve_panels("denoise", denoise, done, {"RelRNN": "RelRNN"}, (QUICK_T,)),
        ]
    return [
        *curve_panels("copy", copy, done, MODELS, LENGTHS),
        *curve_panels("denoise", denoise, done, {**DENOISE_MODELS, AGAIN: AGAIN, TABLE_7: TABLE_7}, DENOISE_LENGTHS),
    ]


def _learned_by_some_rate(found: Cells) -> bool | None:
    """Whether RelRNN learns Denoise at every T; open while the lower rate was not tried where the other failed."""
    failed = [T for T in DENOISE_LENGTHS if found[f"denoise {T}", "RelRNN"] > LEARNED]
    again = [found.get((f"denoise {T}", AGAIN)) for T in failed if T in TRIED_AGAIN]
    if len(again) < len(failed) or any(share is not None and share > LEARNED for share in again):
        return False
    return None if None in again else True


ROWS = [f"copy {T}" for T in LENGTHS] + [f"denoise {T}" for T in DENOISE_LENGTHS]

study(
    Study(
        "kerg/fig4",
        "Figure 4",
        "training curves on Copy and Denoise by model and length",
        jobs,
        cells,
        charts,
        claims=(
            Claim(
                "Copy at T = 100: the loss of RelRNN and expRNN falls below a tenth of that without a memory",
                "copy 100",
                ("RelRNN", "expRNN"),
                at_most=0.1,
                scale="quick",
            ),
            Claim(
                f"Denoise at T = {QUICK_T}: RelRNN's loss falls below half of that without a memory",
                f"denoise {QUICK_T}",
                "RelRNN",
                at_most=0.5,
                scale="quick",
                form="ours",
            ),
            Claim(
                "Copy: the loss of RelRNN falls below a tenth of that without a memory at every T",
                ROWS[:6],
                "RelRNN",
                at_most=0.1,
                scale="full",
                over="median",
            ),
            Claim(
                "Denoise: the loss of RelRNN, by one rate or the other, falls below a tenth of that without a memory "
                "at every T",
                check=_learned_by_some_rate,
                scale="full",
                over="median",
            ),
            Claim(  # the headline until its run diverged; the lower rate was added then
                "Denoise: the loss of RelRNN by Adam 1e-3 falls below a tenth of that without a memory at every T",
                ROWS[6:],
                "RelRNN",
                at_most=LEARNED,
                scale="full",
                over="median",
                headline=False,
            ),
            Claim(
                "Copy: LSTM stays within 10 % of the loss without a memory from T = 500 on",
                check=unlearned(ROWS[3:6], "LSTM", at_least=0.9),
                scale="full",
                over="median",
            ),
        ),
        published=table(
            ROWS,
            tuple(MODELS),
            without=[(f"denoise {T}", "LSTM") for T in DENOISE_LENGTHS],  # Figure 5's
            row_title="task, T",
            column_title="lowest loss, as a share of the loss without a memory",
            note="curves without numbers",
        ),
        settings=settings(
            copy=("the runs of Table 5", "ours", "Table 6 where it has a row"),
            denoise=("Table 7 for orth-RNN and expRNN", "paper", "in batches of 64"),
            denoise_others=("Adam 1e-3 for MemRNN, SAB and RelLSTM", "ours", "no rows in Table 7"),
            denoise_RelRNN=("Adam 1e-3, tanh, rho = 20", "ours", "Table 7's row explodes with s = h + c"),
            denoise_RelRNN_again=(
                f"Adam {LOWER_RATE:g} from T = 300 on",
                "ours",
                "added when by 1e-3 it had diverged at T = 300; before, the headline claim was of 1e-3 alone",
            ),
            denoise_T=("100, 300, 1000", "ours", "the paper also has 200, 500, 2000"),
            denoise_updates=(f"{BUDGET:,}, 20,000 and 12,000 of {BATCH}", "ours"),
        ),
        quick=settings(
            copy=("the runs of Table 5's quick version", "ours"),
            denoise=(f"RelRNN at T = {QUICK_T}, Adam 1e-3, gain {GAIN:g}", "ours"),
        ),
        words="One panel a model, a line a length; one unit of the horizontal axis is 100 iterations, 10 for expRNN.",
        errata=(
            "In the authors' plotting code the horizontal axis of orth-RNN is stretched by 3, 4 or 5 for some lengths.",
            "Table 7's RelRNN (modReLU, an orthogonal V) cannot be run with s = h + c: its states grow by a quarter at "
            "every step. It belongs to the code's s = (h + c)/2.",
        ),
        would_change="More updates on Denoise, whose runs are stopped at a budget.",
    )
)
