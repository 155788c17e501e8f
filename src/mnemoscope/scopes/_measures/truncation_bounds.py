"""What the lemmas on stable systems guarantee about a model's truncations."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mnemoscope.adapters import WithReadout
from mnemoscope.finding import arrays
from mnemoscope.scopes._frame.subject import Subject
from mnemoscope.scopes._measures.certificates import certify
from mnemoscope.theory.stability import (
    LossConstants,
    SystemConstants,
    context_length,
    gradient_gap,
    loss_smoothness,
    prediction_gap,
    squared_loss,
    training_context_length,
)


@dataclass(frozen=True)
class TruncationBounds:
    """The bounds of Miller & Hardt's lemmas for one certified layer with an affine read-out y = C h + b.

    Attributes:
        system: the constants of the layer.
        readout: C (m, n); the identity if there is no read-out.
        loss: the constants of 1/2 ||y||^2.
        condition: what was checked, in words.
    """

    system: SystemConstants
    readout: Tensor
    loss: LossConstants
    condition: str

    @property
    def order(self) -> float:
        """Order of the norm in which differences of outputs are bounded."""
        return 2 if self.system.norm == "l2" else math.inf

    @property
    def readout_lipschitz(self) -> float:
        """L_f: the Lipschitz constant of the read-out in that norm."""
        return float(torch.linalg.matrix_norm(self.readout, ord=self.order))

    def bounds(self, lengths: np.ndarray, output_size: float, gradient_size: float) -> dict[str, np.ndarray]:
        """Return Proposition 1 and Lemma 2 at each window, relative to the sizes of the output and of its gradient."""
        lipschitz = self.readout_lipschitz
        outputs = [prediction_gap(self.system, lipschitz, int(k)) / output_size for k in lengths]
        gradients = [gradient_gap(self.system, self.loss, int(k)) / gradient_size for k in lengths]
        return arrays(output_bound=outputs, gradient_bound=gradients)

    def windows(self, allowed: float, rate: float, updates: int) -> dict[str, float]:
        """Return the windows of Proposition 1 and Theorem 1 for an allowed difference of outputs."""
        lipschitz = self.readout_lipschitz
        windows = {"certified_window": float(context_length(self.system, allowed, lipschitz))}
        is_smooth = math.isfinite(loss_smoothness(self.system, self.loss))
        if is_smooth and self.system.lam > 0:  # Theorem 1 needs a smooth loss
            trained = training_context_length(self.system, self.loss, allowed, rate, updates, lipschitz)
            windows["trained_window"] = float(trained)
        return windows


def truncation_bounds(subject: Subject) -> TruncationBounds | None:
    """Return the bounds for a model of one certified layer with at most an affine read-out after it; else None."""
    if subject.missing("step") or not subject.adapted.recurrence_is_model:
        return None
    certificates = certify(subject.layer, subject.recurrence_inputs)
    if len(certificates) != 1:
        return None
    system = certificates[0].constants
    affine = _affine_readout(subject)
    if system is None or not system.stable or affine is None:
        return None
    readout, offset = affine
    return TruncationBounds(system, readout, squared_loss(readout, -offset, system), certificates[0].condition)


@torch.no_grad()
def _affine_readout(subject: Subject) -> tuple[Tensor, Tensor] | None:
    """Return C (m, n) and the largest |b| (m,) of a read-out y = C h + b, where b may depend on the last input.

    None if the read-out is not affine in h.
    """
    recurrence = subject.recurrence
    x = subject.recurrence_inputs[-1]
    n = subject.layer.output_size
    basis = torch.eye(n, dtype=x.dtype, device=x.device)
    if not isinstance(recurrence, WithReadout):
        return basis.double().cpu(), x.new_zeros(n).double().cpu()
    offset = recurrence.read(x.new_zeros(len(x), n), x)  # (B, m)
    columns = recurrence.read(basis, x[:1].expand(n, -1)) - offset[:1]  # (n, m)
    h = torch.randn(len(x), n, generator=subject.generator()).to(x)
    if not torch.allclose(recurrence.read(h, x), h @ columns + offset, rtol=1e-4, atol=1e-5):
        return None
    return columns.T.double().cpu(), offset.abs().amax(0).double().cpu()
