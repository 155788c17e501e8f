"""The recurrences without a memory on CUDA: RNN, LSTM, GRU, GORU and RAC (cells_forward.cu, cells_backward.cu)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from mnemoscope.kernels._cuda import compiler, layout
from mnemoscope.kernels._cuda.arguments import PHI, as_float32, to_device
from mnemoscope.kernels._operators import implement


class Cell(NamedTuple):
    """A struct of cells.cuh, by its name, and what of it decides sizes here."""

    name: str
    rows: int  # of weights per unit
    saved: int = 0  # numbers per unit and step that the forward pass saves
    has_cell_state: bool = False
    has_du: bool = False


RNN = Cell("RNN", rows=1)
RAC = Cell("RAC", rows=1, has_du=True)
GORU = Cell("GORU", rows=3, saved=4, has_du=True)
GRU = Cell("GRU", rows=3, saved=4, has_du=True)
LSTM = Cell("LSTM", rows=4, saved=4, has_cell_state=True)
CELLS = {"rnn": RNN, "rac": RAC, "goru": GORU, "gru": GRU, "lstm": LSTM}


def supports(cell: Cell, n: int, device: torch.device) -> bool:
    """True if one sequence's weights fit the registers of one cluster."""
    return layout.tile(cell.rows, n, device) is not None


class Forward(NamedTuple):
    """h (T, B, n), c_T (B, n), cells (T, B, n), gates (T, B, 4n); empty if the cell has no such thing."""

    h: Tensor
    c_T: Tensor
    cells: Tensor
    gates: Tensor


def _forward(
    cell: Cell,
    xp: Tensor,
    V: Tensor,
    h0: Tensor,
    *,
    c0: Tensor | None = None,
    b: Tensor | None = None,
    phi: str = "tanh",
    lengths: Tensor | None,
    save: bool = False,
) -> Forward:
    T = xp.shape[0]
    B, n = h0.shape
    tile = layout.require_tile(cell.rows, n, xp.device)

    h = xp.new_empty(T, B, n, dtype=torch.float32)
    saved_steps = T if save else 0
    c_T = h.new_empty(B, n) if cell.has_cell_state else h.new_empty(0)
    cells = h.new_empty(saved_steps, B, n) if cell.has_cell_state else h.new_empty(0)
    gates = h.new_empty(saved_steps, B, cell.saved * n) if cell.saved else h.new_empty(0)
    compiler.launch(
        "cells_forward",
        {
            **tile.defines(),
            "CELL": cell.name,
            "PHI": PHI[phi],
            "HAS_BIAS": b is not None,
            "HAS_LENGTHS": lengths is not None,
            "SAVE": save,
        },
        blocks=B * tile.cluster_blocks,
        threads=tile.threads,
        shared_floats=2 * tile.padded_n,
        args={
            "xp": as_float32(xp),
            "V": as_float32(V),
            "h0": as_float32(h0),
            "c0": as_float32(c0),
            "b": as_float32(b),
            "lengths": to_device(lengths, xp.device),
            "h": h,
            "c_T": c_T,
            "cells": cells,
            "gates": gates,
            "n": n,
            "T": T,
            "B": B,
        },
    )
    return Forward(h.to(xp.dtype), c_T.to(xp.dtype), cells.to(xp.dtype), gates.to(xp.dtype))


class Backward(NamedTuple):
    """dxp (T, B, rows n), du (T, B, n), dh0, dc0 (B, n); empty if the cell has no such thing."""

    dxp: Tensor
    du: Tensor
    dh0: Tensor
    dc0: Tensor


