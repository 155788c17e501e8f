"""The LSTM that predicts words of WikiText-2 (section 5 and appendix A.3): its run, and the way from start to end."""

from __future__ import annotations

import torch

from mnemoscope.studies import Result, Scale, settings, train
from mnemoscope.sweeps import Job
from mnemoscope.tasks import Words
from mnemoscope.training import FitConfig, NetworkConfig, RunConfig, SequenceModel, initial_model

WORDS = 2000  # of the quick version
DATA = ("wikitext-2",)
PERPLEXITY = 106.0

SETTINGS = settings(
    network=("LSTM of 800 units, embedding of 800, tied", "paper"),
    dropout=(0.5, "paper", "before and after the LSTM"),
    optimizer=("Adam, 0.001", "paper"),
    schedule=("x 0.1 after 7 epochs without a lower held-out loss", "paper"),
    clip=(0.25, "paper"),
    batch_size=(100, "paper"),
    steps=(80, "paper", "code: 70"),
    epochs=(100, "code"),
    init=("embedding between -0.1 and 0.1", "ours", "code: N(0, 1)"),
    precision=("float32; on a GPU matrix products in TF32", "ours"),
)
QUICK = settings(
    words=(f"the {WORDS:,} most frequent", "ours"),
    network=("LSTM of 64 units, embedding of 64, tied, no dropout", "ours"),
    updates=("400 of 20 sequences of 40 steps", "ours"),
)


def training_run(scale: Scale, seed: int) -> Job:
    """Return the run that all three parts of figure 6 look at."""
    if scale == "quick":
        network = NetworkConfig("LSTM", hidden_size=64, embedding=64, tied=True)
        fit = FitConfig(updates=400, batch_size=20, clip=0.25, evaluate_every=50, evaluate_batches=8, seed=seed)
        return train(RunConfig(Words(bptt=40, vocabulary=WORDS, seed=seed), network, fit))
    network = NetworkConfig("LSTM", hidden_size=800, embedding=800, tied=True, dropout=0.5)
    fit = FitConfig(
        epochs=100,
        batch_size=100,
        clip=0.25,
        schedule="plateau",
        factor=0.1,
        patience=7,
        evaluate_every=262,  # an epoch
        checkpoint_every=5 * 262,
        precision="tf32-true",
        seed=seed,
    )
    return train(RunConfig(Words(bptt=80, seed=seed), network, fit))


def both_ends(run: Result) -> tuple[SequenceModel, SequenceModel]:
    """Return the initial network and the best on held-out text, on the GPU if there is one: the full one is large."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return initial_model(run.run.config).to(device), run.run.model("best").to(device)
