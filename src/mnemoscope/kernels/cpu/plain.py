"""The recurrences without attention on the CPU: tensors in, the compiled loops' structures out."""

from __future__ import annotations

import torch
from torch import Tensor

from mnemoscope.kernels.cpu.library import call
from mnemoscope.kernels.ops import implement

PHI = {"tanh": 0, "relu": 1, "modrelu": 2, "identity": 3}  # enum class Phi


@implement("rnn_forward", "cpu")
def rnn_forward(xp: Tensor, V: Tensor, h0: Tensor, b: Tensor | None, phi: str, lengths: Tensor | None) -> Tensor:
    h = torch.empty_like(xp)
    call("rnn_forward", xp.dtype, *xp.shape, xp, V, h0, b, lengths, h, PHI[phi])
    return h


@implement("rnn_backward", "cpu")
def rnn_backward(dh: Tensor, V: Tensor, h: Tensor, lengths: Tensor | None, phi: str) -> tuple[Tensor, Tensor]:
    dz, dh0 = torch.empty_like(h), torch.empty_like(h[0])
    call("rnn_backward", h.dtype, *h.shape, dh, V, h, lengths, dz, dh0, PHI[phi])
    return dz, dh0
