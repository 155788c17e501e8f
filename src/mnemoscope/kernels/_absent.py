"""Tensors without elements, which stand for what is not given."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor


@cache
def shared_absent(dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a tensor without elements, the same for all calls: for calls that nothing traces."""
    with torch.inference_mode(False):  # a tensor of inference mode could not be saved for a backward pass
        return torch.empty(0, dtype=dtype, device=device)
