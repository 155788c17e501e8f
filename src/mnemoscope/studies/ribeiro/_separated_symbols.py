"""The LSTM that classifies by two widely separated symbols (section 5, appendix A.2): its runs, and their two ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from mnemoscope.scopes import attractors
from mnemoscope.studies import CellValue, Note, Result, Scale, measure, settings, train
from mnemoscope.sweeps import Job
from mnemoscope.tasks import Symbols
from mnemoscope.training import FitConfig, NetworkConfig, RunConfig, SequenceModel, initial_model

Scenario = Literal["good", "bad", "neither"]
SCENARIOS: tuple[Scenario, ...] = ("good", "bad")
CLASSES = ("(p, p)", "(p, q)", "(q, p)", "(q, q)")
TEXT, CODE, ALL_OF_CODE = "clip of the text", "clip of the code", "all settings of the code"
SEEDS_OF_CODE = 3  # of the runs by all settings of the code, which are five times as long
NETWORK = NetworkConfig("LSTM", hidden_size=50, init="torch")
EPOCHS = 2100  # after the last milestone the rate is a thousandth: nothing moves any more
STARTS, SPREAD = 10, 100.0
STEPS, RECORDED = 700, 100
KEPT = 8  # recorded steps of each orbit that are drawn

SETTINGS = settings(
    sequences=("1,000 for training, 1,000 held out", "paper"),
    T=(150, "paper", "code: 200"),
    positions=("t_1 in [10, 19], t_2 in [40, 49]", "paper"),
    network=("LSTM of 50 units", "paper"),
    optimizer=("Adam, 0.001", "paper"),
    milestones=("x 0.1 at epochs 500, 1000, 2000", "paper", "code: x 0.25"),
    epochs=(EPOCHS, "ours", "the paper does not say; code: up to 10,000"),
    batch_size=(100, "paper"),
    clip=("0.25 of the mean loss, and 0.0025", "paper", "code: 0.25 of the sum over a batch, 0.0025 of its mean"),
    init=("as torch draws them", "code"),
)
QUICK = settings(
    good=("T = 60, 100 epochs, x 0.1 at 80", "ours"),
    bad=("100 sequences, 2,000 epochs, x 0.1 at 1,600", "ours"),
    clip=("0.25 of the mean loss", "paper"),
)
FEW_WORDS = "The paper does not say how many epochs were run, nor how often each of the two scenarios occurs."
CLIP_ERROR = (
    "The authors' code adds up the losses of a batch of 100 and clips the gradient at 0.25: that is 0.0025 of the "
    "mean loss that the paper's eq. 2 has."
)


def runs(scale: Scale, seed: int) -> dict[str, Job]:
    """Return the training runs of a seed: one of each scenario at sizes where it is sure, or the paper's own."""
    if scale == "full":
        return {name: train(_paper(seed, clip)) for name, clip in ((TEXT, 0.25), (CODE, 0.0025))}
    return {"good": train(_good(seed)), "bad": train(_bad(seed))}


def _good(seed: int) -> RunConfig:
    """With 60 steps the LSTM learns what it must."""
    return RunConfig(Symbols(T=60, seed=seed), NETWORK, _fit(seed, epochs=100, milestones=(80,)))


def _bad(seed: int) -> RunConfig:
    """With 100 sequences of 150 steps it learns them by heart."""
    fit = _fit(seed, epochs=2000, milestones=(1600,), evaluate_every=50)
    return RunConfig(Symbols(sequences=100, seed=seed), NETWORK, fit)


def _paper(seed: int, clip: float) -> RunConfig:
    fit = _fit(seed, epochs=EPOCHS, milestones=(500, 1000, 2000), evaluate_every=100, clip=clip)
    return RunConfig(Symbols(seed=seed), NETWORK, fit)


def run_of_code(seed: int) -> Job:
    """Return the run by the authors' code wherever that differs from the paper; the good scenario ends it."""
    fit = _fit(
        seed,
        epochs=10_000,
        milestones=(500, 1000, 2000),
        factor=0.25,
        evaluate_every=500,
        clip=0.0025,
        stop_when_solved=True,
    )
    return train(RunConfig(Symbols(T=200, first=9, second=39, seed=seed), NETWORK, fit))


