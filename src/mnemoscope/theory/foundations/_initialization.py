"""Weights that keep the variance of preactivations at 1 through any number of layers (Nabli 2019, question 1)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor

from mnemoscope.errors import MnemoscopeError
from mnemoscope.theory._statement import PAPERS, Row, statement

Unit = Literal["linear", "relu"]
Distribution = Literal["gaussian", "uniform"]

SECOND_MOMENT = {"linear": 1.0, "relu": 0.5}  # E[h^2] of h = g(a), a symmetric with variance 1
MEAN = {"linear": 0.0, "relu": 1 / math.sqrt(2 * math.pi)}  # E[h], for a Gaussian a


def preactivation_variance(fan_in: int, weight_mean: float, weight_variance: float, unit: Unit = "relu") -> float:
    """V[a_i] of a = W h + c with independent h = g(a'), a' standard Gaussian (eqs 10 and 12).

    fan_in (V[w] E[h^2] + E[w]^2 V[h]). The bias that centres a is c = -fan_in E[w] E[h] (eq. 4); it is 0 with E[w].
    """
    return fan_in * (weight_variance * SECOND_MOMENT[unit] + weight_mean**2 * (SECOND_MOMENT[unit] - MEAN[unit] ** 2))


def weight_scale(fan_in: int, unit: Unit = "relu", distribution: Distribution = "gaussian") -> float:
    """The spread of centred weights for which V[a_i] = 1: sigma of N(0, sigma^2), or beta of U(-beta, beta).

    sqrt(1/fan_in) and sqrt(3/fan_in) for linear units; sqrt(2/fan_in) and sqrt(6/fan_in) for ReLUs, which is He's
    initialization (the text is reminded of Glorot's, which has fan_in + fan_out).

    Examples:
        >>> from mnemoscope.theory import weight_scale
        >>> weight_scale(50, "relu")  # He's initialization
        0.2
    """
    if unit not in SECOND_MOMENT or distribution not in ("gaussian", "uniform"):
        raise MnemoscopeError(f"unit is linear or relu, distribution gaussian or uniform; got {unit}, {distribution}")
    variance = 1 / (fan_in * SECOND_MOMENT[unit])
    return math.sqrt(variance if distribution == "gaussian" else 3 * variance)


def variances_through_layers(
    unit: Unit,
    distribution: Distribution,
    *,
    depth: int = 50,
    width: int = 96,
    networks: int = 48,
    scale: float = 1.0,
    seed: int = 0,
) -> Tensor:
    """Mean squares of the preactivations of random networks, layer by layer: (depth + 1, networks), the first about 1.

    `scale` multiplies the spread, to see what a wrong one does.
    """
    generator = torch.Generator().manual_seed(seed)
    a = torch.randn(networks, width, 1, generator=generator)
    spread = scale * weight_scale(width, unit, distribution)
    found = [a.square().mean((1, 2))]
    for _ in range(depth):
        W = torch.empty(networks, width, width)
        if distribution == "gaussian":
            W.normal_(0, spread, generator=generator)
        else:
            W.uniform_(-spread, spread, generator=generator)
        a = W @ (a.relu() if unit == "relu" else a)
        found.append(a.square().mean((1, 2)))
    return torch.stack(found).double()


@statement(
    "nabli-question-1",
    paper=PAPERS["foundations"],
    where="question 1, eqs 1-12",
    status="holds",
    claim="centred weights of variance 1/fan_in (linear) or 2/fan_in (ReLU) keep preactivations at mean 0, variance 1",
    remark="The scheme with 2/fan_in is He's; the text is reminded of Glorot's. Uncorrelated a do not make "
    "ReLU(a) uncorrelated, as the text says; that is harmless, because E[w] = 0 takes the covariances out of eq. 7.",
)
def question_1() -> Iterator[Row]:
    units: tuple[Unit, ...] = ("linear", "relu")
    distributions: tuple[Distribution, ...] = ("gaussian", "uniform")
    for unit in units:
        for distribution in distributions:
            found = variances_through_layers(unit, distribution)
            start = float(found[0].mean())
            yield Row(
                f"{unit}, {distribution}: variance of what the first layer reads", 1.0, start, "==", tolerance=0.1
            )
            gain = float((found[1:] / found[:-1]).mean())
            yield Row(f"{unit}, {distribution}: variance gained a layer, over 50", 1.0, gain, "==", tolerance=0.02)
            error = float(found[-1].std()) / math.sqrt(found.shape[1])
            off = abs(float(found[-1].mean()) - 1)
            yield Row(f"{unit}, {distribution}: variance after 50 layers, from 1, in 5 errors", 5 * error, off)
    lost = variances_through_layers("relu", "gaussian", scale=math.sqrt(0.5), networks=8)[-1].mean()
    yield Row("ReLU with 1/fan_in: variance after 50 layers", 1e-12, float(lost))
    yield from _correlated()


def _correlated() -> Iterator[Row]:
    """a = sqrt 2 (cos t, sin t), t uniform: uncorrelated, and ReLU(a) is not. V[w . ReLU(a)] is 1 all the same."""
    t = 2 * math.pi * (torch.arange(100_000, dtype=torch.float64) + 0.5) / 100_000
    a = math.sqrt(2) * torch.stack([t.cos(), t.sin()])
    covariance = torch.cov(a, correction=0)[0, 1], torch.cov(a.relu(), correction=0)[0, 1]
    yield Row("a on a circle: |covariance|", 1e-9, abs(float(covariance[0])))
    yield Row("ReLU(a) on a circle: |covariance|", 0.04, abs(float(covariance[1])), ">=")
    variance = float(weight_scale(2) ** 2 * a.relu().square().mean(1).sum())  # E[w w^T] = sigma^2 I
    yield Row("V[w . ReLU(a)]", 1.0, variance, "==", tolerance=1e-8)
