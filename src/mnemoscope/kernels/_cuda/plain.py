"""The recurrences without a memory on CUDA: RNN, LSTM, GRU, GORU and RAC (cells_forward.cu, cells_backward.cu)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from mnemoscope.kernels import _operators as op
from mnemoscope.kernels._cuda import compiler, layout
from mnemoscope.kernels._cuda.arguments import PHI, as_float32, group_to_dtype, to_device


class Cell(NamedTuple):
    """A struct of cells.cuh by its name, and the rows of weights per unit that it has."""

    name: str
    rows: int


RNN = Cell("RNN", rows=1)
RAC = Cell("RAC", rows=1)
GORU = Cell("GORU", rows=3)
GRU = Cell("GRU", rows=3)
LSTM = Cell("LSTM", rows=4)
CELLS = {"rnn": RNN, "rac": RAC, "goru": GORU, "gru": GRU, "lstm": LSTM}


def supports(cell: Cell, n: int, device: torch.device) -> bool:
    """True if one sequence's weights fit the registers of one cluster."""
    return layout.tile(cell.rows, n, device) is not None


def run_forward(
    cell: Cell,
    *,
    xp: Tensor,
    V: Tensor,
    h0: Tensor,
    c0: Tensor | None = None,
    b: Tensor | None = None,
    phi: str = "tanh",
    lengths: Tensor | None,
    save: bool = False,
    h: Tensor,
    c_T: Tensor | None = None,
    cells: Tensor | None = None,
    gates: Tensor | None = None,
) -> None:
    """Fill h, and c_T, cells and gates if the cell has them; all tensors float32."""
    T, B, n = h.shape
    tile = layout.require_tile(cell.rows, n, h.device)
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
            "xp": xp,
            "V": V,
            "h0": h0,
            "c0": c0,
            "b": b,
            "lengths": to_device(lengths, h.device),
            "h": h,
            "c_T": c_T,
            "cells": cells,
            "gates": gates,
            "n": n,
            "T": T,
            "B": B,
        },
    )


def run_backward(
    cell: Cell,
    *,
    dh: Tensor | None,
    dc_T: Tensor | None = None,
    xp: Tensor | None = None,
    V: Tensor,
    h0: Tensor | None = None,
    c0: Tensor | None = None,
    h: Tensor | None = None,
    cells: Tensor | None = None,
    saved: Tensor | None = None,
    phi: str = "tanh",
    lengths: Tensor | None,
    dxp: Tensor,
    du: Tensor | None = None,
    dh0: Tensor,
    dc0: Tensor | None = None,
) -> None:
    """Fill dxp and dh0, and du and dc0 if the cell has them; all tensors float32."""
    T = dxp.shape[0]
    B, n = dh0.shape
    tile = layout.require_tile(cell.rows, n, dxp.device)
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
            "dh": dh,
            "dc_T": dc_T,
            "xp": xp,
            "V": V,
            "h0": h0,
            "c0": c0,
            "h": h,
            "cells": cells,
            "saved": saved,
            "lengths": to_device(lengths, dxp.device),
            "dxp": dxp,
            "du": du,
            "dh0": dh0,
            "dc0": dc0,
            "n": n,
            "T": T,
            "B": B,
        },
    )


@op.rnn_forward.implement("cuda")
def rnn_forward(xp: Tensor, V: Tensor, h0: Tensor, b: Tensor | None, phi: str, lengths: Tensor | None) -> Tensor:
    dtype = xp.dtype
    xp, V, h0, b = as_float32(xp), as_float32(V), as_float32(h0), as_float32(b)
    h = op.rnn_forward.allocate(xp, V, h0, b, phi, lengths)
    run_forward(RNN, xp=xp, V=V, h0=h0, b=b, phi=phi, lengths=lengths, h=h)
    return h.to(dtype)


@op.rnn_backward.implement("cuda")
def rnn_backward(dh: Tensor, V: Tensor, h: Tensor, lengths: Tensor | None, phi: str) -> op.RnnGradients:
    dtype = h.dtype
    dh, V, h = as_float32(dh), as_float32(V), as_float32(h)
    grads = op.rnn_backward.allocate(dh, V, h, lengths, phi)
    run_backward(RNN, dh=dh, V=V, h=h, phi=phi, lengths=lengths, **grads._asdict())
    return group_to_dtype(grads, dtype)


@op.rac_forward.implement("cuda")
def rac_forward(xp: Tensor, V: Tensor, h0: Tensor, b: Tensor | None, lengths: Tensor | None) -> Tensor:
    dtype = xp.dtype
    xp, V, h0, b = as_float32(xp), as_float32(V), as_float32(h0), as_float32(b)
    h = op.rac_forward.allocate(xp, V, h0, b, lengths)
    run_forward(RAC, xp=xp, V=V, h0=h0, b=b, lengths=lengths, h=h)
    return h.to(dtype)


