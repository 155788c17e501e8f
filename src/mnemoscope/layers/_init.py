"""Initialization: how recurrent matrices start, and weights that keep the variance of what they read."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Literal

import torch
from torch import Tensor, nn

from mnemoscope.errors import MnemoscopeError, check_count

RecurrentInit = Literal["uniform", "henaff", "cayley", "orthogonal"]
Unit = Literal["linear", "relu"]
Distribution = Literal["gaussian", "uniform"]

VARIANCE_GAIN = {"linear": 1.0, "relu": 2.0}
"""1 / E[h^2] of a unit's inputs h = g(a), for a symmetric a of variance 1."""


def henaff_angles(count: int, like: Tensor) -> Tensor:
    """Return rotation angles drawn from U(-pi, pi), (count,) on the device of `like` (Henaff et al. 2016)."""
    return torch.empty(count, device=like.device, dtype=torch.float64).uniform_(-math.pi, math.pi)


def cayley_angles(count: int, like: Tensor) -> Tensor:
    """Return the angles of the rotations that the Cayley initialization makes, (count,) on the device of `like`.

    It draws s = -sqrt((1 - cos theta) / (1 + cos theta)), theta ~ U(0, pi/2). The Cayley map (I + A)^-1 (I - A) takes
    the block [[0, s], [-s, 0]] to the rotation by -2 atan(s) (Helfrich et al. 2018). That angle is returned, so that
    expm of its block is the same matrix.
    """
    theta = torch.empty(count, device=like.device, dtype=torch.float64).uniform_(0, math.pi / 2)
    return -2 * torch.atan(-torch.sqrt((1 - torch.cos(theta)) / (1 + torch.cos(theta))))


def skew_blocks(size: int, angles: Tensor) -> Tensor:
    """Return the skew matrix (size, size) of blocks [[0, angle], [-angle, 0]]; an odd size leaves the last row zero."""
    skew = angles.new_zeros(size, size)
    even = torch.arange(0, size - 1, 2, device=angles.device)
    skew[even, even + 1] = angles
    skew[even + 1, even] = -angles
    return skew


def rotation_blocks(size: int, angles: Tensor) -> Tensor:
    """Return expm of `skew_blocks`, without products of matrices: its blocks are [[cos, sin], [-sin, cos]]."""
    rotation = torch.eye(size, dtype=angles.dtype, device=angles.device)
    even = torch.arange(0, size - 1, 2, device=angles.device)
    rotation[even, even] = rotation[even + 1, even + 1] = torch.cos(angles)
    rotation[even, even + 1] = torch.sin(angles)
    rotation[even + 1, even] = -torch.sin(angles)
    return rotation


