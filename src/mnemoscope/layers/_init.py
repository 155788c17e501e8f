"""How a recurrent matrix starts."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from mnemoscope.errors import MnemoscopeError

RecurrentInit = Literal["uniform", "henaff", "cayley", "orthogonal"]


def henaff_angles(count: int, like: Tensor) -> Tensor:
    """Rotation angles drawn from U(-pi, pi) (Henaff et al. 2016)."""
    return torch.empty(count, device=like.device, dtype=torch.float64).uniform_(-math.pi, math.pi)


def cayley_angles(count: int, like: Tensor) -> Tensor:
    """Angles of which the Cayley map makes rotations: s = -sqrt((1 - cos theta) / (1 + cos theta)), theta ~ U(0, pi/2).

    The block [[0, s], [-s, 0]] goes by (I + A)^-1 (I - A) to the rotation by -2 atan(s) (Helfrich et al. 2018); given
    here is that rotation's own angle, so that expm of its block is the same matrix.
    """
    theta = torch.empty(count, device=like.device, dtype=torch.float64).uniform_(0, math.pi / 2)
    return -2 * torch.atan(-torch.sqrt((1 - torch.cos(theta)) / (1 + torch.cos(theta))))


def skew_blocks(size: int, angles: Tensor) -> Tensor:
    """The skew matrix (size, size) of 2 x 2 blocks [[0, angle], [-angle, 0]]; an odd size leaves its last row zero."""
    skew = angles.new_zeros(size, size)
    even = torch.arange(0, size - 1, 2, device=angles.device)
    skew[even, even + 1], skew[even + 1, even] = angles, -angles
    return skew


def _side(tensor: Tensor) -> int:
    if tensor.dim() != 2 or tensor.shape[0] != tensor.shape[1]:
        raise MnemoscopeError(f"rotations fill a square matrix; got {list(tensor.shape)}")
    return len(tensor)


@torch.no_grad()
def henaff_(tensor: Tensor) -> Tensor:
    """Fill a square matrix with expm of skew 2 x 2 blocks, angles U(-pi, pi): a random rotation in each plane."""
    return tensor.copy_(torch.linalg.matrix_exp(skew_blocks(n := _side(tensor), henaff_angles(n // 2, tensor))))


@torch.no_grad()
def cayley_(tensor: Tensor) -> Tensor:
    """Fill a square matrix with the Cayley initialisation: rotations by angles between 0 and pi/2."""
    return tensor.copy_(torch.linalg.matrix_exp(skew_blocks(n := _side(tensor), cayley_angles(n // 2, tensor))))


@torch.no_grad()
def orthogonal_(tensor: Tensor) -> Tensor:
    """Fill a square matrix with a uniformly random orthogonal one."""
    return tensor.copy_(nn.init.orthogonal_(torch.empty(tensor.shape, dtype=torch.float64)))


def uniform_(tensor: Tensor) -> Tensor:
    """Fill a square matrix as torch's recurrent layers do, U(-1/sqrt n, 1/sqrt n)."""
    return nn.init.uniform_(tensor, -1 / math.sqrt(len(tensor)), 1 / math.sqrt(len(tensor)))


RECURRENT: dict[str, Callable[[Tensor], Tensor]] = {
    "uniform": uniform_,
    "henaff": henaff_,
    "cayley": cayley_,
    "orthogonal": orthogonal_,
}
