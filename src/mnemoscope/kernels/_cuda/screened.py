"""Relevancy screening on CUDA: RelRNN and RelLSTM (screened_forward.cu, screened_backward.cu)."""

from __future__ import annotations

import torch
from torch import Tensor

from mnemoscope.kernels._cuda import compiler, layout
from mnemoscope.kernels._cuda.layout import Tile
from mnemoscope.kernels._cuda.plain import PHI, laid, on, single

MOST_SLOTS = 32  # one lane of a warp keeps the books of one slot


def supports(lstm: bool, n: int, slots: int, device: torch.device) -> bool:
    """Whether the weights fit the registers and the slots the shared memory of one cluster."""
    found, room = layout.tile(6 if lstm else 3, n, device), layout.limits(device).shared_floats
    return found is not None and slots <= MOST_SLOTS and _backward_floats(found, slots, True) <= room


def _forward_floats(tile: Tile, slots: int) -> int:
    return tile.N + tile.exchange() + tile.bank(tile.rows + 1, slots)


def _backward_floats(tile: Tile, slots: int, has_ds: bool) -> int:
    return tile.rows * tile.N + tile.exchange() + 2 * tile.bank(tile.rows + has_ds, slots)


def _defines(tile: Tile, phi: str, buffer: int, relevant: int, mix: str) -> dict[str, int | str | bool]:
    return {**tile.defines(), "PHI": PHI[phi], "NU": buffer, "RHO": relevant, "MEAN": mix == "mean"}


def forward(
    xp: Tensor, V: Tensor, W_a: Tensor, U_a: Tensor, v: Tensor, b: Tensor | None, s0: Tensor, c0: Tensor | None,
    values0: Tensor, keys0: Tensor, origin0: Tensor, relevance0: Tensor, clock0: Tensor, cell: str, phi: str,
    buffer: int, relevant: int, mix: str, decay: float, refresh: bool, lengths: Tensor | None, save: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    T, B, n = xp.shape[0], *s0.shape
    lstm, kept, slots = cell == "lstm", T if save else 0, buffer + relevant
    tile = laid(6 if lstm else 3, n, xp.device)
    V, W_a = V.float(), W_a.float()
    reads_s = torch.cat([V, W_a])  # ((G + 1)n, n)
    query0, projected0 = s0.float() @ reads_s.T, values0.float() @ reads_s.T
    h = xp.new_empty(T, B, n, dtype=torch.float32)
    out = (
        h,
        torch.empty_like(h),
        h.new_empty(B, n) if lstm else h.new_empty(0),
        h.new_empty(B, slots, dtype=torch.int64),
        h.new_empty(B, slots),
        h.new_empty(kept, B, 5 * n if lstm else 0),
        h.new_empty(kept, B, slots, dtype=torch.int32),
        h.new_empty(kept, B, slots),
    )
    defines = {
        **_defines(tile, phi, buffer, relevant, mix), "REFRESH": refresh, "SAVE": save, "HAS_BIAS": b is not None,
        "HAS_LENGTHS": lengths is not None,
    }  # fmt: skip
    args = [
        *single(xp, V, W_a, U_a, v, b, query0, c0, projected0, values0, keys0), origin0.contiguous(),
        *single(relevance0), clock0.contiguous(), on(xp.device, lengths), *out, n, T, B, float(decay),
    ]  # fmt: skip
    compiler.launch("screened_forward", defines, B * tile.C, tile.threads, _forward_floats(tile, slots), args)
    return tuple(t.to(xp.dtype) if t.is_floating_point() else t for t in out)


def backward(
    dh: Tensor | None, ds: Tensor | None, dc_T: Tensor | None, V: Tensor, W_a: Tensor, U_a: Tensor, v: Tensor,
    s0: Tensor, c0: Tensor | None, values0: Tensor, keys0: Tensor, h: Tensor, s: Tensor, activations: Tensor,
    origin0: Tensor, slots: Tensor, attention: Tensor, cell: str, phi: str, buffer: int, relevant: int, mix: str,
    lengths: Tensor | None,
) -> tuple[Tensor, ...]:  # fmt: skip
    T, B, n = h.shape
    dtype, lstm, m0 = h.dtype, cell == "lstm", buffer + relevant
    tile = laid(6 if lstm else 3, n, h.device)
    gates_n, has_ds = (4 if lstm else 1) * n, ds is not None
    V, W_a, U_a, h, s, s0, values0 = (t.float() for t in (V, W_a, U_a, h, s, s0, values0))
    reads_s = torch.cat([V, W_a])
    projected = h @ torch.cat([reads_s, U_a]).T  # (T, B, rows n): what every state was to each matrix
    projected0 = torch.cat([values0 @ reads_s.T, keys0.float()], -1)
    queries = torch.empty_like(h)
    torch.mm(s0, W_a.T, out=queries[0])
    torch.matmul(s[:-1], W_a.T, out=queries[1:])

    dxp, dq, dk = h.new_empty(T, B, gates_n), torch.empty_like(h), torch.empty_like(h)
    dv_rows, dc0 = h.new_empty(B, n), h.new_empty(B, n) if lstm else h.new_empty(0)
    gathered0 = h.new_empty(B, m0, (tile.rows + has_ds) * n)
    defines = {
        **_defines(tile, phi, buffer, relevant, mix), "HAS_DH": dh is not None, "HAS_DS": has_ds,
        "HAS_DC": dc_T is not None, "HAS_LENGTHS": lengths is not None,
    }  # fmt: skip
    args = [
        *single(dh, ds, dc_T, V, W_a, U_a, v, projected, projected0, queries, c0, values0), origin0.contiguous(),
        *single(h, activations), slots, *single(attention), on(h.device, lengths), dxp, dq, dk, dv_rows, dc0,
        gathered0, n, T, B,
    ]  # fmt: skip
    compiler.launch("screened_backward", defines, B * tile.C, tile.threads, _backward_floats(tile, m0, has_ds), args)

    ds0 = dxp[0] @ V + dq[0] @ W_a
    dvalues0 = gathered0[..., : gates_n + n] @ reads_s
    if has_ds:
        dvalues0 = dvalues0 + gathered0[..., gates_n + 2 * n :]
    dkeys0 = gathered0[..., gates_n + n : gates_n + 2 * n]
    return tuple(t.to(dtype) for t in (dxp, dq, dk, dv_rows.sum(0), ds0, dc0, dvalues0, dkeys0.contiguous()))