@torch.no_grad()
def henaff_(tensor: Tensor) -> Tensor:
    """Fill a square matrix with expm of skew 2 x 2 blocks, angles U(-pi, pi): a random rotation in each plane."""
    n = _square_size(tensor)
    return tensor.copy_(rotation_blocks(n, henaff_angles(n // 2, tensor)))


@torch.no_grad()
def cayley_(tensor: Tensor) -> Tensor:
    """Fill a square matrix with the Cayley initialization: rotations by angles between 0 and pi/2."""
    n = _square_size(tensor)
    return tensor.copy_(rotation_blocks(n, cayley_angles(n // 2, tensor)))


@torch.no_grad()
def orthogonal_(tensor: Tensor) -> Tensor:
    """Fill a square matrix with a uniformly random orthogonal one."""
    return tensor.copy_(nn.init.orthogonal_(torch.empty(tensor.shape, dtype=torch.float64)))


def uniform_(tensor: Tensor) -> Tensor:
    """Fill a square matrix as torch's recurrent layers do, U(-1/sqrt n, 1/sqrt n)."""
    return nn.init.uniform_(tensor, -1 / math.sqrt(len(tensor)), 1 / math.sqrt(len(tensor)))


def _square_size(tensor: Tensor) -> int:
    if tensor.dim() != 2 or tensor.shape[0] != tensor.shape[1]:
        raise MnemoscopeError(f"rotations fill a square matrix; got {list(tensor.shape)}")
    return len(tensor)


RECURRENT: dict[str, Callable[[Tensor], Tensor]] = {
    "uniform": uniform_,
    "henaff": henaff_,
    "cayley": cayley_,
    "orthogonal": orthogonal_,
}
"""Functions that fill a recurrent matrix in place, by the name of the option."""


@torch.no_grad()
def variance_preserving_(
    target: Tensor | nn.Module,
    unit: Unit = "relu",
    distribution: Distribution = "gaussian",
    *,
    fan_in: int | None = None,
    generator: torch.Generator | None = None,
) -> Tensor | nn.Module:
    """Draw weights so that preactivations have mean 0 and variance 1 if those of the layer below have.

    The weights have mean 0 and variance 1/fan_in for linear units, 2/fan_in for units that read a ReLU's outputs (He's
    initialization): N(0, var), or U(-b, b) with b = sqrt(3 var) (Nabli 2019, question 1).

    Args:
        target: a weight (units, inputs, ...), or a module: then all of its parameters called a weight are drawn, except
            parametrized ones, and its biases are zero. A recurrence's unit reads input and state, so its weight_ih and
            weight_hh share the sum of their fan-ins.
        unit: what the weight reads, "linear" or "relu" outputs.
        distribution: "gaussian" or "uniform".
        fan_in: how many inputs a unit sums; by default the product of the weight's trailing dimensions.
        generator: where the random numbers come from; by default torch's own.

    Returns:
        The target.

    Examples:
        >>> from mnemoscope.layers import variance_preserving_
        >>> layer = variance_preserving_(nn.Linear(64, 64))
    """
    if unit not in VARIANCE_GAIN or distribution not in ("gaussian", "uniform"):
        allowed = "unit 'linear' or 'relu' and distribution 'gaussian' or 'uniform'"
        raise MnemoscopeError(f"variance_preserving_ knows {allowed}; got {unit!r} and {distribution!r}")
    if fan_in is not None:
        check_count("fan_in", fan_in)
    if isinstance(target, Tensor):
        weights = [(target, _fan_in(target))]
    else:
        _zero_biases(target)
        weights = list(_weights(target))
    for weight, inputs in weights:
        std = math.sqrt(VARIANCE_GAIN[unit] / (fan_in or inputs))
        if distribution == "gaussian":
            weight.normal_(0.0, std, generator=generator)
        else:
            weight.uniform_(-math.sqrt(3) * std, math.sqrt(3) * std, generator=generator)
    return target


def _fan_in(weight: Tensor) -> int:
    if weight.dim() < 2:
        raise MnemoscopeError(f"fan-in needs a weight of at least 2 dimensions; got {list(weight.shape)}")
    return weight[0].numel()


def _parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that are not computed by a parametrization."""
    return {name: p for name, p in module.named_parameters() if "parametrizations." not in name}


def _zero_biases(module: nn.Module) -> None:
    for name, parameter in _parameters(module).items():
        if "bias" in name.rpartition(".")[2]:
            parameter.zero_()


def _weights(module: nn.Module) -> Iterator[tuple[Tensor, int]]:
    """Yield the weights of a module with the number of inputs that their units sum."""
    parameters = _parameters(module)
    for path, weight in parameters.items():
        owner, dot, name = path.rpartition(".")
        if "weight" not in name or weight.dim() < 2:  # angles, scales of a normalization
            continue
        inputs = _fan_in(weight)
        # A unit of a recurrence sums what weight_ih and weight_hh read.
        for one, other in (("weight_ih", "weight_hh"), ("weight_hh", "weight_ih")):
            partner = parameters.get(owner + dot + name.replace(one, other)) if one in name else None
            if partner is not None:
                inputs += _fan_in(partner)
        yield weight, inputs
