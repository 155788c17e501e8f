"""The chaotic LSTM of two units (section 3.1 and appendix A.1), with the printed signs and with the right ones."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor

from mnemoscope.studies import settings
from mnemoscope.systems import ChaoticLSTM
from mnemoscope.theory.smoothness import chaotic_lstm

Signs = Literal["printed", "corrected"]
SIGNS: tuple[Signs, ...] = ("printed", "corrected")
STEPS, DISCARDED = 200, 100
INTRICATE = (0.9, 1.45)  # the range of s that the paper calls intricate
SMOOTH = (1.5, 2.0)

SETTINGS = settings(
    theta=("s theta_true", "paper"),
    start=("h_0 = c_0 = (0.5, 0.5)", "paper"),
    steps=(STEPS, "paper"),
    discarded=(DISCARDED, "paper"),
    precision=("float64", "ours", "float32 leaves the orbit within 80 steps"),
)
SIGN_ERROR = (
    "Two signs of the printed weights are wrong: W_hi[0, 1] is -4 (printed 4) and W_ho[1, 1] is -7 (printed 7), as in "
    "the authors' code. With the printed ones the orbit at s = 1 is a cycle."
)


def network(signs: Signs, s: float = 1.0) -> ChaoticLSTM:
    """Return the LSTM with the weights theta(s); of zeros for s = 0."""
    model = ChaoticLSTM(s)
    with torch.no_grad():
        model.weights(0).weight_hh.copy_(chaotic_lstm(s, printed=signs == "printed").weight_hh)
    return model


def silence() -> Tensor:
    """Return the input: 200 zeros."""
    return torch.zeros(STEPS, 1, 1, dtype=torch.float64)


def mean_square(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return eq. 2: the mean over the last 100 steps of the squared distance."""
    return (outputs - targets)[DISCARDED:].square().sum(-1).mean()


def inside(s: np.ndarray, bounds: tuple[float, float]) -> np.ndarray:
    """Return which values lie in a range, its ends included."""
    return (s >= bounds[0] - 1e-9) & (s <= bounds[1] + 1e-9)


def local_minima(cost: np.ndarray) -> np.ndarray:
    """Return which values along the last axis are below both neighbors; the ends never are."""
    found = np.zeros(cost.shape, dtype=bool)
    middle = cost[..., 1:-1]
    found[..., 1:-1] = (middle < cost[..., :-2]) & (middle < cost[..., 2:])
    return found
