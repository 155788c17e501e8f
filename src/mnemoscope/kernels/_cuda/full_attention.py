"""Attention over the whole past on CUDA: MemRNN and MemLSTM (full_attention_forward.cu, full_attention_backward.cu)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional as F

from mnemoscope.kernels import _operators as op
from mnemoscope.kernels._cuda import compiler, layout
from mnemoscope.kernels._cuda.arguments import PHI, to_device

MAX_UNITS = 1024
MAX_CLUSTER = 4  # with 8 blocks a step's barriers and sums take longer than what they save (H200, batch 16 and 32)
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
    def column_chunk(self) -> int:
        """The states whose columns of the attention matrix are made at a time in the backward pass."""
        states_per_warp = 512 // self.padded_n if self.padded_n <= 256 else 1
        return states_per_warp * self.warps * self.cluster_blocks

    @property
    def _product_scratch(self) -> int:
        return max(8192, (self.gates + 1) * self.padded_n)

    @property
    def forward_floats(self) -> int:
        rows = self.gates + 6  # s, h, the products of s, key, query, c
        partials = (self.warps + 2 * self.cluster_blocks) * (self.padded_n + 2)
        return _round_up(rows * self.padded_n + partials, 4) + self._product_scratch

    @property
    def backward_floats(self) -> int:
        rows = self.gates + 7 + 4 * (1 + self.cluster_blocks)  # per step, and four for sums over the cluster
        numbers = self.warps + self.cluster_blocks
        warp_rows = 4 * self.warps * self.padded_n
        return _round_up(rows * self.padded_n + numbers, 4) + max(self._product_scratch, warp_rows)

    def defines(self, options: op.AttentionOptions) -> dict[str, int | str]:
        return {
            "GATES": self.gates,
            "PADDED_N": self.padded_n,
            "CLUSTER_BLOCKS": self.cluster_blocks,
            "PHI": PHI[options.phi],
            "MIX_MEAN": options.mix == "mean",
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
        if chosen is None or batch <= limits.clusters_at_once(blocks):
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
    padded = F.pad(matrix.view(count, n, n), (0, padding, 0, padding))
    return padded.view(count * padded_n, padded_n)


def _pad_rows(rows: Tensor, padded_n: int) -> Tensor:
    return F.pad(rows, (0, padded_n - rows.shape[-1]))


def forward(
    run: op.AttentiveRun,
    xp: Tensor,
    weights: op.AttentionWeights,
    state: op.AttentionState,
    memory: op.CarriedMemory,
    options: op.AttentionOptions,
    lengths: Tensor | None,
    save: bool,
) -> None:
    """Fill `run`, but for the final memory; all tensors float32."""
    T, B, n = run.h.shape
    m0 = memory.values0.shape[1]
    clusters = _require_clusters(options.cell == "lstm", n, B, xp.device)
    padded_n = clusters.padded_n

    # The memory: what is carried, and room for the new states.
    keys, values = xp.new_empty(2, B, m0 + T, padded_n)
    if m0:
        keys[:, :m0] = _pad_rows(memory.keys0, padded_n) * PRESCALE
        values[:, :m0] = _pad_rows(memory.values0, padded_n)
    VW_a = _pad_matrices(torch.cat([weights.V, weights.W_a]), clusters.gates + 1, padded_n)
    U_a = _pad_matrices(weights.U_a, 1, padded_n)
    compiler.launch(
        "full_attention_forward",
        {
            **clusters.defines(options),
            "SAVE": save,
            "HAS_BIAS": weights.b is not None,
            "HAS_LENGTHS": lengths is not None,
        },
        blocks=B * clusters.cluster_blocks,
        threads=clusters.threads,
        shared_floats=clusters.forward_floats,
        args={
            "xp": xp,
            "VW_a_T": VW_a.T.contiguous(),
            "U_a_T": U_a.T.contiguous(),
            "v": _pad_rows(weights.v, padded_n),
            "b": None if weights.b is None else _pad_rows(weights.b, padded_n),
            "s0": _pad_rows(state.s0, padded_n),
            "c0": state.c0,
            "keys": keys,
            "values": values,
            "origin0": memory.origin0,
            "lengths": to_device(lengths, xp.device),
            "h": run.h,
            "s": run.s,
            "c_T": run.c_T,
            "activations": run.activations,
            "log_sums": run.attention,
            "n": n,
            "T": T,
            "B": B,
            "m0": m0,
        },
    )


def backward(
    grads: op.AttentiveOutputGradients,
    weights: op.AttentionWeights,
    state: op.AttentionState,
    memory: op.CarriedMemory,
    options: op.AttentionOptions,
    saved: op.AttentiveSaved,
    lengths: Tensor | None,
) -> op.AttentiveGradients:
    """Return the gradients; all tensors float32."""
    T, B, n = saved.h.shape
    m0 = memory.values0.shape[1]
    clusters = _require_clusters(options.cell == "lstm", n, B, saved.h.device)
    padded_n = clusters.padded_n
    h, s = saved.h, saved.s

    # The memory, less the mean state of each sequence: the softmax's gradient does not depend on what all values have
    # in common, which would cost precision.
    common = h.mean(0)  # (B, n)
    keys, values = h.new_zeros(2, B, m0 + T, padded_n)
    keys[:, :m0, :n] = memory.keys0
    keys[:, m0:, :n] = (h @ weights.U_a.T).transpose(0, 1)
    keys.mul_(PRESCALE)
    values[:, :m0, :n] = memory.values0 - common[:, None]
    values[:, m0:, :n] = (h - common).transpose(0, 1)
    contexts = (s / (0.5 if options.mix == "mean" else 1.0) - h).sub_(common)

    # The query of every step.
    queries = h.new_zeros(B, T, padded_n)
    queries[:, 0, :n] = state.s0 @ weights.W_a.T
    queries[:, 1:, :n] = (s[:-1] @ weights.W_a.T).transpose(0, 1)
    queries.mul_(PRESCALE)

    found = op.attentive_backward.allocate(grads, weights, state, memory, options, saved, lengths)
    dv_rows = h.new_empty(B, n)
    compiler.launch(
        "full_attention_backward",
        {
            **clusters.defines(options),
            "COLUMN_CHUNK": clusters.column_chunk,
            "HAS_DH": grads.dh is not None,
            "HAS_DS": grads.ds is not None,
            "HAS_DC": grads.dc_T is not None,
            "HAS_LENGTHS": lengths is not None,
        },
        blocks=B * clusters.cluster_blocks,
        threads=clusters.threads,
        shared_floats=clusters.backward_floats,
        args={
            **grads._asdict(),
            "VW_a": _pad_matrices(torch.cat([weights.V, weights.W_a]), clusters.gates + 1, padded_n),
            "U_a": _pad_matrices(weights.U_a, 1, padded_n),
            "v": _pad_rows(weights.v, padded_n),
            "keys": keys,
            "values": values,
            "queries": queries,
            "origin0": memory.origin0,
            "c0": state.c0,
            "h": h,
            "contexts": contexts,
            "activations": saved.activations,
            "log_sums": saved.attention,
            "lengths": to_device(lengths, h.device),
            "ds_rows": h.new_empty(B, T, padded_n),
            "means": h.new_empty(B, clusters.cluster_blocks, T),
            "later_sums": h.new_empty(B, clusters.column_chunk, 2, padded_n),
            "dxp": found.dxp,
            "dq": found.dq,
            "dk": found.dk,
            "dv_rows": dv_rows,
            "dc0": found.dc0,
            "dvalues0": found.dvalues0,
            "dkeys0": found.dkeys0,
            "n": n,
            "T": T,
            "B": B,
            "m0": m0,
        },
    )
    ds0 = found.dxp[0] @ weights.V + found.dq[0] @ weights.W_a
    return found._replace(dv=dv_rows.sum(0), ds0=ds0)
