"""Fused recurrences for the CPU: C++ loops, a few rows of the batch at a time, each row by one thread throughout."""

from mnemoscope.kernels.cpu import attentive, plain
from mnemoscope.kernels.cpu.library import available

__all__ = ["attentive", "available", "plain"]
