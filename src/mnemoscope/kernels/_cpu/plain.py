"""The recurrences without attention on the CPU: tensors in, the compiled loops' structures out."""

from __future__ import annotations

import torch
from torch import Tensor

from mnemoscope.kernels._cpu.library import call
from mnemoscope.kernels._operators import implement

PHI = {"tanh": 0, "relu": 1, "modrelu": 2, "identity": 3}  # enum class Phi


def beside(V: Tensor, n: int) -> int:
    """How many inputs V (G, n + E) reads beside the n units of the state."""
    return V.shape[1] - n


def input_gradient(x: Tensor, wanted: bool) -> Tensor:
    return torch.empty_like(x) if wanted else x.new_empty(0, *x.shape[1:])


@implement("rnn_forward", "cpu")
def rnn_forward(xp: Tensor, V: Tensor, h0: Tensor, b: Tensor | None, phi: str, lengths: Tensor | None) -> Tensor:
    T, B, n = xp.shape[0], *h0.shape
    h = xp.new_empty(T, B, n)
    call("rnn_forward", xp.dtype, T, B, n, beside(V, n), xp, V, h0, b, lengths, h, PHI[phi])
    return h


@implement("rnn_backward", "cpu")
def rnn_backward(dh: Tensor, V: Tensor, h: Tensor, lengths: Tensor | None, phi: str) -> tuple[Tensor, Tensor]:
    dz, dh0 = torch.empty_like(h), torch.empty_like(h[0])
    call("rnn_backward", h.dtype, *h.shape, 0, dh, None, V, None, h, lengths, dz, None, dh0, PHI[phi])
    return dz, dh0


@implement("rnn_backward_joined", "cpu")
def rnn_backward_joined(
    dh: Tensor, x: Tensor, V: Tensor, h0: Tensor, h: Tensor, lengths: Tensor | None, phi: str, dx: bool
) -> tuple[Tensor, Tensor, Tensor]:
    by_x, dV, dh0 = input_gradient(x, dx), torch.zeros_like(V), torch.empty_like(h0)
    extra = beside(V, h.shape[2])
    call("rnn_backward", h.dtype, *h.shape, extra, dh, x, V, h0, h, lengths, by_x if dx else None, dV, dh0, PHI[phi])
    return by_x, dV, dh0


@implement("lstm_forward", "cpu")
def lstm_forward(
    xp: Tensor, V: Tensor, h0: Tensor, c0: Tensor, lengths: Tensor | None, save: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    T, B, n = xp.shape[0], *h0.shape
    h, c_T = xp.new_empty(T, B, n), torch.empty_like(c0)
    cells, gates = (xp.new_empty(T if save else 0, B, width) for width in (n, 4 * n))
    call("lstm_forward", xp.dtype, T, B, n, beside(V, n), xp, V, h0, c0, lengths, h, c_T, cells, gates, save)
    return h, c_T, cells, gates


@implement("lstm_backward", "cpu")
def lstm_backward(
    dh: Tensor | None, dc_T: Tensor | None, V: Tensor, c0: Tensor, cells: Tensor, gates: Tensor, lengths: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    dxp, dh0, dc0 = torch.empty_like(gates), torch.empty_like(c0), torch.empty_like(c0)
    call(
        "lstm_backward", gates.dtype, *cells.shape, 0, dh, dc_T, None, V, None, c0, None, cells, gates, lengths, dxp,
        None, dh0, dc0,
    )  # fmt: skip
    return dxp, dh0, dc0


@implement("lstm_backward_joined", "cpu")
def lstm_backward_joined(
    dh: Tensor | None, dc_T: Tensor | None, x: Tensor, V: Tensor, h0: Tensor, c0: Tensor, h: Tensor, cells: Tensor,
    gates: Tensor, lengths: Tensor | None, dx: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    by_x, dV, dh0, dc0 = input_gradient(x, dx), torch.zeros_like(V), torch.empty_like(h0), torch.empty_like(c0)
    call(
        "lstm_backward", h.dtype, *h.shape, beside(V, h.shape[2]), dh, dc_T, x, V, h0, c0, h, cells, gates, lengths,
        by_x if dx else None, dV, dh0, dc0,
    )  # fmt: skip
    return by_x, dV, dh0, dc0


@implement("rac_forward", "cpu")
def rac_forward(xp: Tensor, V: Tensor, h0: Tensor, b: Tensor | None, lengths: Tensor | None) -> Tensor:
    h = torch.empty_like(xp)
    call("rac_forward", xp.dtype, *xp.shape, xp, V, h0, b, lengths, h)
    return h


@implement("rac_backward", "cpu")
def rac_backward(dh: Tensor, xp: Tensor, V: Tensor, u: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    dxp, du, dh0 = torch.empty_like(xp), torch.empty_like(xp), torch.empty_like(xp[0])
    call("rac_backward", xp.dtype, *xp.shape, dh, xp, V, u, lengths, dxp, du, dh0)
    return dxp, du, dh0


@implement("goru_forward", "cpu")
def goru_forward(
    xp: Tensor, W: Tensor, h0: Tensor, b: Tensor, lengths: Tensor | None, save: bool
) -> tuple[Tensor, Tensor]:
    T, B, n = xp.shape[0], *h0.shape
    h, gates = xp.new_empty(T, B, n), xp.new_empty(T if save else 0, B, 4 * n)
    call("goru_forward", xp.dtype, T, B, n, xp, W, h0, b, lengths, h, gates, save)
    return h, gates


@implement("goru_backward", "cpu")
def goru_backward(
    dh: Tensor, W: Tensor, h0: Tensor, h: Tensor, gates: Tensor, lengths: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    T, B, n = h.shape
    dxp, du, dh0 = h.new_empty(T, B, 3 * n), torch.empty_like(h), torch.empty_like(h0)
    call("goru_backward", h.dtype, T, B, n, dh, W, h0, h, gates, lengths, dxp, du, dh0)
    return dxp, du, dh0
