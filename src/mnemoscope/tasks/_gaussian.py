"""Random Gaussian instances (Miller & Hardt 2018, section 7.1 and appendix A.5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from mnemoscope.errors import is_number
from mnemoscope.tasks._seeded import normal
from mnemoscope.tasks._task import Batch, Split, Task, require, require_at_least

TARGET_BOUND = 2.0  # y_T ~ U[-2, 2]


class System(NamedTuple):
    """h_t = phi(W h_{t-1} + U x_t) with the prediction f(h_t, x_t) = C h_t + D x_t, in float64."""

    W: Tensor  # (n, n), of spectral norm at most λ
    U: Tensor  # (n, d)
    C: Tensor  # (1, n)
    D: Tensor  # (1, d)

    def predict(self, states: Tensor, inputs: Tensor) -> Tensor:
        """Return the predictions (..., 1) for states (..., n) and inputs (..., d)."""
        return states @ self.C.T + inputs @ self.D.T


@dataclass(frozen=True)
class Gaussian(Task):
    """Gaussian inputs and a target y_T ~ U[-2, 2] independent of them: an instance to fit, not to learn.

    It measures how gradients and training change under truncation, whatever the data. One instance serves every
    training step, as in the paper's gradient descent. Targets are (B, 1), compared at the last step.
    """

    name = "gaussian"
    metric = "mse"
    higher_is_better = False
    output_size = 1

    T: int = 200
    """Steps of a sequence."""
    features: int = 32
    """Dimension d of an input."""
    hidden: int = 32
    """Dimension n of the state of the random system."""
    contraction: float = 0.75
    """λ, the bound on the spectral norm of W."""
    scaling: Literal["balanced", "literal"] = "balanced"
    """Variances: "literal" as printed (x 4, U and W 0.5, C and D 1), under which tanh saturates and training U of a
    linear system diverges; "balanced" divides those of U, C and D by their fan-in and takes x ~ N(0, I)."""

    def __post_init__(self) -> None:
        require_at_least(self, T=1, features=1, hidden=1)
        inside = is_number(self.contraction) and 0 < self.contraction < 1
        require(inside, "contraction", self.contraction, "between 0 and 1")
        require(self.scaling in ("balanced", "literal"), "scaling", self.scaling, "'balanced' or 'literal'")

    @property
    def input_size(self) -> int:
        return self.features

    @property
    def length(self) -> int:
        return self.T

    @property
    def baseline(self) -> float:
        """The variance of U[-2, 2], the loss of always predicting 0. One instance can be fitted below it."""
        return TARGET_BOUND**2 / 3

    def system(self, instance: int = 0) -> System:
        """Return the random stable system of one instance. The singular values of W are clamped at λ."""
        random = self.generator("system", instance)
        n = self.hidden
        d = self.features
        fan_n = 1 if self.scaling == "literal" else n
        fan_d = 1 if self.scaling == "literal" else d
        left, singular, right = torch.linalg.svd(normal((n, n), 0.5**0.5, random))
        return System(
            W=left @ torch.diag(singular.clamp_max(self.contraction)) @ right,
            U=normal((n, d), (0.5 / fan_d) ** 0.5, random),
            C=normal((1, n), fan_n**-0.5, random),
            D=normal((1, d), fan_d**-0.5, random),
        )

    def steps_per_epoch(self, size: int, split: Split = "train") -> int:
        return 1

    def _batch(self, step: int, size: int, split: Split) -> Batch:
        random = self.generator(split)
        std = 2.0 if self.scaling == "literal" else 1.0
        inputs = normal((self.T, size, self.features), std, random)
        uniform = torch.rand((size, 1), generator=random, dtype=torch.float64, device="cpu")
        targets = uniform * 2 * TARGET_BOUND - TARGET_BOUND
        return Batch(inputs.float(), targets.float())

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.mse_loss(outputs[-1], targets)

    def metrics(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        loss = self.loss(outputs, targets).item()
        return {"loss": loss, "mse": loss}
