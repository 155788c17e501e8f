"""Language models on WikiText-2, as the paper's three studies of them train them."""

from __future__ import annotations

import torch

from mnemoscope.studies import Result, Scale, Source
from mnemoscope.tasks import Words
from mnemoscope.training import FitConfig, NetworkConfig, RunConfig, evaluate

WORDS = 2_088_628  # of the training text
QUICK_WORDS = 2_000
QUICK_SIZE = 64
BATCH = 20
EPOCHS = 40
TEST_STREAMS = 10  # in which PyTorch's example reads the test text
PRECISION: tuple[str, Source] = ("float32; on a GPU matrix products in TF32", "ours")  # of the settings


def language_model(
    scale: Scale,
    network: NetworkConfig,
    *,
    chunk: int,
    lr: float,
    seed: int,
    quick_updates: int,
    stable: float | None = None,
    bptt: int = 0,
    snapshots: tuple[int, ...] = (),
    snapshot_weights: tuple[str, ...] = (),
) -> RunConfig:
    """Return a run by the rules of PyTorch's word_language_model, which the paper's experiments use.

    Args:
        scale: "quick" has fewer words, updates and units, and no dropout.
        network: of the full size.
        chunk: steps of a chunk of text.
        lr: the first learning rate.
        seed: of the weights and of dropout.
        quick_updates: how long the quick version is trained.
        stable: the bound on the recurrent weights, if any.
        bptt: where back-propagation is cut inside a chunk; 0 does not.
        snapshots: epochs after which the full version keeps its weights; the quick one keeps four.
        snapshot_weights: those of the full version, if not all: they are 440 MB each time.
    """
    common = FitConfig(
        batch_size=BATCH,
        optimizer="sgd",
        lr=lr,
        schedule="plateau",
        factor=0.25,
        clip=0.25,
        stable=stable,
        bptt=bptt,
        seed=seed,
        log_every=50,
    )
    values = dict(vars(common))
    if scale == "full":
        epoch = -(-(WORDS // BATCH - 1) // chunk)
        values |= {"epochs": EPOCHS, "evaluate_every": epoch, "checkpoint_every": 5 * epoch, "snapshot_at": snapshots}
        values["snapshot_weights"] = snapshot_weights
        values["precision"] = "tf32-true"  # most of the time goes into scores of 33,278 words
        return RunConfig(Words(bptt=chunk), network, FitConfig(**values))
    every = quick_updates // 4 if snapshots else 0
    evaluations = {"evaluate_every": quick_updates // 4, "evaluate_batches": 60}
    values |= {"updates": quick_updates, "snapshot_every": every, **evaluations}
    small = NetworkConfig(network.model, QUICK_SIZE, embedding=QUICK_SIZE, init=network.init)
    return RunConfig(Words(bptt=chunk, vocabulary=QUICK_WORDS), small, FitConfig(**values))


def quick_name(scale: Scale, name: str) -> str:
    """Return the name of a row: that of a quick run says so, since a published number does not stand beside it."""
    return name if scale == "full" else f"{name}, {QUICK_WORDS} words"


def test_perplexity(run: Result) -> float:
    """Return the perplexity of the best weights on the test text."""
    model = run.run.model("best").to("cuda" if torch.cuda.is_available() else "cpu")
    return evaluate(model, run.run.task, batch_size=TEST_STREAMS, split="test")["perplexity"]
