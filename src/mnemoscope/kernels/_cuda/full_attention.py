"""Attention over the whole past on CUDA: MemRNN and MemLSTM (full_attention_forward.cu, full_attention_backward.cu)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from mnemoscope.kernels._cuda import compiler, layout
from mnemoscope.kernels._cuda.plain import PHI, on, single

MOST_UNITS = 1024
DOUBLED = 2 / math.log(2)  # of queries and keys: e^{2(q + k)} is then a power of two (cell.cuh)


@dataclass(frozen=True)
class Spread:
    """One sequence over C blocks: the host's side of full_attention.cuh."""

    G: int
    N: int
    C: int

    @property
    def warps(self) -> int:
        return 8 if self.N > 256 else 16

    @property
    def _scratch(self) -> int:
        return max(8192, (self.G + 1) * self.N)

    @property
    def forward_floats(self) -> int:
        return (self.G + 6) * self.N + (self.warps + self.C) * (self.N + 2) + 4 + self._scratch

    @property
    def backward_floats(self) -> int:
        return (self.G + 11 + 4 * self.C) * self.N + 32 + max(self._scratch, 4 * self.warps * self.N)

    def defines(self, phi: str, mix: str) -> dict[str, int | str | bool]:
        return {"G": self.G, "N": self.N, "C": self.C, "PHI": PHI[phi], "MEAN": mix == "mean"}


