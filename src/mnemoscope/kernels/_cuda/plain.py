"""The recurrences without a memory on CUDA: RNN, LSTM, GORU and RAC (cells.cu)."""

from __future__ import annotations

import torch
from torch import Tensor

from mnemoscope.kernels._cuda import compiler, layout
from mnemoscope.kernels._operators import implement

ROWS = {"RNN": 1, "RAC": 1, "GORU": 3, "LSTM": 4}
PHI = {"tanh": "TANH", "relu": "RELU", "identity": "IDENTITY", "modrelu": "MODRELU"}


def supports(cell: str, n: int, device: torch.device) -> bool:
    """Whether one sequence's weights fit the registers of one cluster."""
    return layout.tile(ROWS[cell], n, device) is not None


def single(*tensors: Tensor | None) -> list[Tensor | None]:
    """Contiguous float32: lower precisions are computed in it."""
    return [None if t is None else t.float().contiguous() for t in tensors]


def on(device: torch.device, lengths: Tensor | None) -> Tensor | None:
    return None if lengths is None else lengths.to(device).contiguous()


def laid(rows: int, n: int, device: torch.device) -> layout.Tile:
    found = layout.tile(rows, n, device)
    assert found is not None, f"no tile for {rows} rows of {n} units; ask supports() first"
    return found


def _forward(
    cell: str, xp: Tensor, W: Tensor, h0: Tensor, c0: Tensor | None, b: Tensor | None, phi: str, lengths: Tensor | None,
    save: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """-> h, c_T, cells, gates; those that the cell does not have are empty."""
    T, B, n = xp.shape[0], *h0.shape
    tile = laid(ROWS[cell], n, xp.device)
    h = xp.new_empty(T, B, n, dtype=torch.float32)
    kept, lstm, gated = T if save else 0, cell == "LSTM", cell in ("LSTM", "GORU")
    c_T = h.new_empty(B, n) if lstm else h.new_empty(0)
    cells = h.new_empty(kept, B, n) if lstm else h.new_empty(0)
    gates = h.new_empty(kept, B, 4 * n) if gated else h.new_empty(0)
    defines = {
        **tile.defines(), "CELL": cell, "PHI": PHI[phi], "HAS_BIAS": b is not None, "HAS_LENGTHS": lengths is not None,
        "SAVE": save, "HAS_DH": False, "HAS_DC": False,
    }  # fmt: skip
    args = [*single(xp, W, h0, c0, b), on(xp.device, lengths), h, c_T, cells, gates, n, T, B]
    compiler.launch("cells_forward", defines, B * tile.C, tile.threads, 2 * tile.N, args)
    return h.to(xp.dtype), c_T.to(xp.dtype), cells.to(xp.dtype), gates.to(xp.dtype)


def _backward(
    cell: str, dh: Tensor | None, dc_T: Tensor | None, xp: Tensor | None, W: Tensor, first: Tensor | None,
    states: Tensor, kept: Tensor | None, phi: str, lengths: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """-> dxp, du, dh0, dc0; those that the cell does not have are empty."""
    T, B, n = states.shape
    rows = ROWS[cell]
    tile = laid(rows, n, states.device)
    dxp = states.new_empty(T, B, rows * n, dtype=torch.float32)
    du = dxp.new_empty(T, B, n) if cell in ("RAC", "GORU") else dxp.new_empty(0)
    dh0 = dxp.new_empty(B, n)
    dc0 = dxp.new_empty(B, n) if cell == "LSTM" else dxp.new_empty(0)
    defines = {
        **tile.defines(), "CELL": cell, "PHI": PHI[phi], "HAS_BIAS": False, "HAS_LENGTHS": lengths is not None,
        "SAVE": False, "HAS_DH": dh is not None, "HAS_DC": dc_T is not None,
    }  # fmt: skip
    args = [
        *single(dh, dc_T, xp, W, first, states, kept), on(states.device, lengths), dxp, du, dh0, dc0, n, T, B,
    ]  # fmt: skip
    compiler.launch("cells_backward", defines, B * tile.C, tile.threads, 2 * rows * tile.N, args)
    dtype = states.dtype
    return dxp.to(dtype), du.to(dtype), dh0.to(dtype), dc0.to(dtype)


@implement("rnn_forward", "cuda")
def rnn_forward(xp: Tensor, V: Tensor, h0: Tensor, b: Tensor | None, phi: str, lengths: Tensor | None) -> Tensor:
    return _forward("RNN", xp, V, h0, None, b, phi, lengths, False)[0]


@implement("rnn_backward", "cuda")
def rnn_backward(dh: Tensor, V: Tensor, h: Tensor, lengths: Tensor | None, phi: str) -> tuple[Tensor, Tensor]:
    dz, _, dh0, _ = _backward("RNN", dh, None, None, V, None, h, None, phi, lengths)
    return dz, dh0


@implement("rac_forward", "cuda")
def rac_forward(xp: Tensor, V: Tensor, h0: Tensor, b: Tensor | None, lengths: Tensor | None) -> Tensor:
    return _forward("RAC", xp, V, h0, None, b, "identity", lengths, False)[0]


@implement("rac_backward", "cuda")
def rac_backward(dh: Tensor, xp: Tensor, V: Tensor, u: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    return _backward("RAC", dh, None, xp, V, None, u, u, "identity", lengths)[:3]


@implement("goru_forward", "cuda")
def goru_forward(
    xp: Tensor, W: Tensor, h0: Tensor, b: Tensor, lengths: Tensor | None, save: bool
) -> tuple[Tensor, Tensor]:
    h, _, _, gates = _forward("GORU", xp, W, h0, None, b, "modrelu", lengths, save)
    return h, gates


@implement("goru_backward", "cuda")
def goru_backward(
    dh: Tensor, W: Tensor, h0: Tensor, h: Tensor, gates: Tensor, lengths: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    return _backward("GORU", dh, None, None, W, h0, h, gates, "modrelu", lengths)[:3]


@implement("lstm_forward", "cuda")
def lstm_forward(
    xp: Tensor, V: Tensor, h0: Tensor, c0: Tensor, lengths: Tensor | None, save: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return _forward("LSTM", xp, V, h0, c0, None, "tanh", lengths, save)


@implement("lstm_backward", "cuda")
def lstm_backward(
    dh: Tensor | None, dc_T: Tensor | None, V: Tensor, c0: Tensor, cells: Tensor, gates: Tensor, lengths: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    dxp, _, dh0, dc0 = _backward("LSTM", dh, dc_T, None, V, c0, cells, gates, "tanh", lengths)
    return dxp, dh0, dc0
