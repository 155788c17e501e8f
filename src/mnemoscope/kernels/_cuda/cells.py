"""The recurrences without a memory on CUDA: every family with a cell (cells_forward.cu, cells_backward.cu).

Layers that no cluster holds run step by step (`cells_steps.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from mnemoscope.kernels._cuda import cells_steps, compiler, layout
from mnemoscope.kernels._cuda.arguments import PHI, as_float32, group_as_float32, group_to_dtype, to_device
from mnemoscope.kernels._cuda.layout import Tile
from mnemoscope.kernels._operator import CUDA_CELLS, CudaCell, Operator, ProjectedRun, Projection


@cache
def _defines(tile: Tile, struct: str, phi: str, **flags: bool) -> compiler.KeptDefines:
    return compiler.KeptDefines({**tile.defines(), "CELL": struct, "PHI": PHI[phi], **flags})


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
    """Fill h, h_T if it is given, and c_T, cells and saved if the cell has them; all tensors float32.

    b_ih and b_hh are the biases of the inputs' projection, if xp is without them; b_hh may be of the first rows alone.
    """
    T, B, n = h.shape
    tile = layout.require_tile(cell.rows, n, h.device)
    compiler.launch(
        "cells_forward",
        _defines(
            tile,
            cell.struct,
            phi,
            HAS_BIAS=b is not None,
            HAS_INPUT_BIAS=b_ih is not None,
            HAS_LENGTHS=lengths is not None,
            SAVE=save,
        ),
        blocks=B * tile.cluster_blocks,
        threads=tile.threads,
        shared_floats=tile.barrier_floats + 2 * tile.padded_n,
        args={
            "xp": xp,
            "V": V,
            "h0": h0,
            "c0": c0,
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
    """Fill dxp and dh0, and du and dc0 if the cell has them; all tensors float32."""
    T = dxp.shape[0]
    B, n = dh0.shape
    tile = layout.require_tile(cell.rows, n, dxp.device)
    compiler.launch(
        "cells_backward",
        _defines(
            tile,
            cell.struct,
            phi,
            HAS_DH=dh is not None,
            HAS_DC=dc_T is not None,
            HAS_LENGTHS=lengths is not None,
        ),
        blocks=B * tile.cluster_blocks,
        threads=tile.threads,
        shared_floats=tile.barrier_floats + tile.outbox_floats + 2 * cell.rows * tile.padded_n,
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
            "b": b,
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


def step(
    family: str,
    projection: Projection,
    V: Tensor,
    h0: Tensor,
    c0: Tensor | None,
    b: Tensor | None,
    phi: str,
) -> tuple[Tensor, Tensor | None]:
    """Return h and c (1, B, n) after one step of x (B, E), without gradients; c is None of a cell without c0.

    h0 and c0 are (1, B, n). All tensors are float32 and contiguous.
    """
    xp = projection.product()
    h = torch.empty_like(h0)
    c = None if c0 is None else torch.empty_like(c0)
    _, _, b_ih, b_hh = projection
    cell = CUDA_CELLS[family]
    run_forward(cell, xp=xp, V=V, h0=h0, c0=c0, b=b, b_ih=b_ih, b_hh=b_hh, phi=phi, lengths=None, h=h, c_T=c)
    return h, c


Launch = Callable[..., None]


def _loop(
    cell: CudaCell, operator: Operator[Any, Any], launch_by_cluster: Launch, launch_by_step: Launch
) -> Callable[..., Any]:
    """Return an operator's function on CUDA: `run_forward` or `run_backward` with its arguments and results by name."""
    names = [cell.names.get(name, name) for name in (*operator.arguments, *operator.results)]
    V_of, lengths_of = names.index("V"), names.index("lengths")
    single = len(operator.results) == 1

    def run(*arguments: Any, **more: Tensor | None) -> Any:
        if isinstance(arguments[0], Projection):
            return project_and_run(*arguments)
        V = arguments[V_of]
        dtype = V.dtype
        by_cluster = layout.tile(cell.rows, V.shape[1], V.device) is not None
        arguments = group_as_float32(arguments, dtype)
        results = operator.allocate(*arguments)
        named: dict[str, Any] = {"phi": cell.phi, **more}
        named.update(zip(names, (*arguments, results) if single else (*arguments, *results), strict=True))
        launch = launch_by_cluster if by_cluster else launch_by_step
        launch(cell, **named)
        if dtype is torch.float32:
            return results
        return results.to(dtype) if single else group_to_dtype(results, dtype)

    def project_and_run(projection: Projection, *rest: Any) -> ProjectedRun:
        xp = projection.product()
        steps, batch, width = xp.shape
        h_T = None
        if steps > 1 and rest[lengths_of - 1] is None:  # one step's state is its output, and padded rows end elsewhere
            h_T = xp.new_empty(batch, width // cell.rows, dtype=torch.float32)
        biases = as_float32(projection.b_ih), as_float32(projection.b_hh)
        results = run(xp, *rest, b_ih=biases[0], b_hh=biases[1], h_T=h_T)
        if h_T is not None and xp.dtype is not torch.float32:
            h_T = h_T.to(xp.dtype)
        return ProjectedRun(results, h_T)

    return run


for cell in CUDA_CELLS.values():
    cell.forward.implement("cuda", projects=True)(_loop(cell, cell.forward, run_forward, cells_steps.run_forward))
    cell.backward.implement("cuda")(_loop(cell, cell.backward, run_backward, cells_steps.run_backward))
