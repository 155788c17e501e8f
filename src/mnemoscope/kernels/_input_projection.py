"""Inputs that a walk projects by itself, step by step, instead of a projection of the whole sequence made before it."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from mnemoscope.kernels import _state_gradients

# [V, U, b], its gradient and some gathered rows must stay in a core's own cache.
_LARGEST = 1 << 20  # bytes of [V, U, b]


def joins(x: Tensor, V: Tensor, lengths: Tensor | None) -> bool:
    """Whether x (T, B, D) is better projected within the walk: on the CPU, where that saves two long tensors."""
    rows, n = V.shape
    small = rows * (n + x.shape[2] + 1) * x.element_size() <= _LARGEST
    return x.device.type == "cpu" and small and x.shape[2] <= n and not _state_gradients.noting(lengths)


def join(x: Tensor, U: Tensor, bias: Tensor | None, V: Tensor) -> tuple[Tensor, Tensor]:
    """[x, 1] (T, B, D + 1) and [V, U, b] (G, n + D + 1); without a bias the one and b are left out."""
    if bias is None:
        return x, torch.cat([V, U], 1)
    return F.pad(x, (0, 1), value=1.0), torch.cat([V, U, bias[:, None]], 1)
