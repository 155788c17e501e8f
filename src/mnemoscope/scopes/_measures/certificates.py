"""What can be proved of a layer's contraction from its weights, and the constants that follow."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from mnemoscope.layers import LSTM, RNN, Layer, Weights
from mnemoscope.recurrence import Recurrence
from mnemoscope.theory.stability import Nonlinearity, SystemConstants, lstm_certificate, lstm_constants, rnn_constants

Norm = Literal["Euclidean", "infinity", "weighted infinity"]


@dataclass(frozen=True)
class Certified:
    """One layer's factor `lam` by which every step brings two states nearer, in a norm; stable below 1.

    `plain` is the factor in that norm without weights, which bounds every measured ratio, be it above 1 or not.
    `constants` are those of the lemmas, where they cover the layer.
    """

    lam: float
    plain: float
    norm: Norm
    condition: str
    constants: SystemConstants | None


def certify(recurrence: Recurrence, drive: Tensor) -> list[Certified]:
    """The certificates of the layers of a plain RNN or LSTM on inputs as large as `drive` (T, B, d); else none."""
    if not isinstance(recurrence, Layer) or not recurrence.unchanged_from(
        Layer, "observe", "observe_cell", "project", "step"
    ):
        return []  # nothing is proved of equations that a subclass changed
    if isinstance(recurrence, RNN) and recurrence.unchanged_from(RNN, "advance", "cell", "phi"):
        return _rnn(recurrence, drive)
    if isinstance(recurrence, LSTM) and recurrence.unchanged_from(LSTM, "advance", "cell"):
        return _lstm(recurrence, drive)
    return []


def _rnn(layer: RNN, drive: Tensor) -> list[Certified]:
    bound = float(torch.linalg.vector_norm(drive.double(), dim=-1).max())
    found = []
    for place in range(layer.num_layers):
        w = layer.weights(place)
        phi = _phi(layer, w)
        if phi is None:
            return []
        constants = rnn_constants(*_tensors(w), input_bound=bound, nonlinearity=phi)
        condition = f"||V|| L_phi = {constants.lam:.4g} for every input (Miller & Hardt 2018, section 6.2)"
        usable = None if layer.preactivation else constants  # the lemmas are about phi(V h + U x), not V phi(h) + U x
        found.append(Certified(constants.lam, constants.lam, "Euclidean", condition, usable))
        bound = constants.state_bound  # what the next layer reads
    return found


def _phi(layer: RNN, w: Weights) -> str | Nonlinearity | None:
    """The layer's non-linearity as far as its Lipschitz constant is known."""
    if layer.modrelu:  # with a positive bias, modReLU jumps at the origin
        return Nonlinearity(1.0, math.inf, math.inf) if float(w.bias_modrelu.max()) <= 0 else None
    return layer.nonlinearity if isinstance(layer.nonlinearity, str) else None


def _lstm(layer: LSTM, drive: Tensor) -> list[Certified]:
    bound = float(drive.abs().max())
    found = []
    for place in range(layer.num_layers):
        weights = _tensors(layer.weights(place))
        proof = lstm_certificate(*weights, input_bound=bound)
        weighted = proof.rate < 1 <= proof.lam
        condition = (
            f"the comparison matrix has row sums of {proof.lam:.4g}, weighted {proof.rate:.4g}, for inputs |x| <= "
            f"{bound:.4g}, with a forget gate of at most {proof.forget:.4g} (Miller & Hardt 2018, Proposition 5)"
        )
        norm: Norm = "weighted infinity" if weighted else "infinity"
        constants = lstm_constants(*weights, input_bound=bound)
        found.append(Certified(proof.rate if weighted else proof.lam, proof.lam, norm, condition, constants))
        bound = 1.0  # |h| < 1 is what the next layer reads
    return found


def _tensors(w: Weights) -> list[Tensor]:
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    return [getattr(w, name) for name in names if hasattr(w, name)]
