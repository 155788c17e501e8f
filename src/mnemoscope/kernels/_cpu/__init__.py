"""Fused recurrences for the CPU: C++ loops, a few rows of the batch at a time, each row by one thread."""

from __future__ import annotations

from typing import Any

import torch

from mnemoscope.kernels._cpu import attentive, cells
from mnemoscope.kernels._cpu.library import available, has_loop

__all__ = ["attentive", "cells", "supports"]


def supports(family: str, *, dtype: torch.dtype, **sizes: Any) -> bool:
    """True for every family and size, in float32 and float64, if the loops were compiled."""
    return available(dtype) and has_loop(f"{family}_forward")
