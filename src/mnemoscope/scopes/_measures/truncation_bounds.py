"""What the lemmas on stable systems guarantee about a model's truncations."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mnemoscope.adapters import WithReadout
from mnemoscope.finding import arrays
from mnemoscope.layers import Layer
from mnemoscope.recurrence import Recurrence, leaves
from mnemoscope.scopes._frame.subject import Subject
from mnemoscope.scopes._measures.certificates import certify, rounding
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
        loss: the constants of 1/2 ||y||^2; None if gradients are not covered, as more or other numbers are trained.
        condition: what was checked, in words.
    """

    system: SystemConstants
    readout: Tensor
    loss: LossConstants | None
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
        """Return Proposition 1 and Lemma 2 at each window, relative to the sizes of the output and of its gradient.

        Without Lemma 2 if there is no gradient, whose size is then NaN.
        """
        lipschitz = self.readout_lipschitz
        outputs = [prediction_gap(self.system, lipschitz, int(k)) / output_size for k in lengths]
        if self.loss is None or math.isnan(gradient_size):
            return arrays(output_bound=outputs)
        gradients = [gradient_gap(self.system, self.loss, int(k)) / gradient_size for k in lengths]
        return arrays(output_bound=outputs, gradient_bound=gradients)

    def check(self, subject: Subject, series: dict[str, np.ndarray], output_size: float) -> None:
        """Compare the bounds with the errors measured at the same windows, both relative."""
        loose = torch.finfo(subject.dtype).eps ** 0.5
        states = torch.tensor(self.system.state_bound, dtype=subject.dtype)
        error = subject.steps * rounding(subject.recurrence, subject.recurrence_inputs, states) / output_size
        for kind, allowance in (("output", max(loose, error)), ("gradient", loose)):
            if f"{kind}_bound" in series and f"{kind}_error" in series:
                measured = torch.from_numpy(series[f"{kind}_error"])
                bound = torch.from_numpy(series[f"{kind}_bound"])
                subject.check_bound(f"the {kind} error of a window", measured, bound, allowance)

    def windows(self, allowed: float, rate: float, updates: int) -> dict[str, float]:
        """Return the windows of Proposition 1 and Theorem 1 for an allowed difference of outputs."""
        lipschitz = self.readout_lipschitz
        windows = {"certified_window": float(context_length(self.system, allowed, lipschitz))}
        loss = self.loss
        if loss is None or self.system.lam == 0 or lipschitz == 0:
            return windows
        if math.isfinite(loss_smoothness(self.system, loss)):  # Theorem 1 needs a smooth loss
            trained = training_context_length(self.system, loss, allowed, rate, updates, lipschitz)
            windows["trained_window"] = float(trained)
        return windows


def truncation_bounds(subject: Subject) -> TruncationBounds | None:
    """Return the bounds for a model of one certified layer with at most an affine read-out after it; else None."""
    if subject.missing("step") or not subject.adapted.recurrence_is_model:
        return None
    if not torch.equal(subject.features, subject.recurrence_inputs):  # it runs over the batch: windows are not its own
        return None
    layer = subject.layer
    certificate = certify(layer, subject.recurrence_inputs)
    system = None if certificate is None or not certificate.stable else certificate.constants
    affine = _affine_readout(subject)
    if not isinstance(layer, Layer) or certificate is None or system is None or not system.stable or affine is None:
        return None
    if not math.isfinite(system.state_bound):  # of inputs so large that the bound overflows
        return None
    readout, offset = affine
    is_covered = _trains_its_weights(layer) and not _trains_start(layer)
    loss = squared_loss(readout, -offset, system) if is_covered else None
    return TruncationBounds(system, readout, loss, certificate.condition)


def _trains_its_weights(layer: Layer) -> bool:
    """True if the parameters are the weights that the lemmas speak of, each once: not tied, and not what a
    parametrization computes them from, by which gradients may be larger."""
    trained = [id(parameter) for parameter in layer.parameters()]
    return sorted(trained) == sorted(map(id, vars(layer.weights(0)).values()))


def _trains_start(layer: Recurrence) -> bool:
    """True if the start state depends on parameters: the lemmas on gradients take it as constant."""
    parameters = list(layer.parameters())
    before = [parameter.requires_grad for parameter in parameters]
    try:
        for parameter in parameters:
            parameter.requires_grad_()
        return any(tensor.requires_grad for tensor in leaves(layer.initial_state(1)))
    finally:
        for parameter, required in zip(parameters, before, strict=True):
            parameter.requires_grad_(required)


@torch.no_grad()
def _affine_readout(subject: Subject) -> tuple[Tensor, Tensor] | None:
    """Return C (m, n) and the largest |b| (m,) of a read-out y = C h + b, where b may depend on the last input.

    None if the read-out is not affine in h. That it is, its own class must say: no sample of states can prove it.
    """
    recurrence = subject.recurrence
    x = subject.recurrence_inputs[-1]
    n = subject.layer.output_size
    basis = torch.eye(n, dtype=x.dtype, device=x.device)
    if not isinstance(recurrence, WithReadout):
        return basis.double().cpu(), x.new_zeros(n).double().cpu()
    if getattr(recurrence.model, "affine_readout", None) is None:
        return None
    offset = recurrence.read(x.new_zeros(len(x), n), x)  # (B, m)
    columns = recurrence.read(basis, x[:1].expand(n, -1)) - offset[:1]  # (n, m)
    h = torch.randn(len(x), n, generator=subject.generator()).to(x)
    if not torch.allclose(recurrence.read(h, x), h @ columns + offset, rtol=1e-4, atol=1e-5):
        return None
    return columns.T.double().cpu(), offset.abs().amax(0).double().cpu()
