"""Tensors as the kernels take and return them: contiguous, and float32 instead of a lower precision."""

from __future__ import annotations

from typing import Any, TypeVar, overload

import torch
from torch import Tensor

PHI = {"tanh": "TANH", "relu": "RELU", "identity": "IDENTITY", "modrelu": "MODRELU"}

Group = TypeVar("Group", bound=tuple[Any, ...])  # arguments or results, in a NamedTuple or not


@overload
def as_float32(tensor: Tensor) -> Tensor: ...
@overload
def as_float32(tensor: None) -> None: ...
def as_float32(tensor: Tensor | None) -> Tensor | None:
    """Return the tensor contiguous, and float32 if it is of floating point; None stays None."""
    if tensor is None:
        return None
    if tensor.dtype is not torch.float32 and tensor.is_floating_point():
        tensor = tensor.float()
    return tensor if tensor.is_contiguous() else tensor.contiguous()


def group_as_float32(group: Group, dtype: torch.dtype) -> Group:
    """Return the group with `as_float32` of every tensor; options stay as they are.

    dtype is that of the run. A run in float32 is given contiguous tensors of that type already.
    """
    if dtype is torch.float32:
        return group
    return tuple.__new__(type(group), [as_float32(x) if isinstance(x, Tensor) else x for x in group])


def group_to_dtype(group: Group, dtype: torch.dtype) -> Group:
    """Return a group of float32 and integer tensors, or None, with the float32 ones in `dtype`."""
    if dtype is torch.float32:
        return group
    return type(group)(*[x if x is None or not x.is_floating_point() else x.to(dtype) for x in group])


def to_device(lengths: Tensor | None, device: torch.device) -> Tensor | None:
    """Return lengths on a device, contiguous; None stays None."""
    return None if lengths is None else lengths.to(device).contiguous()
