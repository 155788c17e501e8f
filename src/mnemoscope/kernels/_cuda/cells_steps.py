"""The recurrences without a memory on CUDA for layers that are too wide for one cluster: step by step.

A step is one matrix product of the whole batch and one kernel (cells_step_forward.cu, cells_step_backward.cu).
"""

from __future__ import annotations

import torch
from torch import Tensor

from mnemoscope.kernels._cuda import compiler
from mnemoscope.kernels._cuda.arguments import PHI, to_device
from mnemoscope.kernels._operator import CudaCell

_THREADS = 256  # of a block: one for each unit of each sequence


def _blocks(B: int, n: int) -> int:
    return -(-B * n // _THREADS)


def _defines(cell: CudaCell, phi: str, **flags: bool) -> dict[str, int | str]:
    return {"CELL": cell.struct, "ROWS": cell.rows, "PHI": PHI[phi], "CLUSTER_BLOCKS": 1, **flags}


def _start(carried: Tensor, before: Tensor | None) -> None:
    """Begin what the launches carry with the state before the first of them; without one, with zeros."""
    if before is None or not before.numel():
        carried.zero_()
    else:
        carried.copy_(before)


def run_forward(
    cell: CudaCell,
    *,
    xp: Tensor,
    V: Tensor,
    h0: Tensor,
    c0: Tensor | None = None,
    b: Tensor | None = None,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
    phi: str = "tanh",
    lengths: Tensor | None,
    save: bool = False,
    h: Tensor,
    h_T: Tensor | None = None,
    c_T: Tensor | None = None,
    cells: Tensor | None = None,
    saved: Tensor | None = None,
) -> None:
    """Do what `cells.run_forward` does."""
    T, B, n = h.shape
    products, transposed, states = h.new_zeros(B, cell.rows * n), V.T, h.unbind(0)
    if c_T is not None:
        _start(c_T, c0)

    def multiply(t: int) -> None:
        if t > 0:
            torch.mm(states[t - 1], transposed, out=products)
        elif h0.numel():
            torch.mm(h0, transposed, out=products)

    compiler.launch_steps(
        "cells_step_forward",
        _defines(
            cell,
            phi,
            HAS_BIAS=b is not None,
            HAS_INPUT_BIAS=b_ih is not None,
            HAS_LENGTHS=lengths is not None,
            SAVE=save,
        ),
        blocks=_blocks(B, n),
        threads=_THREADS,
        shared_floats=0,
        args={
            "xp": xp,
            "products": products,
            "h0": h0,
            "b": b,
            "b_ih": b_ih,
            "b_hh": b_hh,
            "lengths": to_device(lengths, h.device),
            "h": h,
            "h_T": h_T,
            "c_T": c_T,
            "cells": cells,
            "saved": saved,
            "n": n,
            "T": T,
            "B": B,
            "b_hh_size": 0 if b_hh is None else b_hh.shape[0],
        },
        steps=range(T),
        before=multiply,
    )


def run_backward(
    cell: CudaCell,
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
    b: Tensor | None = None,
    phi: str = "tanh",
    lengths: Tensor | None,
    dxp: Tensor,
    du: Tensor | None = None,
    dh0: Tensor,
    dc0: Tensor | None = None,
) -> None:
    """Do what `cells.run_backward` does."""
    T, (B, n) = dxp.shape[0], dh0.shape
    dy, dh_product, direct = dxp.new_zeros(B, cell.rows * n), dh0.new_zeros(B, n), dh0.new_zeros(B, n)
    if dc0 is not None:
        _start(dc0, dc_T)

    def multiply(t: int) -> None:
        if t < T - 1:
            torch.mm(dy, V, out=dh_product)

    compiler.launch_steps(
        "cells_step_backward",
        _defines(cell, phi, HAS_DH=dh is not None, HAS_LENGTHS=lengths is not None),
        blocks=_blocks(B, n),
        threads=_THREADS,
        shared_floats=0,
        args={
            "dh": dh,
            "xp": xp,
            "dh_product": dh_product,
            "h0": h0,
            "c0": c0,
            "h": h,
            "cells": cells,
            "saved": saved,
            "b": b,
            "lengths": to_device(lengths, dxp.device),
            "dxp": dxp,
            "du": du,
            "dy": dy,
            "direct": direct,
            "dc0": dc0,
            "n": n,
            "T": T,
            "B": B,
        },
        steps=range(T - 1, -1, -1),
        before=multiply,
    )
    torch.addmm(direct, dy, V, out=dh0)
