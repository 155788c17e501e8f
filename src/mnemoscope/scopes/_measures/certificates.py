"""What can be proved about a layer's contraction from its weights, and the constants that follow.

The scopes' knowledge of particular layers is here: a proof needs their equations.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from mnemoscope.errors import MnemoscopeError
from mnemoscope.layers import LSTM, RNN, Layer, Weights, project_
from mnemoscope.recurrence import Recurrence
from mnemoscope.theory.stability import Nonlinearity, SystemConstants, lstm_certificate, lstm_constants, rnn_constants

Norm = Literal["Euclidean", "infinity", "weighted infinity"]


@dataclass(frozen=True)
class Certificate:
    """A bound on the factor by which one step of one layer changes the distance of two states.

    Attributes:
        lam: the factor in `norm`; the layer is stable if it is below 1.
        unweighted: the factor in that norm without weights, which bounds every measured ratio, be it below 1 or not.
        norm: in which `lam` holds.
        condition: what was checked, in words.
        constants: those of the lemmas, if they cover the layer.
    """

    lam: float
    unweighted: float
    norm: Norm
    condition: str
    constants: SystemConstants | None


def certify(recurrence: Recurrence, inputs: Tensor) -> list[Certificate]:
    """Return the certificates of the layers of a plain RNN or LSTM on inputs as large as these (T, B, d); else none."""
    equations = ("observe", "observe_cell", "project", "step")
    if not isinstance(recurrence, Layer) or not recurrence.unchanged_from(Layer, *equations):
        return []  # nothing is proved about equations that a subclass changed
    if isinstance(recurrence, RNN) and recurrence.unchanged_from(RNN, "advance", "cell", "phi"):
        return _certify_rnn(recurrence, inputs)
    if isinstance(recurrence, LSTM) and recurrence.unchanged_from(LSTM, "advance", "cell"):
        return _certify_lstm(recurrence, inputs)
    return []


def _certify_rnn(layer: RNN, inputs: Tensor) -> list[Certificate]:
    bound = float(torch.linalg.vector_norm(inputs.double(), dim=-1).max())
    certificates = []
    for place in range(layer.num_layers):
        w = layer.weights(place)
        phi = _nonlinearity(layer, w)
        if phi is None:
            return []
        constants = rnn_constants(*_tensors(w), input_bound=bound, nonlinearity=phi)
        lam = constants.lam
        condition = f"||V|| L_phi = {lam:.4g} for every input (Miller & Hardt 2018, section 6.2)"
        covered = not layer.preactivation  # the lemmas are about phi(V h + U x), not V phi(h) + U x
        certificates.append(Certificate(lam, lam, "Euclidean", condition, constants if covered else None))
        bound = constants.state_bound  # what the next layer reads
    return certificates


def _nonlinearity(layer: RNN, w: Weights) -> str | Nonlinearity | None:
    """Return the layer's non-linearity if its Lipschitz constant is known."""
    if layer.modrelu:
        continuous = float(w.bias_modrelu.max()) <= 0  # with a positive bias, modReLU jumps at the origin
        return Nonlinearity(1.0, math.inf, math.inf) if continuous else None
    return layer.nonlinearity if isinstance(layer.nonlinearity, str) else None


def _certify_lstm(layer: LSTM, inputs: Tensor) -> list[Certificate]:
    bound = float(inputs.abs().max())
    certificates = []
    for place in range(layer.num_layers):
        weights = _tensors(layer.weights(place))
        proof = lstm_certificate(*weights, input_bound=bound)
        needs_weights = proof.rate < 1 <= proof.lam
        condition = (
            f"the comparison matrix has row sums of {proof.lam:.4g}, weighted {proof.rate:.4g}, for inputs |x| <= "
            f"{bound:.4g}, with a forget gate of at most {proof.forget:.4g} (Miller & Hardt 2018, Proposition 5)"
        )
        certificates.append(
            Certificate(
                lam=proof.rate if needs_weights else proof.lam,
                unweighted=proof.lam,
                norm="weighted infinity" if needs_weights else "infinity",
                condition=condition,
                constants=lstm_constants(*weights, input_bound=bound),
            )
        )
        bound = 1.0  # the next layer reads |h| < 1
    return certificates


def _tensors(w: Weights) -> list[Tensor]:
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    return [getattr(w, name) for name in names if hasattr(w, name)]


@torch.no_grad()
def nearest_stable(layer: Recurrence, lam: float, inputs: Tensor) -> Recurrence | None:
    """Return a copy of the layer moved to the nearest `lam`-contractive weights; None if no such set is known."""
    if not isinstance(layer, Layer):
        return None
    moved = copy.deepcopy(layer)
    try:
        return project_(moved, lam, input_bound=max(float(inputs.abs().max()), 1e-6))
    except (MnemoscopeError, TypeError):
        return None
