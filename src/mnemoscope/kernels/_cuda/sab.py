"""Sparse attentive backtracking on CUDA (sab_forward.cu, sab_backward.cu)."""

from __future__ import annotations

import torch
from torch import Tensor

from mnemoscope.kernels import _operators as op
from mnemoscope.kernels._cuda import compiler, layout
from mnemoscope.kernels._cuda.arguments import as_float32, group_as_float32, group_to_dtype, to_device
from mnemoscope.kernels._cuda.layout import Tile

MAX_TOP = 32  # lane i of a warp has the record of slot i
ROWS = 4


def supports(n: int, top: int, device: torch.device) -> bool:
    """True if one sequence's weights fit the registers, and its slots the lanes, of one cluster."""
    return top <= MAX_TOP and layout.tile(ROWS, n, device) is not None


def forward_floats(tile: Tile, top: int) -> int:
    return 2 * tile.padded_n + 2 * tile.warp_floats + tile.slot_floats(1, top)


def backward_floats(tile: Tile, top: int) -> int:
    return 2 * ROWS * tile.padded_n + 2 * tile.unit_sum_floats(top) + tile.slot_floats(2, top)


def _top_states(scores0: Tensor, origin0: Tensor, top: int) -> tuple[Tensor, Tensor]:
    """Return the carried states of the largest scores (B, top), -1 for none, and how many are stored (B,)."""
    filled = origin0 >= 0
    count = min(top, origin0.shape[1])
    values, indices = scores0.masked_fill(~filled, -torch.inf).topk(count, -1)
    indices = torch.where(values > -torch.inf, indices, -1)
    padded = torch.nn.functional.pad(indices, (0, top - count), value=-1)
    return padded.int(), filled.sum(1).int()


@op.sab_forward.implement("cuda")
def sab_forward(
    xp: Tensor,
    V: Tensor,
    w: Tensor,
    h0: Tensor,
    c0: Tensor,
    memory: op.CarriedMemory,
    options: op.SabOptions,
    lengths: Tensor | None,
    save: bool,
) -> op.SabRun:
    dtype = xp.dtype
    xp, V, w, h0, c0 = as_float32(xp), as_float32(V), as_float32(w), as_float32(h0), as_float32(c0)
    memory = group_as_float32(memory, dtype)
    run = op.sab_forward.allocate(xp, V, w, h0, c0, memory, options, lengths, save)
    T, B, n = run.h.shape
    tile = layout.require_tile(ROWS, n, xp.device)
    scores0 = memory.keys0 @ w
    top0, stored0 = _top_states(scores0, memory.origin0, options.top)
    compiler.launch(
        "sab_forward",
        {**tile.defines(), "TOP": options.top, "PHI": "TANH", "SAVE": save, "HAS_LENGTHS": lengths is not None},
        blocks=B * tile.cluster_blocks,
        threads=tile.threads,
        shared_floats=forward_floats(tile, options.top),
        args={
            "xp": xp,
            "V": V,
            "w": w,
            "h0": h0,
            "c0": c0,
            "values0": memory.values0,
            "top0": top0,
            "scores0": scores0,
            "stored0": stored0,
            "clock0": memory.clock0,
            "lengths": to_device(lengths, xp.device),
            **run._asdict(),
            "n": n,
            "T": T,
            "B": B,
            "m0": memory.values0.shape[1],
            "store_every": options.store_every,
        },
    )
    return group_to_dtype(run, dtype)


@op.sab_backward.implement("cuda")
def sab_backward(
    dh: Tensor | None,
    dattended: Tensor | None,
    dc_T: Tensor | None,
    V: Tensor,
    w: Tensor,
    c0: Tensor,
    memory: op.CarriedMemory,
    options: op.SabOptions,
    saved: op.SabSaved,
    lengths: Tensor | None,
) -> op.SabGradients:
    dtype = saved.h.dtype
    dh, dattended, dc_T = as_float32(dh), as_float32(dattended), as_float32(dc_T)
    V, w, c0 = as_float32(V), as_float32(w), as_float32(c0)
    memory, saved = group_as_float32(memory, dtype), group_as_float32(saved, dtype)
    found = op.sab_backward.allocate(dh, dattended, dc_T, V, w, c0, memory, options, saved, lengths)
    # The kernel writes the gradients of the memory only where there are any.
    for grad in (found.dvalues0, found.dscores, found.dscores0):
        grad.zero_()

    T, B, n = saved.h.shape
    tile = layout.require_tile(ROWS, n, saved.h.device)
    scores0 = memory.keys0 @ w
    top0, stored0 = _top_states(scores0, memory.origin0, options.top)
    compiler.launch(
        "sab_backward",
        {
            **tile.defines(),
            "TOP": options.top,
            "PHI": "TANH",
            "DETACH_SCORES": options.detach_scores,
            "HAS_DH": dh is not None,
            "HAS_DATTENDED": dattended is not None,
            "HAS_DC": dc_T is not None,
            "HAS_LENGTHS": lengths is not None,
        },
        blocks=B * tile.cluster_blocks,
        threads=tile.threads,
        shared_floats=backward_floats(tile, options.top),
        args={
            "dh": dh,
            "dattended": dattended,
            "dc_T": dc_T,
            "V": V,
            "w": w,
            "c0": c0,
            "values0": memory.values0,
            "top0": top0,
            "stored0": stored0,
            "clock0": memory.clock0,
            **saved._asdict(),
            "scores": torch.tanh(saved.h) @ w,
            "scores0": scores0,
            "lengths": to_device(lengths, saved.h.device),
            **found._asdict(),
            "n": n,
            "T": T,
            "B": B,
            "m0": memory.values0.shape[1],
            "store_every": options.store_every,
            "truncation": options.truncation,
        },
    )
    return group_to_dtype(found, dtype)
