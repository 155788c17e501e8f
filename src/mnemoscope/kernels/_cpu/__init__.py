"""Fused recurrences for the CPU: C++ loops, a few rows of the batch at a time, each row by one thread throughout."""

from __future__ import annotations

from typing import Any

import torch

from mnemoscope.kernels._cpu import attentive, plain
from mnemoscope.kernels._cpu.library import available

__all__ = ["attentive", "plain", "supports"]

FAMILIES = ("rnn", "lstm", "rac", "goru", "attentive", "sab")


def supports(family: str, *, dtype: torch.dtype, **sizes: Any) -> bool:
    """Every size, in float32 and float64."""
    return family in FAMILIES and available(dtype)
