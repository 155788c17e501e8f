"""Relevancy screening on CUDA: RelRNN and RelLSTM (screened_forward.cu, screened_backward.cu)."""

from __future__ import annotations

import torch
from torch import Tensor

from mnemoscope.kernels._cuda import compiler, layout
from mnemoscope.kernels._cuda.arguments import PHI, as_float32, to_device, to_dtype
from mnemoscope.kernels._cuda.layout import Tile

MAX_SLOTS = 32  # lane i of a warp has the record of slot i


def _rows(lstm: bool) -> int:
    """Rows of [V; W_a; U_a] per unit."""
    return 6 if lstm else 3


def supports(lstm: bool, n: int, slots: int, device: torch.device) -> bool:
    """True if the weights fit the registers, and the slots the shared memory, of one cluster."""
    tile = layout.tile(_rows(lstm), n, device)
    if tile is None or slots > MAX_SLOTS:
        return False
    return backward_floats(tile, slots, has_ds=True) <= layout.limits(device).shared_floats


def forward_floats(tile: Tile, slots: int) -> int:
    return tile.padded_n + tile.unit_sum_floats + tile.slot_floats(tile.rows + 1, slots)


def backward_floats(tile: Tile, slots: int, has_ds: bool) -> int:
    fields = tile.rows + has_ds
    return tile.rows * tile.padded_n + tile.unit_sum_floats + tile.slot_floats(2 * fields, slots)


def _defines(tile: Tile, phi: str, buffer: int, relevant: int, mix: str) -> dict[str, int | str]:
    return {
        **tile.defines(),
        "PHI": PHI[phi],
        "BUFFER": buffer,
        "RELEVANT": relevant,
        "MIX_MEAN": mix == "mean",
    }