def _backward(
    cell: Cell,
    dh: Tensor | None,
    V: Tensor,
    *,
    dc_T: Tensor | None = None,
    xp: Tensor | None = None,
    h0: Tensor | None = None,
    c0: Tensor | None = None,
    h: Tensor | None = None,
    cells: Tensor | None = None,
    saved: Tensor | None = None,
    phi: str = "tanh",
    lengths: Tensor | None,
) -> Backward:
    states = next(t for t in (h, cells, xp) if t is not None)  # (T, B, n)
    T, B, n = states.shape
    tile = layout.require_tile(cell.rows, n, states.device)

    dxp = states.new_empty(T, B, cell.rows * n, dtype=torch.float32)
    du = dxp.new_empty(T, B, n) if cell.has_du else dxp.new_empty(0)
    dh0 = dxp.new_empty(B, n)
    dc0 = dxp.new_empty(B, n) if cell.has_cell_state else dxp.new_empty(0)
    compiler.launch(
        "cells_backward",
        {
            **tile.defines(),
            "CELL": cell.name,
            "PHI": PHI[phi],
            "HAS_DH": dh is not None,
            "HAS_DC": dc_T is not None,
            "HAS_LENGTHS": lengths is not None,
        },
        blocks=B * tile.cluster_blocks,
        threads=tile.threads,
        shared_floats=2 * cell.rows * tile.padded_n,
        args={
            "dh": as_float32(dh),
            "dc_T": as_float32(dc_T),
            "xp": as_float32(xp),
            "V": as_float32(V),
            "h0": as_float32(h0),
            "c0": as_float32(c0),
            "h": as_float32(h),
            "cells": as_float32(cells),
            "saved": as_float32(saved),
            "lengths": to_device(lengths, states.device),
            "dxp": dxp,
            "du": du,
            "dh0": dh0,
            "dc0": dc0,
            "n": n,
            "T": T,
            "B": B,
        },
    )
    dtype = states.dtype
    return Backward(dxp.to(dtype), du.to(dtype), dh0.to(dtype), dc0.to(dtype))


@implement("rnn_forward", "cuda")
def rnn_forward(xp: Tensor, V: Tensor, h0: Tensor, b: Tensor | None, phi: str, lengths: Tensor | None) -> Tensor:
    return _forward(RNN, xp, V, h0, b=b, phi=phi, lengths=lengths).h


@implement("rnn_backward", "cuda")
def rnn_backward(dh: Tensor, V: Tensor, h: Tensor, lengths: Tensor | None, phi: str) -> tuple[Tensor, Tensor]:
    grads = _backward(RNN, dh, V, h=h, phi=phi, lengths=lengths)
    return grads.dxp, grads.dh0


@implement("rac_forward", "cuda")
def rac_forward(xp: Tensor, V: Tensor, h0: Tensor, b: Tensor | None, lengths: Tensor | None) -> Tensor:
    return _forward(RAC, xp, V, h0, b=b, lengths=lengths).h


@implement("rac_backward", "cuda")
def rac_backward(dh: Tensor, xp: Tensor, V: Tensor, u: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    grads = _backward(RAC, dh, V, xp=xp, saved=u, lengths=lengths)
    return grads.dxp, grads.du, grads.dh0


@implement("goru_forward", "cuda")
def goru_forward(
    xp: Tensor, W: Tensor, h0: Tensor, b: Tensor, lengths: Tensor | None, save: bool
) -> tuple[Tensor, Tensor]:
    out = _forward(GORU, xp, W, h0, b=b, phi="modrelu", lengths=lengths, save=save)
    return out.h, out.gates


@implement("goru_backward", "cuda")
def goru_backward(
    dh: Tensor, W: Tensor, h0: Tensor, h: Tensor, gates: Tensor, lengths: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    grads = _backward(GORU, dh, W, h0=h0, h=h, saved=gates, phi="modrelu", lengths=lengths)
    return grads.dxp, grads.du, grads.dh0


@implement("gru_forward", "cuda")
def gru_forward(
    xp: Tensor, V: Tensor, b_hn: Tensor | None, h0: Tensor, lengths: Tensor | None, save: bool
) -> tuple[Tensor, Tensor]:
    out = _forward(GRU, xp, V, h0, b=b_hn, lengths=lengths, save=save)
    return out.h, out.gates


@implement("gru_backward", "cuda")
def gru_backward(
    dh: Tensor, V: Tensor, h0: Tensor, h: Tensor, gates: Tensor, lengths: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    grads = _backward(GRU, dh, V, h0=h0, h=h, saved=gates, lengths=lengths)
    return grads.dxp, grads.du, grads.dh0


@implement("lstm_forward", "cuda")
def lstm_forward(
    xp: Tensor, V: Tensor, h0: Tensor, c0: Tensor, lengths: Tensor | None, save: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return _forward(LSTM, xp, V, h0, c0=c0, lengths=lengths, save=save)


@implement("lstm_backward", "cuda")
def lstm_backward(
    dh: Tensor | None, dc_T: Tensor | None, V: Tensor, c0: Tensor, cells: Tensor, gates: Tensor, lengths: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    grads = _backward(LSTM, dh, V, dc_T=dc_T, c0=c0, cells=cells, saved=gates, lengths=lengths)
    return grads.dxp, grads.dh0, grads.dc0
