"""Fused recurrences for the CPU: C++ loops, a few rows of the batch at a time, each row by one thread throughout."""

from mnemoscope.kernels.cpu import plain
from mnemoscope.kernels.cpu.library import available

__all__ = ["available", "plain"]
