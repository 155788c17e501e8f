"""Sparse attentive backtracking on CUDA (sab_forward.cu, sab_backward.cu)."""

from __future__ import annotations

import torch
from torch import Tensor

from mnemoscope.kernels._cuda import compiler, layout
from mnemoscope.kernels._cuda.arguments import as_float32, to_device, to_dtype
from mnemoscope.kernels._cuda.layout import Tile
from mnemoscope.kernels._operators import CarriedMemory, SabOptions, SabSaved, implement

MAX_TOP = 32  # lane i of a warp has the record of slot i
ROWS = 4


def supports(n: int, top: int, device: torch.device) -> bool:
    """True if one sequence's weights fit the registers, and its slots the lanes, of one cluster."""
    return top <= MAX_TOP and layout.tile(ROWS, n, device) is not None


def forward_floats(tile: Tile, top: int) -> int:
    return 2 * tile.padded_n + 2 * tile.warp_floats + tile.slot_floats(1, top)


def backward_floats(tile: Tile, top: int) -> int:
    return 2 * ROWS * tile.padded_n + 2 * tile.unit_sum_floats + tile.slot_floats(2, top)


def _top_states(scores0: Tensor, origin0: Tensor, top: int) -> tuple[Tensor, Tensor]:
    """Return the carried states of the largest scores (B, top), -1 for none, and how many are stored (B,)."""
    filled = origin0 >= 0
    count = min(top, origin0.shape[1])
    values, indices = scores0.masked_fill(~filled, -torch.inf).topk(count, -1)
    indices = torch.where(values > -torch.inf, indices, -1)
    padded = torch.nn.functional.pad(indices, (0, top - count), value=-1)
    return padded.int(), filled.sum(1).int()


@implement("sab_forward", "cuda")
def sab_forward(
    xp: Tensor,
    V: Tensor,
    w: Tensor,
    h0: Tensor,
    c0: Tensor,
    memory: CarriedMemory,
    options: SabOptions,
    lengths: Tensor | None,
    save: bool,
) -> tuple[Tensor, ...]:
    values0, keys0, origin0, _, clock0 = memory
    store_every, top, _ = options
    T = xp.shape[0]
    B, n = h0.shape
    tile = layout.require_tile(ROWS, n, xp.device)
    scores0 = keys0.float() @ w.float()
    top0, stored0 = _top_states(scores0, origin0, top)

    saved_steps = T if save else 0
    h = xp.new_empty(T, B, n, dtype=torch.float32)
    outputs = {
        "h": h,
        "attended": torch.empty_like(h),
        "c_T": h.new_empty(B, n),
        "cells": h.new_empty(saved_steps, B, n),
        "gates": h.new_empty(saved_steps, B, 4 * n),
        "slots": h.new_empty(saved_steps, B, top, dtype=torch.int32),
        "attention": h.new_empty(saved_steps, B, top),
    }
    compiler.launch(
        "sab_forward",
        {**tile.defines(), "TOP": top, "PHI": "TANH", "SAVE": save, "HAS_LENGTHS": lengths is not None},
        blocks=B * tile.cluster_blocks,
        threads=tile.threads,
        shared_floats=forward_floats(tile, top),
        args={
            "xp": as_float32(xp),
            "V": as_float32(V),
            "w": as_float32(w),
            "h0": as_float32(h0),
            "c0": as_float32(c0),
            "values0": as_float32(values0),
            "top0": top0,
            "scores0": scores0,
            "stored0": stored0,
            "clock0": clock0.contiguous(),
            "lengths": to_device(lengths, xp.device),
            **outputs,
            "n": n,
            "T": T,
            "B": B,
            "m0": values0.shape[1],
            "store_every": store_every,
        },
    )
    return to_dtype(tuple(outputs.values()), xp.dtype)


@implement("sab_backward", "cuda")
def sab_backward(
    dh: Tensor | None,
    dattended: Tensor | None,
    dc_T: Tensor | None,
    V: Tensor,
    w: Tensor,
    c0: Tensor,
    memory: CarriedMemory,
    options: SabOptions,
    saved: SabSaved,
    lengths: Tensor | None,
) -> tuple[Tensor, ...]:
    values0, keys0, origin0, _, clock0 = memory
    store_every, top, truncation = options
    h, cells, gates, slots, attention = saved
    T, B, n = h.shape
    m0 = values0.shape[1]
    tile = layout.require_tile(ROWS, n, h.device)
    scores = torch.tanh(h.float()) @ w.float()
    scores0 = keys0.float() @ w.float()
    top0, stored0 = _top_states(scores0, origin0, top)

    # The kernel writes the gradients of the memory only where there are any.
    outputs = {
        "dxp": scores.new_empty(T, B, 4 * n),
        "dh0": scores.new_empty(B, n),
        "dc0": scores.new_empty(B, n),
        "dvalues0": scores.new_zeros(B, m0, n),
        "dscores": torch.zeros_like(scores),
        "dscores0": torch.zeros_like(scores0),
    }
    compiler.launch(
        "sab_backward",
        {
            **tile.defines(),
            "TOP": top,
            "PHI": "TANH",
            "HAS_DH": dh is not None,
            "HAS_DATTENDED": dattended is not None,
            "HAS_DC": dc_T is not None,
            "HAS_LENGTHS": lengths is not None,
        },
        blocks=B * tile.cluster_blocks,
        threads=tile.threads,
        shared_floats=backward_floats(tile, top),
        args={
            "dh": as_float32(dh),
            "dattended": as_float32(dattended),
            "dc_T": as_float32(dc_T),
            "V": as_float32(V),
            "w": as_float32(w),
            "c0": as_float32(c0),
            "values0": as_float32(values0),
            "top0": top0,
            "stored0": stored0,
            "clock0": clock0.contiguous(),
            "h": as_float32(h),
            "cells": as_float32(cells),
            "gates": as_float32(gates),
            "slots": slots,
            "attention": as_float32(attention),
            "scores": scores,
            "scores0": scores0,
            "lengths": to_device(lengths, h.device),
            **outputs,
            "n": n,
            "T": T,
            "B": B,
            "m0": m0,
            "store_every": store_every,
            "truncation": truncation,
        },
    )
    return to_dtype(tuple(outputs.values()), h.dtype)