def _fit(seed: int, **options: Any) -> FitConfig:
    """Return how all of these are trained: to the end of the schedule, whose last steps are small.

    At the rate of the beginning the loss leaps up now and then, perhaps just at the end.
    """
    common: dict[str, Any] = dict(
        batch_size=100,
        clip=0.25,
        schedule="milestones",
        factor=0.1,
        evaluate_every=20,
        evaluate_train=True,
        stop_when_solved=False,
        seed=seed,
    )
    return FitConfig(**{**common, **options})


def accuracies(run: Result) -> tuple[float, float]:
    """Return the last accuracy on the training data and on the held-out data."""
    return float(run.curve("accuracy", "train")[1][-1]), float(run.curve("accuracy")[1][-1])


def accuracy_cells(run: Result) -> tuple[CellValue, CellValue]:
    """Return the same as cells: a guess among four classes if the run diverged before it was evaluated."""
    if run.diverged_at_once:
        return Note("diverged", 1 / len(CLASSES)), Note("diverged", 1 / len(CLASSES))
    return accuracies(run)


def scenario(run: Result) -> Scenario:
    """Return which of the paper's two scenarios a run ended in; neither, if it learned nothing."""
    on_train, held_out = accuracies(run)
    if min(on_train, held_out) >= 0.95:
        return "good"
    return "bad" if on_train >= 0.8 and held_out <= 0.35 else "neither"


def ends(run: Result) -> tuple[SequenceModel, SequenceModel]:
    """Return the network as it was before training and as it ended: what is best on held-out data is not the end."""
    return initial_model(run.run.config), run.run.model("last")


def way(initial: nn.Module, final: nn.Module) -> Callable[[float], dict[str, Tensor]]:
    """Return s -> s theta_init + (1 - s) theta_final."""
    first, last = initial.state_dict(), final.state_dict()
    return lambda s: {name: s * first[name] + (1 - s) * last[name] for name in last}


def bifurcation(scale: Scale, run: Job) -> Job:
    """Return the job that finds the attractors under all six symbols along the way, which three figures share."""
    return measure(orbits, needs=run, seconds=30 if scale == "quick" else 240, points=21 if scale == "quick" else 101)


def orbits(run: Result, *, points: int) -> Mapping[str, Any]:
    """Where the outputs end up under each constant symbol, from ten starts, for s in [-0.5, 1.5]."""
    initial, final = ends(run)
    s = np.linspace(-0.5, 1.5, points)
    symbols = torch.eye(len(Symbols.alphabet))
    found = attractors(
        final,
        symbols[:, None],  # six steps of one sequence, for its shape
        path=way(initial, final),
        values=s.tolist(),
        constants=symbols,
        starts=STARTS,
        spread=SPREAD,
        steps=STEPS,
        recorded=RECORDED,
        outputs=True,
        x_label="s (0 final, 1 initial)",
        fixed=False,
    )
    basins = found.series["basins"]  # (symbols, s, starts), the fraction that ends on the same attractor
    outputs = found.series["outputs"]  # (symbols, s, starts, steps, classes)
    return {
        "scenario": scenario(run),
        "s": s,
        "attractors": np.rint((1 / (basins * STARTS)).sum(-1)),
        "aperiodic": (found.series["period"] == 0).mean(-1),
        "longest": found.series["period"].max(-1),
        "spread": np.ptp(outputs[..., 0], axis=(2, 3)),
        "outputs": outputs[..., -KEPT:, :].astype(np.float32),
    }


def is_fixed(result: Result, symbol: str, s: float = 0.0) -> bool:
    """Return whether all starts end in one fixed point under a symbol."""
    at = _at(result, symbol, s)
    return result["attractors"][at] == 1 and result["longest"][at] == 1 and result["aperiodic"][at] == 0


def count(result: Result, symbol: str, s: float = 0.0) -> float:
    """Return the number of attractors under a symbol; all orbits without a period count as one."""
    return float(result["attractors"][_at(result, symbol, s)])


def _at(result: Result, symbol: str, s: float) -> tuple[int, int]:
    return Symbols.alphabet.index(symbol), int(np.abs(result["s"] - s).argmin())
