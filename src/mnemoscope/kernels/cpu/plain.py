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


@implement("lstm_forward", "cpu")
def lstm_forward(
    xp: Tensor, V: Tensor, h0: Tensor, c0: Tensor, lengths: Tensor | None, save: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    T, B, n = xp.shape[0], *h0.shape
    h, c_T = xp.new_empty(T, B, n), torch.empty_like(c0)
    cells, gates = (xp.new_empty(T if save else 0, B, width) for width in (n, 4 * n))
    call("lstm_forward", xp.dtype, T, B, n, xp, V, h0, c0, lengths, h, c_T, cells, gates, save)
    return h, c_T, cells, gates


@implement("lstm_backward", "cpu")
def lstm_backward(
    dh: Tensor | None, dc_T: Tensor | None, V: Tensor, c0: Tensor, cells: Tensor, gates: Tensor, lengths: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    dxp, dh0, dc0 = torch.empty_like(gates), torch.empty_like(c0), torch.empty_like(c0)
    call("lstm_backward", gates.dtype, *cells.shape, dh, dc_T, V, c0, cells, gates, lengths, dxp, dh0, dc0)
    return dxp, dh0, dc0
