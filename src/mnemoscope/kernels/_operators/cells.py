"""The operators of the cells without attention: rnn, lstm, rac, goru and gru."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from mnemoscope.kernels._operator import operator, register_cuda_cell


def input_gradient(x: Tensor, needs_dx: bool) -> Tensor:
    """Return the tensor that takes dx: that of x, or without `needs_dx` one of no steps."""
    return torch.empty_like(x) if needs_dx else x.new_empty(0, *x.shape[1:])


# Plain recurrence: h_t = phi(xp_t + V h_{t-1}). Every phi' is a function of h alone, so nothing else is saved.


class RnnGradients(NamedTuple):
    """dxp (T, B, n), dh0 (B, n)."""

    dxp: Tensor
    dh0: Tensor


class RnnInputGradients(NamedTuple):
    """dx (T, B, E) of [x, 1], dV (n, n + E) of [V, U, b], dh0 (B, n)."""

    dx: Tensor
    dV: Tensor
    dh0: Tensor


@operator
def rnn_forward(xp: Tensor, V: Tensor, h0: Tensor, b: Tensor | None, phi: str, lengths: Tensor | None) -> Tensor:
    """Return h (T, B, n); xp (T, B, n), V (n, n), h0 (B, n), b (n) modReLU's bias."""
    steps, batch, _ = xp.shape
    return xp.new_empty(steps, batch, V.shape[0])


@operator
def rnn_backward(dh: Tensor, V: Tensor, h: Tensor, lengths: Tensor | None, phi: str) -> RnnGradients:
    _, batch, n = h.shape  # a part of a shape is made slowly: of h.shape[1:], new_empty takes three times as long
    return RnnGradients(dxp=torch.empty_like(h), dh0=h.new_empty(batch, n))


@operator
def rnn_backward_with_inputs(
    dh: Tensor, x: Tensor, V: Tensor, h0: Tensor, h: Tensor, lengths: Tensor | None, phi: str, needs_dx: bool
) -> RnnInputGradients:
    return RnnInputGradients(dx=input_gradient(x, needs_dx), dV=torch.zeros_like(V), dh0=torch.empty_like(h0))


register_cuda_cell(rnn_forward, rnn_backward, "RNN", rows=1)


# LSTM: gates in torch's order i, f, g, o.


class LstmRun(NamedTuple):
    """h (T, B, n), c_T (B, n); saved: cells c_t (T, B, n), gates after their nonlinearities (T, B, 4n)."""

    h: Tensor
    c_T: Tensor
    cells: Tensor
    gates: Tensor


class LstmGradients(NamedTuple):
    """dxp (T, B, 4n), dh0 and dc0 (B, n)."""

    dxp: Tensor
    dh0: Tensor
    dc0: Tensor


class LstmInputGradients(NamedTuple):
    """dx (T, B, E) of [x, 1], dV (4n, n + E) of [V, U, b], dh0 and dc0 (B, n)."""

    dx: Tensor
    dV: Tensor
    dh0: Tensor
    dc0: Tensor


@operator
def lstm_forward(xp: Tensor, V: Tensor, h0: Tensor, c0: Tensor, lengths: Tensor | None, save: bool) -> LstmRun:
    """xp (T, B, 4n), V (4n, n), h0 and c0 (B, n)."""
    steps, batch, _ = xp.shape
    n = V.shape[0] // 4
    saved = steps if save else 0
    return LstmRun(
        h=xp.new_empty(steps, batch, n),
        c_T=xp.new_empty(batch, n),
        cells=xp.new_empty(saved, batch, n),
        gates=xp.new_empty(saved, batch, 4 * n),
    )


@operator
def lstm_backward(
    dh: Tensor | None, dc_T: Tensor | None, V: Tensor, c0: Tensor, cells: Tensor, gates: Tensor, lengths: Tensor | None
) -> LstmGradients:
    _, batch, n = cells.shape
    new = cells.new_empty
    return LstmGradients(dxp=torch.empty_like(gates), dh0=new(batch, n), dc0=new(batch, n))


