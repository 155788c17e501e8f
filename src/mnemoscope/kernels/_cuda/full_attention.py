"""Attention over the whole past on CUDA: MemRNN and MemLSTM (full_attention_forward.cu, full_attention_backward.cu)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional as F

from mnemoscope.kernels._cuda import compiler, layout
from mnemoscope.kernels._cuda.arguments import PHI, as_float32, to_device, to_dtype

MAX_UNITS = 1024
MAX_CLUSTER = 8
PRESCALE = 2 / math.log(2)  # of queries and keys: e^{2(q + k)} is then a power of two (equations.cuh)


def _round_up(x: int, multiple: int) -> int:
    return -(-x // multiple) * multiple


@dataclass(frozen=True)
class ClusterLayout:
    """One sequence over a cluster of blocks: the host's side of full_attention.cuh."""

    gates: int
    padded_n: int
    cluster_blocks: int

    @property
    def warps(self) -> int:
        return 8 if self.padded_n > 256 else 16

    @property
    def threads(self) -> int:
        return 32 * self.warps

    @property
    def _product_scratch(self) -> int:
        return max(8192, (self.gates + 1) * self.padded_n)

    @property
    def forward_floats(self) -> int:
        rows = self.gates + 6  # s, h, the products of s, key, query, c
        partials = (self.warps + self.cluster_blocks) * (self.padded_n + 2)
        return _round_up(rows * self.padded_n + partials, 4) + self._product_scratch

    @property
    def backward_floats(self) -> int:
        rows = self.gates + 7 + 4 * (1 + self.cluster_blocks)  # per step, and four for sums over the cluster
        numbers = self.warps + self.cluster_blocks
        warp_rows = 4 * self.warps * self.padded_n
        return _round_up(rows * self.padded_n + numbers, 4) + max(self._product_scratch, warp_rows)

    def defines(self, phi: str, mix: str) -> dict[str, int | str]:
        return {
            "GATES": self.gates,
            "PADDED_N": self.padded_n,
            "CLUSTER_BLOCKS": self.cluster_blocks,
            "PHI": PHI[phi],
            "MIX_MEAN": mix == "mean",
        }


@cache
def _choose(lstm: bool, n: int, batch: int, limits: layout.Limits) -> ClusterLayout | None:
    if n > MAX_UNITS:
        return None
    chosen = None
    for blocks in limits.clusters:
        tried = ClusterLayout(4 if lstm else 1, _round_up(n, 128), blocks)
        if blocks > MAX_CLUSTER or max(tried.forward_floats, tried.backward_floats) > limits.shared_floats:
            continue
        if chosen is None or batch * blocks <= limits.multiprocessors:
            chosen = tried
    return chosen


def choose_clusters(lstm: bool, n: int, batch: int, device: torch.device) -> ClusterLayout | None:
    """Return the layout with the most blocks per sequence that run at once; None if even one does not fit."""
    return _choose(lstm, n, batch, layout.limits(device))


def supports(lstm: bool, n: int, device: torch.device) -> bool:
    """True if a block has enough shared memory."""
    return choose_clusters(lstm, n, 1, device) is not None


def _require_clusters(lstm: bool, n: int, batch: int, device: torch.device) -> ClusterLayout:
    found = choose_clusters(lstm, n, batch, device)
    assert found is not None, f"no room for {n} units; ask supports() first"
    return found


def _pad_matrices(matrix: Tensor, count: int, padded_n: int) -> Tensor:
    """Pad each of `count` matrices below each other with zeros: (count n, n) -> (count padded_n, padded_n)."""
    n = matrix.shape[1]
    padding = padded_n - n
    padded = F.pad(matrix.float().view(count, n, n), (0, padding, 0, padding))
    return padded.view(count * padded_n, padded_n)


def _pad_rows(rows: Tensor, padded_n: int) -> Tensor:
    return F.pad(rows.float(), (0, padded_n - rows.shape[-1]))


