"""The recurrences without attention on the CPU: tensors in, the compiled loops' structures out."""

from __future__ import annotations

import torch
from torch import Tensor

from mnemoscope.kernels._cpu.library import call
from mnemoscope.kernels._operators import implement

PHI = {"tanh": 0, "relu": 1, "modrelu": 2, "identity": 3}  # enum class Phi


def n_inputs(V: Tensor, n: int) -> int:
    """E of a V (G, n + E) that reads E inputs beside the n units of the state."""
    return V.shape[1] - n


def input_gradient(x: Tensor, wanted: bool) -> Tensor:
    return torch.empty_like(x) if wanted else x.new_empty(0, *x.shape[1:])


@implement("rnn_forward", "cpu")
def rnn_forward(xp: Tensor, V: Tensor, h0: Tensor, b: Tensor | None, phi: str, lengths: Tensor | None) -> Tensor:
    T, B, n = xp.shape[0], *h0.shape
    h = xp.new_empty(T, B, n)
    call(
        "rnn_forward", xp.dtype, steps=T, batch=B, n=n, n_inputs=n_inputs(V, n), xp=xp, V=V, h0=h0, b=b, phi=PHI[phi],
        lengths=lengths, h=h,
    )  # fmt: skip
    return h


@implement("rnn_backward", "cpu")
def rnn_backward(dh: Tensor, V: Tensor, h: Tensor, lengths: Tensor | None, phi: str) -> tuple[Tensor, Tensor]:
    T, B, n = h.shape
    dxp, dh0 = torch.empty_like(h), torch.empty_like(h[0])
    call(
        "rnn_backward", h.dtype, steps=T, batch=B, n=n, n_inputs=0, dh=dh, x=None, V=V, h0=None, h=h, lengths=lengths,
        phi=PHI[phi], dxp=dxp, dx=None, dV=None, dh0=dh0,
    )  # fmt: skip
    return dxp, dh0


@implement("rnn_backward_joined", "cpu")
def rnn_backward_joined(
    dh: Tensor, x: Tensor, V: Tensor, h0: Tensor, h: Tensor, lengths: Tensor | None, phi: str, dx: bool
) -> tuple[Tensor, Tensor, Tensor]:
    by_x, dV, dh0 = input_gradient(x, dx), torch.zeros_like(V), torch.empty_like(h0)
    T, B, n = h.shape
    call(
        "rnn_backward", h.dtype, steps=T, batch=B, n=n, n_inputs=n_inputs(V, n), dh=dh, x=x, V=V, h0=h0, h=h,
        lengths=lengths, phi=PHI[phi], dxp=None, dx=by_x if dx else None, dV=dV, dh0=dh0,
    )  # fmt: skip
    return by_x, dV, dh0


@implement("lstm_forward", "cpu")
def lstm_forward(
    xp: Tensor, V: Tensor, h0: Tensor, c0: Tensor, lengths: Tensor | None, save: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    T, B, n = xp.shape[0], *h0.shape
    h, c_T = xp.new_empty(T, B, n), torch.empty_like(c0)
    cells, gates = (xp.new_empty(T if save else 0, B, width) for width in (n, 4 * n))
    call(
        "lstm_forward", xp.dtype, steps=T, batch=B, n=n, n_inputs=n_inputs(V, n), xp=xp, V=V, h0=h0, c0=c0,
        lengths=lengths, save=save, h=h, c_T=c_T, cells=cells, gates=gates,
    )  # fmt: skip
    return h, c_T, cells, gates


@implement("lstm_backward", "cpu")
def lstm_backward(
    dh: Tensor | None, dc_T: Tensor | None, V: Tensor, c0: Tensor, cells: Tensor, gates: Tensor, lengths: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    dxp, dh0, dc0 = torch.empty_like(gates), torch.empty_like(c0), torch.empty_like(c0)
    T, B, n = cells.shape
    call(
        "lstm_backward", gates.dtype, steps=T, batch=B, n=n, n_inputs=0, dh=dh, dc_T=dc_T, x=None, V=V, h0=None, c0=c0,
        h=None, cells=cells, gates=gates, lengths=lengths, dxp=dxp, dx=None, dV=None, dh0=dh0, dc0=dc0,
    )  # fmt: skip
    return dxp, dh0, dc0


@implement("lstm_backward_joined", "cpu")
def lstm_backward_joined(
    dh: Tensor | None, dc_T: Tensor | None, x: Tensor, V: Tensor, h0: Tensor, c0: Tensor, h: Tensor, cells: Tensor,
    gates: Tensor, lengths: Tensor | None, dx: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    by_x, dV, dh0, dc0 = input_gradient(x, dx), torch.zeros_like(V), torch.empty_like(h0), torch.empty_like(c0)
    T, B, n = h.shape
    call(
        "lstm_backward", h.dtype, steps=T, batch=B, n=n, n_inputs=n_inputs(V, n), dh=dh, dc_T=dc_T, x=x, V=V, h0=h0,
        c0=c0, h=h, cells=cells, gates=gates, lengths=lengths, dxp=None, dx=by_x if dx else None, dV=dV, dh0=dh0,
        dc0=dc0,
    )  # fmt: skip
    return by_x, dV, dh0, dc0


@implement("rac_forward", "cpu")
def rac_forward(xp: Tensor, V: Tensor, h0: Tensor, b: Tensor | None, lengths: Tensor | None) -> Tensor:
    h = torch.empty_like(xp)
    T, B, n = xp.shape
    call("rac_forward", xp.dtype, steps=T, batch=B, n=n, xp=xp, V=V, h0=h0, b=b, lengths=lengths, h=h)
    return h


@implement("rac_backward", "cpu")
def rac_backward(dh: Tensor, xp: Tensor, V: Tensor, u: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    dxp, du, dh0 = torch.empty_like(xp), torch.empty_like(xp), torch.empty_like(xp[0])
    T, B, n = xp.shape
    call(
        "rac_backward", xp.dtype, steps=T, batch=B, n=n, dh=dh, xp=xp, V=V, u=u, lengths=lengths, dxp=dxp, du=du,
        dh0=dh0,
    )  # fmt: skip
    return dxp, du, dh0


@implement("goru_forward", "cpu")
def goru_forward(
    xp: Tensor, W: Tensor, h0: Tensor, b: Tensor, lengths: Tensor | None, save: bool
) -> tuple[Tensor, Tensor]:
    T, B, n = xp.shape[0], *h0.shape
    h, gates = xp.new_empty(T, B, n), xp.new_empty(T if save else 0, B, 4 * n)
    call(
        "goru_forward", xp.dtype, steps=T, batch=B, n=n, xp=xp, W=W, h0=h0, b=b, lengths=lengths, save=save, h=h,
        gates=gates,
    )  # fmt: skip
    return h, gates


@implement("goru_backward", "cpu")
def goru_backward(
    dh: Tensor, W: Tensor, h0: Tensor, h: Tensor, gates: Tensor, lengths: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    T, B, n = h.shape
    dxp, du, dh0 = h.new_empty(T, B, 3 * n), torch.empty_like(h), torch.empty_like(h0)
    call(
        "goru_backward", h.dtype, steps=T, batch=B, n=n, dh=dh, W=W, h0=h0, h=h, gates=gates, lengths=lengths, dxp=dxp,
        du=du, dh0=dh0,
    )  # fmt: skip
    return dxp, du, dh0
