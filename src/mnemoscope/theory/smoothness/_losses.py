"""What Theorem 1 of Ribeiro et al. 2019 asks of a loss (Lemmas 1 and 2, appendix C.1)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from mnemoscope.theory._statement import PAPERS, Row, statement


@dataclass(frozen=True)
class LossProperties:
    """Lemma 2, corrected. For predictions p and q of a target y:

    1. |l(p, y) - l(q, y)| <= (K0 + K1 ||y|| + K2 max(||p||, ||q||)) ||p - q||
    2. l'(p, y) = Psi(p) - K3 y, with Psi K4-Lipschitz and ||Psi(p)|| <= min(psi_zero + K4 ||p||, psi_most)

    The text has no K0 and takes Psi(0) = 0; both fail for the cross-entropy.
    """

    K0: float
    K1: float
    K2: float
    K3: float
    K4: float
    psi_zero: float = 0.0
    psi_most: float = math.inf

    def steepness(self, target: float, output: Tensor) -> Tensor:
        """The Lipschitz constant of property 1 for ||y|| <= target and outputs of norm at most `output` (any shape)."""
        return self.K0 + self.K1 * target + self.K2 * output

    def psi(self, output: Tensor) -> Tensor:
        """A bound of ||Psi|| for outputs of norm at most `output`."""
        return (self.psi_zero + self.K4 * output).clamp(max=self.psi_most)


def squared_error() -> LossProperties:
    """l(p, y) = ||p - y||^2: l' = 2 p - 2 y."""
    return LossProperties(K0=0.0, K1=2.0, K2=2.0, K3=2.0, K4=2.0)


def cross_entropy(outputs: int) -> LossProperties:
    """l(p, y) = -y log sigma(p) - (1 - y) log(1 - sigma(p)), summed over `outputs` entries: l' = sigma(p) - y.

    Targets lie in [0, 1], so each entry of l' lies in (-1, 1) and K0 = sqrt(outputs) (eq. 16) whatever p is.
    """
    root = math.sqrt(outputs)
    return LossProperties(K0=root, K1=0.0, K2=0.0, K3=1.0, K4=1 / 4, psi_zero=root / 2, psi_most=root)


def sum_lipschitz(constants: Sequence[float]) -> float:
    """Lemma 1a: a sum of functions is Lipschitz with the sum of their constants."""
    return sum(constants)


def product_lipschitz(constants: Sequence[float], bounds: Sequence[float]) -> float:
    """Lemma 1b: a product of functions bounded by M_i is Lipschitz with sum_i L_i prod_{j != i} M_j."""
    others = (math.prod(bounds[:i]) * math.prod(bounds[i + 1 :]) for i in range(len(bounds)))
    return sum(L * rest for L, rest in zip(constants, others, strict=True))


def squared_loss_value(prediction: Tensor, target: Tensor) -> Tensor:
    return (prediction - target).square().sum(-1)


def cross_entropy_value(prediction: Tensor, target: Tensor) -> Tensor:
    return (F.softplus(prediction) - target * prediction).sum(-1)


@statement(
    "ribeiro-lemma-1",
    paper=PAPERS["smoothness"],
    where="Lemma 1, C.1",
    status="holds",
    claim="sums and products of bounded Lipschitz functions are Lipschitz, with the sum of L_i prod_{j != i} M_j",
)
def lemma_1() -> Iterator[Row]:
    x = torch.linspace(-4, 4, 4001, dtype=torch.float64)
    values = torch.stack([torch.tanh(x), torch.sin(x), torch.sigmoid(x)])
    bounds = [1.0, 1.0, 1.0]
    constants = [1.0, 1.0, 0.25]
    product, total = ((f.diff() / x.diff()).abs().max() for f in (values.prod(0), values.sum(0)))
    yield Row("tanh sin sigma", product_lipschitz(constants, bounds), float(product))
    yield Row("tanh + sin + sigma", sum_lipschitz(constants), float(total))

    # Straight lines that rise together to their bounds at x = 1 lose nothing there.
    constants = [1.0, 0.5, 0.25]
    one = torch.ones((), dtype=torch.float64, requires_grad=True)
    lines = torch.stack([1 + L * one for L in constants])
    for name, value, bound in (
        ("product", lines.prod(), product_lipschitz(constants, lines.tolist())),
        ("sum", lines.sum(), sum_lipschitz(constants)),
    ):
        (slope,) = torch.autograd.grad(value, one, retain_graph=True)
        yield Row(f"{name} of three lines, at the bounds of all", bound, float(slope), "==")


@statement(
    "ribeiro-lemma-2",
    paper=PAPERS["smoothness"],
    where="Lemma 2, eqs 14-16",
    status="corrected",
    claim="both losses are Lipschitz in the prediction, with a gradient Psi(p) - K3 y",
    correction="For the cross-entropy property 1 needs a constant term, sqrt(N_y): with y = 0 and predictions near 0 "
    "the text's K1 ||y|| + K2 max(.) vanishes, the slope is 1/2. Psi(0) = 1/2, so ||Psi|| <= K4 ||p|| fails too.",
)
def lemma_2() -> Iterator[Row]:
    generator = torch.Generator().manual_seed(0)
    p, q = torch.randn(2, 20000, 3, generator=generator, dtype=torch.float64)
    y = torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64)
    losses = (
        ("squared error", squared_error(), squared_loss_value),
        ("cross-entropy", cross_entropy(3), cross_entropy_value),
    )
    for name, loss, value in losses:
        allowed = loss.steepness(float(y.norm()), torch.maximum(p.norm(dim=1), q.norm(dim=1)))
        slope = (value(p, y) - value(q, y)).abs() / (p - q).norm(dim=1)
        yield Row(f"{name}: slope over its bound", 1.0, float((slope / allowed).max()))
    near = torch.tensor([[0.0], [1e-6]], dtype=torch.float64)
    zero = torch.zeros(1, dtype=torch.float64)
    slope = (cross_entropy_value(near, zero).diff() / 1e-6).abs()
    printed = 1.0 * 0.0 + 1.0 * float(near.abs().max())  # any K1, K2: here 1
    yield Row("cross-entropy, y=0, p=0: more than K1 ||y|| + K2 max", printed, float(slope), ">=")
    yield Row("cross-entropy, y=0, p=0", cross_entropy(1).K0, float(slope))
    yield from _steepest()


def _steepest() -> Iterator[Row]:
    """Predictions where property 1 is reached: far from a target of 0, and opposite to the target."""
    for name, loss, value, at, y in (
        ("cross-entropy, y=0, p=40", cross_entropy(1), cross_entropy_value, 40.0, 0.0),
        ("squared error, y=-1, p=3", squared_error(), squared_loss_value, 3.0, -1.0),
    ):
        p = torch.full((1,), at, dtype=torch.float64, requires_grad=True)
        (slope,) = torch.autograd.grad(value(p, torch.full((1,), y, dtype=torch.float64)), p)
        allowed = loss.steepness(abs(y), torch.tensor(abs(at), dtype=torch.float64))
        yield Row(f"{name}: slope", float(allowed), abs(float(slope)), "==")