@operator
def lstm_backward_with_inputs(
    dh: Tensor | None,
    dc_T: Tensor | None,
    x: Tensor,
    V: Tensor,
    h0: Tensor,
    c0: Tensor,
    h: Tensor,
    cells: Tensor,
    gates: Tensor,
    lengths: Tensor | None,
    needs_dx: bool,
) -> LstmInputGradients:
    return LstmInputGradients(
        dx=input_gradient(x, needs_dx),
        dV=torch.zeros_like(V),
        dh0=torch.empty_like(h0),
        dc0=torch.empty_like(c0),
    )


register_cuda_cell(lstm_forward, lstm_backward, "LSTM", rows=4, gates="saved")


# Recurrent arithmetic circuit: h_t = (V h_{t-1} + b) * xp_t.


class StateProductGradients(NamedTuple):
    """dxp (T, B, Gn), du (T, B, n) of the product u_t with the state that a gate multiplies, dh0 (B, n)."""

    dxp: Tensor
    du: Tensor
    dh0: Tensor


@operator
def rac_forward(xp: Tensor, V: Tensor, h0: Tensor, b: Tensor | None, lengths: Tensor | None) -> Tensor:
    """Return h (T, B, n); xp (T, B, n), V (n, n), h0 (B, n), b (n)."""
    return torch.empty_like(xp)


@operator
def rac_backward(dh: Tensor, xp: Tensor, V: Tensor, u: Tensor, lengths: Tensor | None) -> StateProductGradients:
    """u_t = V h_{t-1} + b (T, B, n) is made by the caller."""
    dh0 = xp.new_empty(xp.shape[1:])
    return StateProductGradients(dxp=torch.empty_like(xp), du=torch.empty_like(xp), dh0=dh0)


register_cuda_cell(rac_forward, rac_backward, "RAC", rows=1, u="saved")


# Gated units whose reset gate r multiplies a product u_t with the state: GORU and GRU.


class GatedRun(NamedTuple):
    """h (T, B, n); saved: gates (T, B, 4n)."""

    h: Tensor
    gates: Tensor


def _gated_run(xp: Tensor, save: bool) -> GatedRun:
    steps, batch, width = xp.shape
    n = width // 3
    return GatedRun(h=xp.new_empty(steps, batch, n), gates=xp.new_empty(steps if save else 0, batch, 4 * n))


def _gated_gradients(h: Tensor) -> StateProductGradients:
    steps, batch, n = h.shape
    dxp = h.new_empty(steps, batch, 3 * n)
    return StateProductGradients(dxp=dxp, du=torch.empty_like(h), dh0=h.new_empty(batch, n))


@operator
def goru_forward(xp: Tensor, W: Tensor, h0: Tensor, b: Tensor, lengths: Tensor | None, save: bool) -> GatedRun:
    """h_t = g * h_{t-1} + (1 - g) * c with c = modReLU(r * u + xp_c, b) and u = Q h_{t-1}.

    xp (T, B, 3n) in the order r, g, c; W (3n, n) = [W_r; W_g; Q]; b (n). The saved gates are r, g, c, u.
    """
    return _gated_run(xp, save)


@operator
def goru_backward(
    dh: Tensor, W: Tensor, h0: Tensor, h: Tensor, gates: Tensor, lengths: Tensor | None
) -> StateProductGradients:
    return _gated_gradients(h)


register_cuda_cell(goru_forward, goru_backward, "GORU", rows=3, phi="modrelu", W="V", gates="saved")


@operator
def gru_forward(xp: Tensor, V: Tensor, b_hn: Tensor | None, h0: Tensor, lengths: Tensor | None, save: bool) -> GatedRun:
    """h_t = (1 - z) * n + z * h_{t-1} with n = tanh(xp_n + r * u) and u = V_n h_{t-1} + b_hn.

    xp (T, B, 3n) in torch's order r, z, n, with b_ih and with b_hh of r and z; V (3n, n); b_hn (n). The saved gates are
    r, z, n, u.
    """
    return _gated_run(xp, save)


@operator
def gru_backward(
    dh: Tensor, V: Tensor, h0: Tensor, h: Tensor, gates: Tensor, lengths: Tensor | None
) -> StateProductGradients:
    return _gated_gradients(h)


register_cuda_cell(gru_forward, gru_backward, "GRU", rows=3, b_hn="b", gates="saved")
