"""Relevancy screening on CUDA: RelRNN and RelLSTM (screened_forward.cu, screened_backward.cu)."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import torch
from torch import Tensor

from mnemoscope.kernels import _operators as op
from mnemoscope.kernels._cuda import compiler, layout
from mnemoscope.kernels._cuda.arguments import PHI, to_device
from mnemoscope.kernels._cuda.layout import Tile
from mnemoscope.kernels._cuda.products import carried_gradients, products_of

_ANOTHER_SEQUENCE = 0.3  # of the time of a step
MAX_SLOTS = 32  # lane i of a warp has the record of slot i


def rows_per_unit(lstm: bool) -> int:
    """Rows of [V; W_a; U_a] per unit."""
    return 6 if lstm else 3


@cache
def forward_floats(tile: Tile, slots: int) -> int:
    return tile.sequences * (tile.padded_n + tile.unit_sum_floats + tile.slot_floats(tile.rows + 1, slots))


@cache
def backward_floats(tile: Tile, slots: int, has_ds: bool) -> int:
    fields = tile.rows + has_ds
    sequence = tile.rows * tile.padded_n + tile.unit_sum_floats + tile.slot_floats(2 * fields, slots)
    return tile.sequences * sequence


@cache
def _choose(alone: Tile, slots: int, B: int, limits: layout.Limits) -> Tile | None:
    at_once = max(1, limits.multiprocessors // alone.cluster_blocks)
    tiles = [replace(alone, sequences=count) for count in (1, 2, 4)]
    fitting = [tile for tile in tiles if backward_floats(tile, slots, has_ds=True) <= limits.shared_floats]

    def time(tile: Tile) -> float:
        rounds = -(-B // (tile.sequences * at_once))
        return rounds * (1 + _ANOTHER_SEQUENCE * (tile.sequences - 1))

    return min(fitting, key=time, default=None)


def choose_tile(options: op.AttentionOptions, h: Tensor, dtype: torch.dtype) -> Tile | None:
    """Return the tile that runs states h (T, B, n) of a run in this dtype in the shortest time.

    Where the device has fewer clusters than there are sequences, a cluster runs several of them side by side: most of a
    step's time is waiting for other blocks, and another sequence adds only `_ANOTHER_SEQUENCE` of it.

    None if the weights do not fit the registers, or the slots the shared memory, of one cluster.
    """
    _, B, n = h.shape
    slots = options.buffer + options.relevant
    rows = rows_per_unit(options.cell == "lstm")
    alone = layout.tile(rows, n, h.device, bf16_weights=dtype is torch.bfloat16)
    if alone is None or slots > MAX_SLOTS:
        return None
    return _choose(alone, slots, B, layout.limits(h.device))


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
    tile: Tile,
    run: op.AttentiveRun,
    xp: Tensor,
    weights: op.AttentionWeights,
    state: op.AttentionState,
    memory: op.CarriedMemory,
    options: op.AttentionOptions,
    lengths: Tensor | None,
    save: bool,
) -> op.AttentiveRun:
    """Fill `run` and return it; all tensors float32."""
    T, B, n = run.h.shape
    compiler.launch(
        "screened_forward",
        _defines(
            tile,
            options,
            REFRESH=options.refresh,
            SAVE=save,
            HAS_BIAS=weights.b is not None,
            HAS_LENGTHS=lengths is not None,
        ),
        blocks=tile.blocks(B),
        threads=tile.threads,
        shared_floats=forward_floats(tile, options.buffer + options.relevant),
        args={
            "xp": xp,
            "V": weights.V,
            "W_a": weights.W_a,
            "U_a": weights.U_a,
            "v": weights.v,
            "b": weights.b,
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
    tile: Tile,
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

    has_ds = grads.ds is not None
    products = products_of(weights, state, memory, saved)
    gathered0 = None
    if products.projected0 is not None:
        gathered0 = saved.h.new_empty(B, m0, (tile.rows + has_ds) * n)
    found = op.attentive_backward.allocate(grads, weights, state, memory, options, saved, lengths)
    dv_rows = found.dv.new_empty(B, n)
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
        blocks=tile.blocks(B),
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
    return carried_gradients(found._replace(dv=dv_rows.sum(0)), weights, products, gathered0)
