"""Figure 6c: the cost of a word model while it is trained, and its perplexity in the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mnemoscope.report import Axis, Chart
from mnemoscope.studies import CellValue, Claim, Done, Note, Result, Scale, Study, band, measure, settings, study, table
from mnemoscope.studies.ribeiro._word_model import DATA, PERPLEXITY, QUICK, SETTINGS, training_run
from mnemoscope.sweeps import Job
from mnemoscope.training import evaluate

TEST, FALLS, LARGEST = "test perplexity", "evaluations with a lower loss", "largest rise of the loss"


def jobs(scale: Scale, seed: int) -> dict[Any, Job]:
    run = training_run(scale, seed)
    seconds, batches = (10, 20) if scale == "quick" else (600, 0)
    return {"run": run, "test": measure(perplexity, needs=run, seconds=seconds, batches=batches)}


def perplexity(run: Result, *, batches: int) -> Mapping[str, Any]:
    """The perplexity on the test text of the weights that were best on held-out text; 0 batches are all."""
    import torch

    model = run.run.model("best").to("cuda" if torch.cuda.is_available() else "cpu")
    found = evaluate(model, run.run.task, batch_size=10, batches=batches or None, split="test")
    return {"perplexity": found["perplexity"]}


def cells(scale: Scale, done: Done) -> dict[tuple[str, str], CellValue]:
    """The perplexity; how often the held-out loss falls up to its lowest, 0 if that is the first; its largest rise."""
    _, loss = done["run"].curve("loss")
    tested = done["test"].figure("perplexity", "infinity")
    if not np.isfinite(loss).any():
        return {
            ("LSTM", TEST): tested,
            ("LSTM", FALLS): Note("diverged", 0.0),
            ("LSTM", LARGEST): Note("diverged", "infinity"),
        }
    steps = np.diff(np.where(np.isfinite(loss), loss, np.inf))
    falls = steps[: int(np.nanargmin(loss))] < 0  # afterwards it may rise again: it learns by heart
    return {
        ("LSTM", TEST): tested,
        ("LSTM", FALLS): float(falls.mean()) if len(falls) else 0.0,
        ("LSTM", LARGEST): float(np.max(steps, initial=0.0)),
    }


def charts(scale: Scale, done: Sequence[Done]) -> list[Chart]:
    lines = (
        band("training", [_training_loss(one["run"]) for one in done], 0),
        band("held out", [one["run"].curve("loss") for one in done], 1),
    )
    return [Chart("cost", "Cost while training", Axis("updates"), Axis("cross-entropy", switch=True), lines)]


def _training_loss(run: Result) -> tuple[np.ndarray, np.ndarray]:
    """The mean training losses as they were logged."""
    records = [record for record in run.run.metrics() if "split" not in record and record.get("loss") is not None]
    return np.array([r["update"] for r in records], dtype=float), np.array([r["loss"] for r in records], dtype=float)


study(
    Study(
        "ribeiro/fig6c",
        "Figure 6c",
        "cost of a word model during training",
        jobs,
        cells,
        charts,
        claims=(
            Claim(
                "smooth: the held-out loss falls at 80 % of evaluations up to its lowest",
                column=FALLS,
                at_least=0.8,
            ),
            Claim("no evaluation has a held-out loss 0.1 above the one before", column=LARGEST, at_most=0.1),
            Claim(
                "test perplexity of 106 within 5 %",
                column=TEST,
                at_least=0.95 * PERPLEXITY,
                at_most=1.05 * PERPLEXITY,
                scale="full",
            ),
        ),
        published=table(("LSTM",), (TEST, FALLS, LARGEST), [[PERPLEXITY, None, None]], within=0.05),
        settings=(*SETTINGS, *settings(test=("streams of 10, as PyTorch's example", "ours"))),
        quick=(*QUICK, *settings(test=("20 batches of 10 sequences", "ours"))),
        words="The convergence toward the final solution is smooth and well behaved.",
        errata=("The quick version's perplexity is over 2,000 words and has nothing to do with 106.",),
        would_change="The authors' N(0, 1) start of the tied embedding.",
        data=DATA,
    )
)