def spread(lstm: bool, n: int, batch: int, device: torch.device) -> Spread | None:
    """As many blocks a sequence as keep the device full; None where even one has too little shared memory."""
    allowed, N, found = layout.limits(device), -(-n // 128) * 128, None
    for C in allowed.clusters if n <= MOST_UNITS else ():
        tried = Spread(4 if lstm else 1, N, C)
        if C <= 8 and max(tried.forward_floats, tried.backward_floats) <= allowed.shared_floats:
            found = tried if found is None or batch * C <= allowed.multiprocessors else found
    return found


def supports(lstm: bool, n: int, device: torch.device) -> bool:
    return spread(lstm, n, 1, device) is not None


def _padded(matrix: Tensor, blocks: int, N: int) -> Tensor:
    """(blocks n, n) -> (blocks N, N), zeros where there is nothing."""
    n = matrix.shape[1]
    return F.pad(matrix.float().view(blocks, n, n), (0, N - n, 0, N - n)).view(blocks * N, N)


def _wide(rows: Tensor, N: int) -> Tensor:
    return F.pad(rows.float(), (0, N - rows.shape[-1]))


def forward(
    xp: Tensor, V: Tensor, W_a: Tensor, U_a: Tensor, v: Tensor, b: Tensor | None, s0: Tensor, c0: Tensor | None,
    values0: Tensor, keys0: Tensor, origin0: Tensor, cell: str, phi: str, mix: str, lengths: Tensor | None, save: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    T, B, n = xp.shape[0], *s0.shape
    lstm, kept, m0 = cell == "lstm", T if save else 0, values0.shape[1]
    over = spread(lstm, n, B, xp.device)
    assert over is not None, f"no room for {n} units; ask supports() first"
    N = over.N
    keys, values = xp.new_empty(2, B, m0 + T, N, dtype=torch.float32)
    if m0:
        keys[:, :m0], values[:, :m0] = _wide(keys0, N) * DOUBLED, _wide(values0, N)
    new = xp.new_empty if lengths is None else xp.new_zeros  # nothing is written past a row's length
    h, s = (new(T, B, n, dtype=torch.float32) for _ in "hs")
    c_T = h.new_empty(B, n) if lstm else h.new_empty(0)
    activations = new(kept, B, 5 * n if lstm else 0, dtype=torch.float32)
    log_sums = new(kept, B, dtype=torch.float32)
    defines = {
        **over.defines(phi, mix), "SAVE": save, "HAS_BIAS": b is not None, "HAS_LENGTHS": lengths is not None,
    }  # fmt: skip
    args = [
        *single(xp, _padded(torch.cat([V, W_a]), over.G + 1, N).T, _padded(U_a, 1, N).T, _wide(v, N)),
        None if b is None else _wide(b, N), _wide(s0, N), *single(c0), keys, values, origin0.contiguous(),
        on(xp.device, lengths), h, s, c_T, activations, log_sums, n, T, B, m0,
    ]  # fmt: skip
    compiler.launch("full_attention_forward", defines, B * over.C, 32 * over.warps, over.forward_floats, args)
    nothing = torch.empty(B, 0, device=xp.device)
    out = h, s, c_T, nothing.long(), nothing, activations, h.new_empty(0, dtype=torch.int32), log_sums
    return tuple(t.to(xp.dtype) if t.is_floating_point() else t for t in out)


def backward(
    dh: Tensor | None, ds: Tensor | None, dc_T: Tensor | None, V: Tensor, W_a: Tensor, U_a: Tensor, v: Tensor,
    s0: Tensor, c0: Tensor | None, values0: Tensor, keys0: Tensor, origin0: Tensor, h: Tensor, s: Tensor,
    activations: Tensor, log_sums: Tensor, cell: str, phi: str, mix: str, lengths: Tensor | None,
) -> tuple[Tensor, ...]:  # fmt: skip
    T, B, n = h.shape
    dtype, lstm, m0 = h.dtype, cell == "lstm", values0.shape[1]
    over = spread(lstm, n, B, h.device)
    assert over is not None
    N = over.N
    V, W_a, U_a, h, s, s0 = (t.float() for t in (V, W_a, U_a, h, s, s0))
    keys, values = h.new_zeros(2, B, m0 + T, N)
    common = h.mean(0)  # (B, n): off all values, as a softmax does not feel it and it would cost precision
    keys[:, :m0, :n], values[:, :m0, :n] = keys0, values0 - common[:, None]
    keys[:, m0:, :n], values[:, m0:, :n] = (h @ U_a.T).transpose(0, 1), (h - common).transpose(0, 1)
    contexts = (s / (0.5 if mix == "mean" else 1.0) - h).sub_(common)
    keys.mul_(DOUBLED)
    queries = h.new_zeros(B, T, N)
    queries[:, 0, :n], queries[:, 1:, :n] = s0 @ W_a.T, (s[:-1] @ W_a.T).transpose(0, 1)
    queries.mul_(DOUBLED)

    outer, means = h.new_empty(B, T, N), h.new_empty(B, T)
    new = h.new_empty if lengths is None else h.new_zeros
    dxp, dq, dk = new(T, B, over.G * n), new(T, B, n), new(T, B, n)
    dv_rows, dc0 = h.new_empty(B, n), h.new_empty(B, n) if lstm else h.new_empty(0)
    dvalues0, dkeys0 = h.new_empty(2, B, m0, n)
    defines = {
        **over.defines(phi, mix), "HAS_DH": dh is not None, "HAS_DS": ds is not None, "HAS_DC": dc_T is not None,
        "HAS_LENGTHS": lengths is not None,
    }  # fmt: skip
    args = [
        *single(dh, ds, dc_T, _padded(torch.cat([V, W_a]), over.G + 1, N), _padded(U_a, 1, N), _wide(v, N)), keys,
        values, queries, origin0.contiguous(), *single(c0, h, contexts, activations, log_sums), on(h.device, lengths),
        outer, means, dxp, dq, dk, dv_rows, dc0, dvalues0, dkeys0, n, T, B, m0,
    ]  # fmt: skip
    compiler.launch("full_attention_backward", defines, B * over.C, 32 * over.warps, over.backward_floats, args)
    ds0 = dxp[0] @ V + dq[0] @ W_a
    return tuple(t.to(dtype) for t in (dxp, dq, dk, dv_rows.sum(0), ds0, dc0, dvalues0, dkeys0))
