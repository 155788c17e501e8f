"""What the CUDA kernels cover. `_dispatch.py` chooses the portable operators or the eager loop for anything else."""

from __future__ import annotations

from functools import cache

import torch

from mnemoscope.kernels._cuda import full_attention, layout, sab, screened_steps
from mnemoscope.kernels._operator import CUDA_CELLS
from mnemoscope.torch_internals import cuda_compiler


def supports(
    family: str,
    *,
    n: int,
    dtype: torch.dtype,
    device: torch.device,
    cell: str = "rnn",
    buffer: int = -1,
    relevant: int = 0,
) -> bool:
    """True if there is a kernel for n units on this device.

    float32, and bfloat16, of which all but some products is computed in float32. Attention over the whole past saves
    the logarithms of the softmax's sums, for which bfloat16 is not precise enough.
    """
    if cuda_compiler() is None or torch.version.hip is not None:
        return False
    full = family == "attentive" and buffer < 0
    if dtype is not torch.float32 and (dtype is not torch.bfloat16 or full):
        return False
    return _fits(family, n, torch.device(device), cell == "lstm", buffer, relevant)


@cache
def _fits(family: str, n: int, device: torch.device, lstm: bool, buffer: int, relevant: int) -> bool:
    if not layout.limits(device).clusters:  # too old for the instructions that the kernels use
        return False
    if family == "attentive" and buffer < 0:
        return full_attention.supports(lstm, n, device)
    if family == "attentive":
        return screened_steps.supports(buffer + relevant)  # layers of any width, and by clusters where they fit
    if family == "sab":
        return sab.supports(n, relevant, device)
    return family in CUDA_CELLS  # of any width: by clusters where they fit
