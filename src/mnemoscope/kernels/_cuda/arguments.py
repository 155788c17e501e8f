"""Tensors and flags as the kernels take them."""

from __future__ import annotations

from typing import overload

import torch
from torch import Tensor

PHI = {"tanh": "TANH", "relu": "RELU", "identity": "IDENTITY", "modrelu": "MODRELU"}


@overload
def as_float32(tensor: Tensor) -> Tensor: ...
@overload
def as_float32(tensor: None) -> None: ...
def as_float32(tensor: Tensor | None) -> Tensor | None:
    """Return the tensor as contiguous float32, in which lower precisions are computed; None stays None."""
    return None if tensor is None else tensor.float().contiguous()


def to_device(lengths: Tensor | None, device: torch.device) -> Tensor | None:
    return None if lengths is None else lengths.to(device).contiguous()


def to_dtype(tensors: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Return the tensors with all floating-point ones in `dtype`."""
    return tuple(t.to(dtype) if t.is_floating_point() else t for t in tensors)