def forward(
    xp: Tensor, V: Tensor, W_a: Tensor, U_a: Tensor, v: Tensor, b: Tensor | None, s0: Tensor, c0: Tensor | None,
    values0: Tensor, keys0: Tensor, origin0: Tensor, relevance0: Tensor, clock0: Tensor, cell: str, phi: str,
    buffer: int, relevant: int, mix: str, decay: float, refresh: bool, lengths: Tensor | None, save: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    T = xp.shape[0]
    B, n = s0.shape
    lstm = cell == "lstm"
    slots = buffer + relevant
    tile = layout.require_tile(_rows(lstm), n, xp.device)
    VW_a = torch.cat([V, W_a]).float()  # ((G + 1)n, n): what reads s

    saved_steps = T if save else 0
    h = xp.new_empty(T, B, n, dtype=torch.float32)
    outputs = {
        "h": h,
        "s": torch.empty_like(h),
        "c_T": h.new_empty(B, n) if lstm else h.new_empty(0),
        "final_slots": h.new_empty(B, slots, dtype=torch.int64),
        "final_relevance": h.new_empty(B, slots),
        "activations": h.new_empty(saved_steps, B, 5 * n if lstm else 0),
        "slots": h.new_empty(saved_steps, B, slots, dtype=torch.int32),
        "attention": h.new_empty(saved_steps, B, slots),
    }
    compiler.launch(
        "screened_forward",
        {
            **_defines(tile, phi, buffer, relevant, mix),
            "REFRESH": refresh,
            "SAVE": save,
            "HAS_BIAS": b is not None,
            "HAS_LENGTHS": lengths is not None,
        },
        blocks=B * tile.cluster_blocks,
        threads=tile.threads,
        shared_floats=forward_floats(tile, slots),
        args={
            "xp": as_float32(xp),
            "V": as_float32(V),
            "W_a": as_float32(W_a),
            "U_a": as_float32(U_a),
            "v": as_float32(v),
            "b": as_float32(b),
            "query0": s0.float() @ VW_a.T,
            "c0": as_float32(c0),
            "projected0": values0.float() @ VW_a.T,
            "values0": as_float32(values0),
            "keys0": as_float32(keys0),
            "origin0": origin0.contiguous(),
            "relevance0": as_float32(relevance0),
            "clock0": clock0.contiguous(),
            "lengths": to_device(lengths, xp.device),
            **outputs,
            "n": n,
            "T": T,
            "B": B,
            "decay": float(decay),
        },
    )
    return to_dtype(tuple(outputs.values()), xp.dtype)


def backward(
    dh: Tensor | None, ds: Tensor | None, dc_T: Tensor | None, V: Tensor, W_a: Tensor, U_a: Tensor, v: Tensor,
    s0: Tensor, c0: Tensor | None, values0: Tensor, keys0: Tensor, h: Tensor, s: Tensor, activations: Tensor,
    origin0: Tensor, slots: Tensor, attention: Tensor, cell: str, phi: str, buffer: int, relevant: int, mix: str,
    lengths: Tensor | None,
) -> tuple[Tensor, ...]:  # fmt: skip
    T, B, n = h.shape
    dtype = h.dtype
    lstm = cell == "lstm"
    m0 = buffer + relevant
    tile = layout.require_tile(_rows(lstm), n, h.device)
    V, W_a, U_a, h, s, s0, values0 = (t.float() for t in (V, W_a, U_a, h, s, s0, values0))

    # What every state was to each matrix, and every step's query.
    VW_a = torch.cat([V, W_a])
    projected = h @ torch.cat([VW_a, U_a]).T  # (T, B, rows n)
    projected0 = torch.cat([values0 @ VW_a.T, keys0.float()], -1)  # (B, m0, rows n)
    queries = torch.empty_like(h)
    torch.mm(s0, W_a.T, out=queries[0])
    torch.matmul(s[:-1], W_a.T, out=queries[1:])

    has_ds = ds is not None
    gates_n = V.shape[0]
    gathered0 = h.new_empty(B, m0, (tile.rows + has_ds) * n)
    dxp = h.new_empty(T, B, gates_n)
    dq = torch.empty_like(h)
    dk = torch.empty_like(h)
    dv_rows = h.new_empty(B, n)
    dc0 = h.new_empty(B, n) if lstm else h.new_empty(0)
    compiler.launch(
        "screened_backward",
        {
            **_defines(tile, phi, buffer, relevant, mix),
            "HAS_DH": dh is not None,
            "HAS_DS": has_ds,
            "HAS_DC": dc_T is not None,
            "HAS_LENGTHS": lengths is not None,
        },
        blocks=B * tile.cluster_blocks,
        threads=tile.threads,
        shared_floats=backward_floats(tile, m0, has_ds),
        args={
            "dh": as_float32(dh),
            "ds": as_float32(ds),
            "dc_T": as_float32(dc_T),
            "V": as_float32(V),
            "W_a": as_float32(W_a),
            "U_a": as_float32(U_a),
            "v": as_float32(v),
            "projected": projected,
            "projected0": projected0,
            "queries": queries,
            "c0": as_float32(c0),
            "values0": as_float32(values0),
            "origin0": origin0.contiguous(),
            "h": as_float32(h),
            "activations": as_float32(activations),
            "slots": slots,
            "attention": as_float32(attention),
            "lengths": to_device(lengths, h.device),
            "dxp": dxp,
            "dq": dq,
            "dk": dk,
            "dv_rows": dv_rows,
            "dc0": dc0,
            "gathered0": gathered0,
            "n": n,
            "T": T,
            "B": B,
        },
    )

    # Gradients of the carried memory: of its products with [V; W_a], of its keys, of its values.
    dprojected0 = gathered0[..., : gates_n + n]
    dkeys0 = gathered0[..., gates_n + n : gates_n + 2 * n].contiguous()
    dvalues0 = dprojected0 @ VW_a
    if has_ds:
        dvalues0 = dvalues0 + gathered0[..., gates_n + 2 * n :]
    ds0 = dxp[0] @ V + dq[0] @ W_a
    return to_dtype((dxp, dq, dk, dv_rows.sum(0), ds0, dc0, dvalues0, dkeys0), dtype)
