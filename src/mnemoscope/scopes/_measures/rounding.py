"""How small is zero: what rounding alone can make of a response that is not there."""

from __future__ import annotations

import torch
from torch import nn


def rounding(dtype: torch.dtype) -> float:
    """Return the relative rounding error of gradients: eps, but that of float32 in half precision.

    In half precision what does not depend on an input has a gradient of exactly zero; what computes in a roundabout
    way, as a Fourier transform does, computes in float32.
    """
    return min(torch.finfo(dtype).eps, torch.finfo(torch.float32).eps)


def negligible(dtype: torch.dtype) -> float:
    """Return the size, relative to the largest, under which a response counts as zero: a thousand rounding errors."""
    return 1e3 * rounding(dtype)


def is_quantized(model: object) -> bool:
    """True if a module computes in whole numbers; the common scale of a batch then ties sequences together a little."""
    modules = model.modules() if isinstance(model, nn.Module) else ()
    return any(".quantized." in f"{type(module).__module__}." for module in modules)


def least_response(model: object, dtype: torch.dtype) -> float:
    """Return the size, relative to the largest, under which a response of a model counts as zero."""
    return 0.25 if is_quantized(model) else negligible(dtype)
