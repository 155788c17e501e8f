"""Relevancy screening on CUDA: RelRNN and RelLSTM (screened_forward.cu, screened_backward.cu)."""

from __future__ import annotations

import torch
from torch import Tensor

from mnemoscope.kernels import _operators as op
from mnemoscope.kernels._cuda import compiler, layout
from mnemoscope.kernels._cuda.arguments import PHI, to_device
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


def _defines(tile: Tile, options: op.AttentionOptions) -> dict[str, int | str]:
    return {
        **tile.defines(),
        "PHI": PHI[options.phi],
        "BUFFER": options.buffer,
        "RELEVANT": options.relevant,
        "MIX_MEAN": options.mix == "mean",
    }


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
    """Fill `run`; all tensors float32."""
    T, B, n = run.h.shape
    tile = layout.require_tile(_rows(options.cell == "lstm"), n, xp.device)
    compiler.launch(
        "screened_forward",
        {
            **_defines(tile, options),
            "REFRESH": options.refresh,
            "SAVE": save,
            "HAS_BIAS": weights.b is not None,
            "HAS_LENGTHS": lengths is not None,
        },
        blocks=B * tile.cluster_blocks,
        threads=tile.threads,
        shared_floats=forward_floats(tile, options.buffer + options.relevant),
        args={
            "xp": xp,
            **weights._asdict(),
            **state._asdict(),
            **memory._asdict(),
            "lengths": to_device(lengths, xp.device),
            "h": run.h,
            "s": run.s,
            "c_T": run.c_T,
            "values_T": run.values_T,
            "keys_T": run.keys_T,
            "slots_T": run.slots_T,
            "origin_T": run.origin_T,
            "relevance_T": run.relevance_T,
            "activations": run.activations,
            "slots": run.slots,
            "attention": run.attention,
            "n": n,
            "T": T,
            "B": B,
            "decay": float(options.decay),
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
    m0 = options.buffer + options.relevant
    tile = layout.require_tile(_rows(options.cell == "lstm"), n, saved.h.device)

    # What every state was to each matrix, and every step's query.
    matrices = torch.cat([weights.V, weights.W_a, weights.U_a])
    VW_a = matrices[:-n]  # what reads s
    projected = saved.h @ matrices.T  # (T, B, rows n)
    queries = saved.s[:-1] @ weights.W_a.T  # (T - 1, B, n)
    query0 = state.s0 @ weights.W_a.T if state.s0.numel() else None

    # The same for the carried memory, and room for its gradients.
    has_ds = grads.ds is not None
    projected0 = gathered0 = None
    if memory.values0.numel():
        projected0 = torch.cat([memory.values0 @ VW_a.T, memory.keys0], -1)  # (B, m0, rows n)
        gathered0 = projected.new_empty(B, m0, (tile.rows + has_ds) * n)

    found = op.attentive_backward.allocate(grads, weights, state, memory, options, saved, lengths)
    dv_rows = found.dv.new_empty(B, n)
    compiler.launch(
        "screened_backward",
        {
            **_defines(tile, options),
            "HAS_DH": grads.dh is not None,
            "HAS_DS": has_ds,
            "HAS_DC": grads.dc_T is not None,
            "HAS_LENGTHS": lengths is not None,
        },
        blocks=B * tile.cluster_blocks,
        threads=tile.threads,
        shared_floats=backward_floats(tile, m0, has_ds),
        args={
            **grads._asdict(),
            "V": weights.V,
            "W_a": weights.W_a,
            "U_a": weights.U_a,
            "v": weights.v,
            "projected": projected,
            "projected0": projected0,
            "queries": queries,
            "query0": query0,
            "c0": state.c0,
            "values0": memory.values0,
            "origin0": memory.origin0,
            "h": saved.h,
            "activations": saved.activations,
            "slots": saved.slots,
            "attention": saved.attention,
            "lengths": to_device(lengths, saved.h.device),
            "dxp": found.dxp,
            "dq": found.dq,
            "dk": found.dk,
            "dv_rows": dv_rows,
            "dc0": found.dc0,
            "gathered0": gathered0,
            "n": n,
            "T": T,
            "B": B,
        },
    )

    found = found._replace(dv=dv_rows.sum(0))

    # Gradients of the state and the memory that were carried in: of the memory's products with [V; W_a], of its keys,
    # of its values.
    if query0 is not None:
        found = found._replace(ds0=found.dxp[0] @ weights.V + found.dq[0] @ weights.W_a)
    if gathered0 is not None:
        gates_n = weights.V.shape[0]
        dkeys0 = gathered0[..., gates_n + n : gates_n + 2 * n].contiguous()
        dvalues0 = gathered0[..., : gates_n + n] @ VW_a
        if has_ds:
            dvalues0 = dvalues0 + gathered0[..., gates_n + 2 * n :]
        found = found._replace(dvalues0=dvalues0, dkeys0=dkeys0)
    return found
