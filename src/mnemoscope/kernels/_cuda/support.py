"""What the CUDA kernels cover; everything else takes the eager path."""

from __future__ import annotations

from functools import cache

import torch

from mnemoscope.kernels._cuda import full_attention, plain, sab, screened

_PLAIN = {"rnn": "RNN", "rac": "RAC", "goru": "GORU", "lstm": "LSTM"}


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
    """Whether a sequence of n units fits one cluster of this device.

    float32, and bfloat16, which is computed in float32. Attention over the whole past keeps the logarithms of the
    softmax's sums, which bfloat16 cannot hold.
    """
    if not hasattr(torch.cuda, "_compile_kernel") or torch.version.hip is not None:
        return False
    if dtype is not torch.float32 and (dtype is not torch.bfloat16 or (family == "attentive" and buffer < 0)):
        return False
    return _fits(family, n, torch.device(device), cell == "lstm", buffer, relevant)


@cache
def _fits(family: str, n: int, device: torch.device, lstm: bool, buffer: int, relevant: int) -> bool:
    if family == "attentive":
        return (
            full_attention.supports(lstm, n, device)
            if buffer < 0
            else screened.supports(lstm, n, buffer + relevant, device)
        )
    if family == "sab":
        return sab.supports(n, relevant, device)
    return family in _PLAIN and plain.supports(_PLAIN[family], n, device)
