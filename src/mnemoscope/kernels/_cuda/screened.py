"""Relevancy screening on CUDA: RelRNN and RelLSTM (screened_forward.cu, screened_backward.cu)."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from mnemoscope.kernels import _operators as op
from mnemoscope.kernels._cuda import compiler, layout
from mnemoscope.kernels._cuda.arguments import PHI, to_device
from mnemoscope.kernels._cuda.layout import Tile
from mnemoscope.kernels._cuda.products import carried_gradients, products_of

MAX_SLOTS = 32  # lane i of a warp has the record of slot i


def rows_per_unit(lstm: bool) -> int:
    """Rows of [V; W_a; U_a] per unit."""
    return 6 if lstm else 3


def supports(lstm: bool, n: int, slots: int, device: torch.device) -> bool:
    """True if the weights fit the registers, and the slots the shared memory, of one cluster."""
    tile = layout.tile(rows_per_unit(lstm), n, device)
    if tile is None or slots > MAX_SLOTS:
        return False
    return backward_floats(tile, slots, has_ds=True) <= layout.limits(device).shared_floats


@cache
def forward_floats(tile: Tile, slots: int) -> int:
    return tile.padded_n + tile.unit_sum_floats + tile.slot_floats(tile.rows + 1, slots)


@cache
def backward_floats(tile: Tile, slots: int, has_ds: bool) -> int:
    fields = tile.rows + has_ds
    return tile.rows * tile.padded_n + tile.unit_sum_floats + tile.slot_floats(2 * fields, slots)


@cache
def _defines(tile: Tile, options: op.AttentionOptions, **flags: bool) -> dict[str, int | str]:
    return {
        **tile.defines(),
        "PHI": PHI[options.phi],
        "BUFFER": options.buffer,
        "RELEVANT": options.relevant,
        "MIX_MEAN": options.mix == "mean",
        **flags,
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
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
) -> op.AttentiveRun:
    """Fill `run` and return it; all tensors float32.

    b_ih and b_hh are the biases of the inputs' projection, if xp is without them.
    """
    T, B, n = run.h.shape
    tile = layout.require_tile(rows_per_unit(options.cell == "lstm"), n, xp.device)
    compiler.launch(
        "screened_forward",
        _defines(
            tile,
            options,
            REFRESH=options.refresh,
            SAVE=save,
            HAS_BIAS=weights.b is not None,
            HAS_INPUT_BIAS=b_ih is not None,
            HAS_LENGTHS=lengths is not None,
        ),
        blocks=B * tile.cluster_blocks,
        threads=tile.threads,
        shared_floats=forward_floats(tile, options.buffer + options.relevant),
        args={
            "xp": xp,
            "V": weights.V,
            "W_a": weights.W_a,
            "U_a": weights.U_a,
            "v": weights.v,
            "b": weights.b,
            "b_ih": b_ih,
            "b_hh": b_hh,
            "s0": state.s0,
            "c0": state.c0,
            "values0": memory.values0,
            "keys0": memory.keys0,
            "origin0": memory.origin0,
            "relevance0": memory.relevance0,
            "clock0": memory.clock0,
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
    return run


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
    new = saved.h.new_empty
    lstm = options.cell == "lstm"
    tile = layout.require_tile(rows_per_unit(lstm), n, saved.h.device)

    has_ds = grads.ds is not None
    products = products_of(weights, state, memory, saved)
    gathered0 = None
    if products.projected0 is not None:
        gathered0 = new(B, m0, (tile.rows + has_ds) * n)
    dxp, dq, dk = new(T, B, 4 * n if lstm else n), new(T, B, n), new(T, B, n)
    dv_rows, nothing = new(B, n), new(0)
    dc0 = new(B, n) if lstm else nothing
    compiler.launch(
        "screened_backward",
        _defines(
            tile,
            options,
            HAS_DH=grads.dh is not None,
            HAS_DS=has_ds,
            HAS_DC=grads.dc_T is not None,
            HAS_LENGTHS=lengths is not None,
        ),
        blocks=B * tile.cluster_blocks,
        threads=tile.threads,
        shared_floats=backward_floats(tile, m0, has_ds),
        args={
            "dh": grads.dh,
            "ds": grads.ds,
            "dc_T": grads.dc_T,
            "V": weights.V,
            "W_a": weights.W_a,
            "U_a": weights.U_a,
            "v": weights.v,
            "projected": products.projected,
            "projected0": products.projected0,
            "queries": products.queries,
            "query0": products.query0,
            "c0": state.c0,
            "values0": memory.values0,
            "origin0": memory.origin0,
            "h": saved.h,
            "activations": saved.activations,
            "slots": saved.slots,
            "attention": saved.attention,
            "lengths": to_device(lengths, saved.h.device),
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
    dvalues0, dkeys0 = torch.empty_like(memory.values0), torch.empty_like(memory.keys0)  # without elements
    found = op.AttentiveGradients(dxp, dq, dk, dv_rows.sum(0), nothing, dc0, dvalues0, dkeys0)
    return carried_gradients(found, weights, state, products.matrices, gathered0)
