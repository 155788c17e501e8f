"""What the lemmas on stable systems promise of a model's truncations."""

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
class Promise:
    """A certified layer of one layer with an affine read-out y = C h + b: what Miller & Hardt's lemmas say of it."""

    system: SystemConstants
    readout: Tensor  # C (m, n); the identity where there is none
    loss: LossConstants  # of 1/2 ||y||^2
    condition: str

    @property
    def order(self) -> float:
        """Of the norm in which differences of outputs are bounded."""
        return 2 if self.system.norm == "l2" else math.inf

    @property
    def steepness(self) -> float:
        """L_f of the read-out in that norm."""
        return float(torch.linalg.matrix_norm(self.readout, ord=self.order))

    def bounds(self, lengths: np.ndarray, size: float, gradient: float) -> dict[str, np.ndarray]:
        """Proposition 1 and Lemma 2 at each window, relative to the sizes of the output and of its gradient."""
        outputs = [prediction_gap(self.system, self.steepness, int(k)) / size for k in lengths]
        gradients = [gradient_gap(self.system, self.loss, int(k)) / gradient for k in lengths]
        return arrays(output_bound=outputs, gradient_bound=gradients)

    def windows(self, allowed: float, rate: float, updates: int) -> dict[str, float]:
        """The windows that Proposition 1 and Theorem 1 promise for an allowed difference of outputs."""
        found = {"certified_window": float(context_length(self.system, allowed, self.steepness))}
        if math.isfinite(loss_smoothness(self.system, self.loss)) and self.system.lam > 0:  # Theorem 1 needs smoothness
            trained = training_context_length(self.system, self.loss, allowed, rate, updates, self.steepness)
            found["trained_window"] = float(trained)
        return found


def promise_of(subject: Subject) -> Promise | None:
    """The promise for a model of one certified layer, and at most an affine read-out after it; else none."""
    if subject.missing("step") or not subject.adapted.recurrence_is_model:
        return None
    proofs = certify(subject.layer, subject.recurrence_inputs)
    system = proofs[0].constants if len(proofs) == 1 else None
    affine = _read_out(subject)
    if system is None or not system.stable or affine is None:
        return None
    readout, offset = affine
    return Promise(system, readout, squared_loss(readout, -offset, system), proofs[0].condition)


@torch.no_grad()
def _read_out(subject: Subject) -> tuple[Tensor, Tensor] | None:
    """C (m, n) and the largest moduli of b (m,) of a read-out y = C h + b, where b may depend on the last input."""
    recurrence, x = subject.recurrence, subject.recurrence_inputs[-1]
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
