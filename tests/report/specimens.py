"""Examinations to draw: real ones, measured once, and made-up ones."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch

from mnemoscope.finding import Examination, Finding
from mnemoscope.layers import LSTM, RelRNN
from mnemoscope.scopes import examine
from mnemoscope.tasks import Copy
from mnemoscope.training import NetworkConfig, SequenceModel

FAST = ("recurrence", "horizon", "truncation", "stability", "lyapunov", "attention", "paths", "signal", "separation")
EXPENSIVE = {
    "smoothness": {"points": 2, "lengths": 3},
    "landscape": {"points": 5},
    "attractors": {"steps": 60, "starts": 4},
}


@cache
def measured(model: str) -> Examination:
    """A small network, fresh, looked at through every scope there is."""
    torch.manual_seed(0)
    network = SequenceModel.for_task(Copy(T=12), NetworkConfig(model=model, hidden_size=8))
    inputs, targets = Copy(T=12).batch(0, 4, "valid")
    return examine(network, inputs, targets, Copy(T=12).loss, needs=22, options=EXPENSIVE)


@cache
def bare(model: str) -> Examination:
    """A layer of its own, to which the scopes of parameters apply too."""
    torch.manual_seed(0)
    layer = (RelRNN if model == "RelRNN" else LSTM)(3, 6)
    x = torch.randn(12, 4, 3)
    targets = torch.zeros(12, 4, 6)
    return examine(layer, x, targets, torch.nn.functional.mse_loss, options=EXPENSIVE)


def made(name: str = "LSTM", **findings: Finding) -> Examination:
    about = {"name": name, "model": name}
    return Examination(dict(findings), "It remembers. It moves. Do nothing.", about, seconds=1.0)


def horizon_of(reach: int = 10, steps: int = 40) -> Finding:
    """Gradients that fall to 1 % after `reach` steps."""
    profile = 0.01 ** (np.arange(steps) / reach)
    band = np.stack([profile / 2, profile * 2])
    return Finding(
        "horizon",
        f"Gradients reach {reach} steps back.",
        "estimated",
        figures={"horizon": reach, "lags": steps - 1, "explodes_at": np.inf, "rate": 0.9},
        series={"input_gradient": 3 * profile},
        spread={"input_gradient": 3 * band},
        method="one pass",
        assumptions=("these sequences are typical",),
        seconds=0.5,
    )


def orbits_of(values: int = 200, kept: int = 100) -> Finding:
    """The logistic map's bifurcation diagram: thousands of points."""
    rate = np.linspace(2.8, 4, values)
    x, seen = np.full(values, 0.4), []
    for step in range(300 + kept):
        x = rate * x * (1 - x)
        if step >= 300:
            seen.append(x)
    orbits = np.stack(seen, 1)[:, None]  # (values, 1, kept)
    return Finding("attractors", "Periods double.", "estimated", series={"values": rate, "orbits": orbits})


def landscape_of(points: int = 15) -> Finding:
    axis = np.linspace(-1, 1, points)
    cost = axis[None] ** 2 + 2 * axis[:, None] ** 2
    series = {"x": axis, "y": axis, "cost": cost}
    return Finding("landscape", "A bowl.", "estimated", series=series, figures={"cost": 0.0})


def batch_over_time() -> Finding:
    """What the recurrence scope says of a forgotten batch_first."""
    return Finding(
        "recurrence",
        "LSTM runs over the batch, not over time.",
        "estimated",
        labels={"kind": "runs over the batch"},
        warnings=("make it with batch_first=True",),
        figures={"step": 3, "sequence": 1},
        series={"gradient_by_step": np.eye(8)[3], "gradient_by_sequence": np.array([1.0, 1.0, 0.0, 0.0])},
    )
