"""Attention over the whole past on CUDA: MemRNN and MemLSTM (full_attention_forward.cu, full_attention_backward.cu)."""

from __future__ import annotations

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


def _round_up(x: int, multiple: int) -> int:
    return -(-x // multiple) * multiple


@dataclass(frozen=True)
class ClusterLayout:
    """One sequence over a cluster of blocks: the host's side of full_attention.cuh."""

    gates: int
    padded_n: int
    cluster_blocks: int
    shared_floats: int
    """What a block may have; what the kernels need otherwise is left to rows of the history."""

    @property
    def warps(self) -> int:
        return 8 if self.padded_n > 256 else 16

    @property
    def threads(self) -> int:
        return 32 * self.warps

    @property
    def rows_at_once(self) -> int:
        """The rows of a group, which a warp reads at a time."""
        return 512 // self.padded_n if self.padded_n <= 256 else 1

    @property
    def column_chunk(self) -> int:
        """The states whose columns of the attention matrix are made at a time in the backward pass."""
        return self.rows_at_once * self.warps * self.cluster_blocks

    def _product_scratch(self, outputs: int) -> int:
        """The parts of the sums of a product (`ProductSizes::scratch`)."""
        splits = (512, self.warps), (1024, 8), (2048, 4), (4096, 2), (outputs, 1)
        return outputs * next(parts for most, parts in splits if outputs <= most)

    @property
    def is_cluster(self) -> bool:
        return self.cluster_blocks > 1

    @property
    def _forward_least(self) -> int:
        """The shared memory of the forward kernel without rows of the history (its `SharedLayout`)."""
        n, partial = self.padded_n, self.padded_n + 4
        rows = (self.gates + 6) * n  # s, h, the products of s, key, query, c
        exchange = 4 + partial * (1 + 2 * self.cluster_blocks) if self.is_cluster else 0
        scratch = self._product_scratch((self.gates + 1) * n), self._product_scratch(n), self.warps * partial
        return rows + exchange + max(scratch)

    @property
    def _backward_least(self) -> int:
        n = self.padded_n
        rows = (self.gates + 8) * n  # of a step
        row_sum, column_sum = 4 * n + 4, 2 * n + 4
        barriers = 4 if self.is_cluster else 0
        scratch = max(2 * self.warps * n + self.warps, self._product_scratch(n))
        return _round_up(rows + barriers + (row_sum + column_sum) * self.cluster_blocks + scratch, 4)

    @property
    def fits(self) -> bool:
        return max(self._forward_least, self._backward_least) <= self.shared_floats

    def forward_resident(self) -> int:
        """Return how many groups of rows of the history every warp keeps in shared memory."""
        return self._resident(self._forward_least)

    def backward_resident(self) -> int:
        return self._resident(self._backward_least)

    def _resident(self, least: int) -> int:
        room = (self.shared_floats - least) // self._resident_floats(1)
        return room if self.most_resident is None else min(room, self.most_resident)

    @property
    def most_resident(self) -> int | None:
        """A limit to these groups: what shared memory takes is lost to the cache, which can hold small matrices.

        MemRNN, 128 units, T = 2020, took 83.6 ms with one group, 84.4 without any, 89.2 with three (H200;
        benchmarks/full_attention.py).
        """
        matrices = (self.gates + 2) * self.padded_n**2
        return 1 if matrices <= self.shared_floats else None

    @property
    def forward_floats(self) -> int:
        return self._forward_least + self._resident_floats(self.forward_resident())

    @property
    def backward_floats(self) -> int:
        return self._backward_least + self._resident_floats(self.backward_resident())

    def _resident_floats(self, groups: int) -> int:
        return groups * 2 * self.warps * self.rows_at_once * self.padded_n

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
        tried = ClusterLayout(4 if lstm else 1, _round_up(n, 128), blocks, limits.shared_floats)
        if blocks > MAX_CLUSTER or not tried.fits:
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
    rows = _round_up(m0 + T, clusters.rows_at_once)
    keys, values = xp.new_zeros(2, B, rows, padded_n)
    if m0:
        keys[:, :m0] = _pad_rows(memory.keys0, padded_n)
        values[:, :m0] = _pad_rows(memory.values0, padded_n)
    VW_a = _pad_matrices(torch.cat([weights.V, weights.W_a]), clusters.gates + 1, padded_n)
    U_a = _pad_matrices(weights.U_a, 1, padded_n)
    compiler.launch(
        "full_attention_forward",
        {
            **clusters.defines(options),
            "RESIDENT": clusters.forward_resident(),
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
            "rows": rows,
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
    rows = _round_up(m0 + T, clusters.rows_at_once)
    keys, values = h.new_zeros(2, B, rows, padded_n)
    keys[:, :m0, :n] = memory.keys0
    keys[:, m0 : m0 + T, :n] = (h @ weights.U_a.T).transpose(0, 1)
    values[:, :m0, :n] = memory.values0 - common[:, None]
    values[:, m0 : m0 + T, :n] = (h - common).transpose(0, 1)
    contexts = (s / (0.5 if options.mix == "mean" else 1.0) - h).sub_(common)

    # The query of every step.
    queries = h.new_zeros(B, T, padded_n)
    queries[:, 0, :n] = state.s0 @ weights.W_a.T
    queries[:, 1:, :n] = (s[:-1] @ weights.W_a.T).transpose(0, 1)

    found = op.attentive_backward.allocate(grads, weights, state, memory, options, saved, lengths)
    dv_rows = h.new_empty(B, n)
    compiler.launch(
        "full_attention_backward",
        {
            **clusters.defines(options),
            "COLUMN_CHUNK": clusters.column_chunk,
            "RESIDENT": clusters.backward_resident(),
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
            "rows": rows,
        },
    )
    ds0 = found.dxp[0] @ weights.V + found.dq[0] @ weights.W_a
    return found._replace(dv=dv_rows.sum(0), ds0=ds0)
