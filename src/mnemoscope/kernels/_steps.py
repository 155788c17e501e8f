"""Whether the numbers in a memory that count steps are in range."""

from __future__ import annotations

import torch
from torch import Tensor

from mnemoscope.kernels._cpu import library

_LAST_STEP = 2**62  # a clock can go on from here for longer than any run


def steps_in_range(origin: Tensor, clock: Tensor) -> bool:
    """True if no clock (...,) is negative and every origin (..., slots) is an earlier step, or -1.

    Both are int64 and on the CPU. The compiled library needs a tenth of the time of torch's operations.
    """
    loops = library.library()
    if loops is not None and origin.is_contiguous() and clock.is_contiguous():
        return bool(loops.steps_in_range(origin.data_ptr(), clock.data_ptr(), clock.numel(), origin.shape[-1]))
    if not clock.numel():
        return True
    first, last = torch.aminmax(clock)
    made_before = (origin >= -1) & (origin < clock.unsqueeze(-1))
    return int(first) >= 0 and int(last) <= _LAST_STEP and bool(made_before.all())
