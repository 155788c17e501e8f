"""Weights whose layer keeps the variance of what it reads (Nabli 2019, question 1)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor, nn

from mnemoscope.errors import MnemoscopeError

Unit = Literal["linear", "relu"]
Distribution = Literal["gaussian", "uniform"]

VARIANCE_GAIN = {"linear": 1.0, "relu": 2.0}  # 1 / E[h^2] for inputs h = g(a) of a symmetric a with variance 1


@torch.no_grad()
def variance_preserving_(
    target: Tensor | nn.Module,
    unit: Unit = "relu",
    distribution: Distribution = "gaussian",
    *,
    fan_in: int | None = None,
    generator: torch.Generator | None = None,
) -> Tensor | nn.Module:
    """Draw weights so that preactivations have mean 0 and variance 1 where those of the layer below have.

    The weights are centred with variance 1/fan_in for linear units and 2/fan_in for units that read a ReLU's outputs
    (He's initialisation): N(0, var), or U(-b, b) with b = sqrt(3 var).

    Args:
        target: a weight (units, inputs, ...), or a module: then all of its parameters called a weight are drawn, except
            parametrized ones, and its biases are zero. A recurrence's unit reads input and state, so its weight_ih and
            weight_hh share the sum of their fan-ins.
        unit: what the weight reads, "linear" or "relu" outputs.
        distribution: "gaussian" or "uniform".
        fan_in: how many inputs a unit sums, where that is not the product of the weight's trailing dimensions.

    Returns:
        The target.
    """
    if unit not in VARIANCE_GAIN or distribution not in ("gaussian", "uniform"):
        allowed = "unit 'linear' or 'relu' and distribution 'gaussian' or 'uniform'"
        raise MnemoscopeError(f"variance_preserving_ knows {allowed}; got {unit!r} and {distribution!r}")
    for weight, inputs in [(target, _fan_in(target))] if isinstance(target, Tensor) else _weights(target):
        spread = math.sqrt(VARIANCE_GAIN[unit] / (fan_in or inputs))
        if distribution == "gaussian":
            weight.normal_(0.0, spread, generator=generator)
        else:
            weight.uniform_(-math.sqrt(3) * spread, math.sqrt(3) * spread, generator=generator)
    return target


def _fan_in(weight: Tensor) -> int:
    if weight.dim() < 2:
        raise MnemoscopeError(f"fan-in needs a weight of at least 2 dimensions; got {list(weight.shape)}")
    return weight[0].numel()


def _weights(module: nn.Module) -> Iterator[tuple[Tensor, int]]:
    """The weights of a module with the number of inputs that their units sum; biases become zero on the way."""
    named = {name: p for name, p in module.named_parameters() if "parametrizations." not in name}
    for name, weight in named.items():
        prefix, dot, own = name.rpartition(".")
        if "bias" in own:
            weight.zero_()
        if "weight" not in own or weight.dim() < 2:  # angles, norms' scales
            continue
        here, there = ("weight_ih", "weight_hh") if "weight_ih" in own else ("weight_hh", "weight_ih")
        partner = named.get(prefix + dot + own.replace(here, there)) if here in own else None
        yield weight, _fan_in(weight) + (0 if partner is None else _fan_in(partner))
