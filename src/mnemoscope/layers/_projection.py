"""The product of a weight with a whole sequence."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def project_sequence(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return F.linear(x, weight, bias), computed in the fastest way for a sequence (time, batch, inputs) on the CPU.

    There the bias is the weight of one more input, which is always 1. That is one pass over the result instead of two,
    and one product in the backward pass for both gradients, in the layout that BLAS is fastest at.
    """
    if x.dim() != 3 or not x.is_cpu:
        return F.linear(x, weight, bias)
    rows = x.reshape(x.shape[0] * x.shape[1], x.shape[2])
    if bias is not None:
        rows = F.pad(rows, (0, 1), value=1.0)
        weight = torch.cat([weight, bias[:, None]], 1)
    return (rows @ weight.t().contiguous()).view(*x.shape[:2], weight.shape[0])