@op.rac_backward.implement("cuda")
def rac_backward(dh: Tensor, xp: Tensor, V: Tensor, u: Tensor, lengths: Tensor | None) -> op.StateProductGradients:
    dtype = xp.dtype
    dh, xp, V, u = as_float32(dh), as_float32(xp), as_float32(V), as_float32(u)
    grads = op.rac_backward.allocate(dh, xp, V, u, lengths)
    run_backward(RAC, dh=dh, xp=xp, V=V, saved=u, lengths=lengths, **grads._asdict())
    return group_to_dtype(grads, dtype)


@op.goru_forward.implement("cuda")
def goru_forward(xp: Tensor, W: Tensor, h0: Tensor, b: Tensor, lengths: Tensor | None, save: bool) -> op.GatedRun:
    dtype = xp.dtype
    xp, W, h0, b = as_float32(xp), as_float32(W), as_float32(h0), as_float32(b)
    run = op.goru_forward.allocate(xp, W, h0, b, lengths, save)
    run_forward(GORU, xp=xp, V=W, h0=h0, b=b, phi="modrelu", lengths=lengths, save=save, **run._asdict())
    return group_to_dtype(run, dtype)


@op.goru_backward.implement("cuda")
def goru_backward(
    dh: Tensor, W: Tensor, h0: Tensor, h: Tensor, gates: Tensor, lengths: Tensor | None
) -> op.StateProductGradients:
    dtype = h.dtype
    dh, W, h0, h, gates = as_float32(dh), as_float32(W), as_float32(h0), as_float32(h), as_float32(gates)
    grads = op.goru_backward.allocate(dh, W, h0, h, gates, lengths)
    run_backward(GORU, dh=dh, V=W, h0=h0, h=h, saved=gates, phi="modrelu", lengths=lengths, **grads._asdict())
    return group_to_dtype(grads, dtype)


@op.gru_forward.implement("cuda")
def gru_forward(
    xp: Tensor, V: Tensor, b_hn: Tensor | None, h0: Tensor, lengths: Tensor | None, save: bool
) -> op.GatedRun:
    dtype = xp.dtype
    xp, V, b_hn, h0 = as_float32(xp), as_float32(V), as_float32(b_hn), as_float32(h0)
    run = op.gru_forward.allocate(xp, V, b_hn, h0, lengths, save)
    run_forward(GRU, xp=xp, V=V, h0=h0, b=b_hn, lengths=lengths, save=save, **run._asdict())
    return group_to_dtype(run, dtype)


@op.gru_backward.implement("cuda")
def gru_backward(
    dh: Tensor, V: Tensor, h0: Tensor, h: Tensor, gates: Tensor, lengths: Tensor | None
) -> op.StateProductGradients:
    dtype = h.dtype
    dh, V, h0, h, gates = as_float32(dh), as_float32(V), as_float32(h0), as_float32(h), as_float32(gates)
    grads = op.gru_backward.allocate(dh, V, h0, h, gates, lengths)
    run_backward(GRU, dh=dh, V=V, h0=h0, h=h, saved=gates, lengths=lengths, **grads._asdict())
    return group_to_dtype(grads, dtype)


@op.lstm_forward.implement("cuda")
def lstm_forward(xp: Tensor, V: Tensor, h0: Tensor, c0: Tensor, lengths: Tensor | None, save: bool) -> op.LstmRun:
    dtype = xp.dtype
    xp, V, h0, c0 = as_float32(xp), as_float32(V), as_float32(h0), as_float32(c0)
    run = op.lstm_forward.allocate(xp, V, h0, c0, lengths, save)
    run_forward(LSTM, xp=xp, V=V, h0=h0, c0=c0, lengths=lengths, save=save, **run._asdict())
    return group_to_dtype(run, dtype)


@op.lstm_backward.implement("cuda")
def lstm_backward(
    dh: Tensor | None, dc_T: Tensor | None, V: Tensor, c0: Tensor, cells: Tensor, gates: Tensor, lengths: Tensor | None
) -> op.LstmGradients:
    dtype = cells.dtype
    dh, dc_T = as_float32(dh), as_float32(dc_T)
    V, c0, cells, gates = as_float32(V), as_float32(c0), as_float32(cells), as_float32(gates)
    grads = op.lstm_backward.allocate(dh, dc_T, V, c0, cells, gates, lengths)
    run_backward(LSTM, dh=dh, dc_T=dc_T, V=V, c0=c0, cells=cells, saved=gates, lengths=lengths, **grads._asdict())
    return group_to_dtype(grads, dtype)