def forward(
    xp: Tensor, V: Tensor, W_a: Tensor, U_a: Tensor, v: Tensor, b: Tensor | None, s0: Tensor, c0: Tensor | None,
    values0: Tensor, keys0: Tensor, origin0: Tensor, cell: str, phi: str, mix: str, lengths: Tensor | None, save: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    T = xp.shape[0]
    B, n = s0.shape
    m0 = values0.shape[1]
    lstm = cell == "lstm"
    clusters = _require_clusters(lstm, n, B, xp.device)
    padded_n = clusters.padded_n

    # The memory: what is carried, and room for the new states.
    keys, values = xp.new_empty(2, B, m0 + T, padded_n, dtype=torch.float32)
    if m0:
        keys[:, :m0] = _pad_rows(keys0, padded_n) * PRESCALE
        values[:, :m0] = _pad_rows(values0, padded_n)

    # The kernel writes nothing past a row's length.
    new = xp.new_empty if lengths is None else xp.new_zeros
    saved_steps = T if save else 0
    h = new(T, B, n, dtype=torch.float32)
    s = new(T, B, n, dtype=torch.float32)
    c_T = h.new_empty(B, n) if lstm else h.new_empty(0)
    activations = new(saved_steps, B, 5 * n if lstm else 0, dtype=torch.float32)
    log_sums = new(saved_steps, B, dtype=torch.float32)
    compiler.launch(
        "full_attention_forward",
        {
            **clusters.defines(phi, mix),
            "SAVE": save,
            "HAS_BIAS": b is not None,
            "HAS_LENGTHS": lengths is not None,
        },
        blocks=B * clusters.cluster_blocks,
        threads=clusters.threads,
        shared_floats=clusters.forward_floats,
        args={
            "xp": as_float32(xp),
            "VW_a_T": _pad_matrices(torch.cat([V, W_a]), clusters.gates + 1, padded_n).T.contiguous(),
            "U_a_T": _pad_matrices(U_a, 1, padded_n).T.contiguous(),
            "v": _pad_rows(v, padded_n),
            "b": None if b is None else _pad_rows(b, padded_n),
            "s0": _pad_rows(s0, padded_n),
            "c0": as_float32(c0),
            "keys": keys,
            "values": values,
            "origin0": origin0.contiguous(),
            "lengths": to_device(lengths, xp.device),
            "h": h,
            "s": s,
            "c_T": c_T,
            "activations": activations,
            "log_sums": log_sums,
            "n": n,
            "T": T,
            "B": B,
            "m0": m0,
        },
    )
    no_slots = h.new_empty(B, 0, dtype=torch.int64)
    no_relevance = h.new_empty(B, 0)
    no_saved_slots = h.new_empty(0, dtype=torch.int32)
    return to_dtype((h, s, c_T, no_slots, no_relevance, activations, no_saved_slots, log_sums), xp.dtype)


def backward(
    dh: Tensor | None, ds: Tensor | None, dc_T: Tensor | None, V: Tensor, W_a: Tensor, U_a: Tensor, v: Tensor,
    s0: Tensor, c0: Tensor | None, values0: Tensor, keys0: Tensor, origin0: Tensor, h: Tensor, s: Tensor,
    activations: Tensor, log_sums: Tensor, cell: str, phi: str, mix: str, lengths: Tensor | None,
) -> tuple[Tensor, ...]:  # fmt: skip
    T, B, n = h.shape
    dtype = h.dtype
    m0 = values0.shape[1]
    lstm = cell == "lstm"
    clusters = _require_clusters(lstm, n, B, h.device)
    padded_n = clusters.padded_n
    V, W_a, U_a, h, s, s0 = (t.float() for t in (V, W_a, U_a, h, s, s0))

    # The memory, less the mean state of each sequence: the softmax's gradient does not depend on what all values have
    # in common, which would cost precision.
    common = h.mean(0)  # (B, n)
    keys, values = h.new_zeros(2, B, m0 + T, padded_n)
    keys[:, :m0, :n] = keys0
    keys[:, m0:, :n] = (h @ U_a.T).transpose(0, 1)
    keys.mul_(PRESCALE)
    values[:, :m0, :n] = values0 - common[:, None]
    values[:, m0:, :n] = (h - common).transpose(0, 1)
    contexts = (s / (0.5 if mix == "mean" else 1.0) - h).sub_(common)

    # The query of every step.
    queries = h.new_zeros(B, T, padded_n)
    queries[:, 0, :n] = s0 @ W_a.T
    queries[:, 1:, :n] = (s[:-1] @ W_a.T).transpose(0, 1)
    queries.mul_(PRESCALE)

    # The kernel writes nothing past a row's length.
    new = h.new_empty if lengths is None else h.new_zeros
    dxp = new(T, B, clusters.gates * n)
    dq = new(T, B, n)
    dk = new(T, B, n)
    dv_rows = h.new_empty(B, n)
    dc0 = h.new_empty(B, n) if lstm else h.new_empty(0)
    dvalues0, dkeys0 = h.new_empty(2, B, m0, n)
    compiler.launch(
        "full_attention_backward",
        {
            **clusters.defines(phi, mix),
            "HAS_DH": dh is not None,
            "HAS_DS": ds is not None,
            "HAS_DC": dc_T is not None,
            "HAS_LENGTHS": lengths is not None,
        },
        blocks=B * clusters.cluster_blocks,
        threads=clusters.threads,
        shared_floats=clusters.backward_floats,
        args={
            "dh": as_float32(dh),
            "ds": as_float32(ds),
            "dc_T": as_float32(dc_T),
            "VW_a": _pad_matrices(torch.cat([V, W_a]), clusters.gates + 1, padded_n),
            "U_a": _pad_matrices(U_a, 1, padded_n),
            "v": _pad_rows(v, padded_n),
            "keys": keys,
            "values": values,
            "queries": queries,
            "origin0": origin0.contiguous(),
            "c0": as_float32(c0),
            "h": as_float32(h),
            "contexts": contexts,
            "activations": as_float32(activations),
            "log_sums": as_float32(log_sums),
            "lengths": to_device(lengths, h.device),
            "ds_rows": h.new_empty(B, T, padded_n),
            "means": h.new_empty(B, T),
            "dxp": dxp,
            "dq": dq,
            "dk": dk,
            "dv_rows": dv_rows,
            "dc0": dc0,
            "dvalues0": dvalues0,
            "dkeys0": dkeys0,
            "n": n,
            "T": T,
            "B": B,
            "m0": m0,
        },
    )
    ds0 = dxp[0] @ V + dq[0] @ W_a
    return to_dtype((dxp, dq, dk, dv_rows.sum(0), ds0, dc0, dvalues0, dkeys0), dtype)
