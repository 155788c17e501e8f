"""The gradients of a recurrence's weights and biases in one launch (weight_gradients.cu), after a short run."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from mnemoscope.kernels._cuda import compiler, layout
from mnemoscope.kernels._operator import Projection
from mnemoscope.kernels._weight_gradients import WeightGradients, weight_gradient_backends

_TILE, _DEPTH, _THREADS = 64, 16, 256
_MOST_BLOCKS = 8  # of a cluster, which share the rows of a run
# Up to so many multiplications the host takes longer to launch the products of cuBLAS than the device to make them;
# above, cuBLAS's are faster than ours.
_MOST_PRODUCTS = 1 << 30


@cache
def _defines(blocks: int) -> compiler.KeptDefines:
    return compiler.KeptDefines(CLUSTER_BLOCKS=blocks)


@cache
def _grid(matrices: tuple[tuple[int, int], ...], clusters: tuple[int, ...]) -> tuple[int, int]:
    """Return the blocks of a cluster on a device with these, and of all clusters, one for each tile of the matrices."""
    blocks = max(size for size in clusters if size <= _MOST_BLOCKS)
    return blocks, blocks * sum(-(-rows // _TILE) * -(-columns // _TILE) for rows, columns in matrices)


def weight_gradients(
    projection: Projection,
    dz: Tensor,
    first: Tensor,
    states: Tensor,
    du: Tensor | None,
    du_row: int,
    dk: Tensor | None = None,
    h: Tensor | None = None,
    dv_rows: Tensor | None = None,
) -> WeightGradients | None:
    """Return the gradients of all weights and biases (`SavedRun.all_at_once`); None where torch should make them."""
    x, U, b_ih, b_hh = projection
    G, E = U.shape
    T, B, n = states.shape
    H = G if du is None else du_row + du.shape[2]
    keys = 0 if dk is None else n
    if T * B * ((H + keys) * n + G * E) > _MOST_PRODUCTS or dz.dtype is not torch.float32:
        return None
    blocks, all_blocks = _grid(((H, n), (G, E), (keys, n)), layout.limits(dz.device).clusters)
    if blocks == 1:  # a device without clusters
        return None
    for tensor in (dz, states, du, dk, h, dv_rows):
        if tensor is not None and not tensor.is_contiguous():
            return None
    new = dz.new_empty
    dV, dU = new(H, n), new(G, E)
    db_ih = None if b_ih is None else new(G)
    db_hh = None if b_hh is None else new(H)
    dU_a = None if dk is None else new(n, n)
    dv = None if dv_rows is None else new(n)
    compiler.launch(
        "weight_gradients",
        _defines(blocks),
        blocks=all_blocks,
        threads=_THREADS,
        shared_floats=2 * _DEPTH * _TILE + _THREADS + _TILE * _TILE + blocks * _TILE,
        args={
            "dz": dz,
            "du": du,
            "first": first,
            "states": states,
            "x": x if x.is_contiguous() else x.contiguous(),
            "dk": dk,
            "h": h,
            "dv_rows": dv_rows,
            "dV": dV,
            "db_hh": db_hh,
            "dU": dU,
            "db_ih": db_ih,
            "dU_a": dU_a,
            "dv": dv,
            "G": G,
            "H": H,
            "du_row": du_row,
            "n": n,
            "E": E,
            "K": T * B,
            "B": B,
        },
    )
    return WeightGradients(dV, dU, db_ih, db_hh, dU_a, dv)


weight_gradient_backends["cuda"] = weight_gradients
