"""Relevancy screening on CUDA: RelRNN and RelLSTM.

One cluster of blocks has one sequence (screened_forward.cu, screened_backward.cu), or several, where a batch has more
sequences than clusters fit on the device at once (screened_batch_forward.cu, screened_batch_backward.cu).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import NamedTuple

import torch
from torch import Tensor

from mnemoscope.kernels import _operators as op
from mnemoscope.kernels._cuda import compiler, layout
from mnemoscope.kernels._cuda.arguments import PHI, to_device
from mnemoscope.kernels._cuda.layout import BatchTile, Limits, Tile
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
def batch_forward_floats(batch: BatchTile, slots: int) -> int:
    tile, row = batch.tile, batch.sum_row(slots)
    memory = batch.slot_floats(tile.rows + 1, slots)
    return batch.sequences * (tile.padded_n + 2) + batch.unit_sum_floats(slots) + row + memory


@cache
def batch_backward_floats(batch: BatchTile, slots: int, *, has_ds: bool) -> int:
    tile, row = batch.tile, batch.sum_row(slots)
    memory = batch.slot_floats(2 * (tile.rows + has_ds), slots)
    return batch.sequences * (tile.rows * tile.padded_n + 10) + batch.unit_sum_floats(slots) + 3 * row + memory


_BACKWARD_FLOATS = {has_ds: partial(batch_backward_floats, has_ds=has_ds) for has_ds in (False, True)}


def _step_cost(sequences: int) -> float:
    """Return how long a step of a cluster with so many sequences takes, in steps of one with a single sequence.

    Measured on an H200, forward and backward: 1.3 to 1.7 for 2, 1.9 to 2.2 for 4 and 3.0 to 3.3 for 8.
    """
    return 1.0 if sequences == 1 else 0.75 + 0.32 * sequences


@cache
def _batch_tile(
    tile: Tile, batch: int, slots: int, floats: Callable[[BatchTile, int], int], limits: Limits
) -> BatchTile | None:
    """Return how many sequences of a batch share a cluster; None if each shall have its own.

    Clusters that find no room on the device wait until others have ended, from the first step to the last. Sharing
    makes a step longer, but leaves fewer to wait.
    """
    at_once = limits.clusters_at_once(tile.cluster_blocks)
    best, least = None, _step_cost(1) * -(-batch // at_once)
    sequences = 2
    while slots > 0 and sequences <= tile.lanes_per_unit:
        tried = BatchTile(tile, sequences)
        cost = _step_cost(sequences) * -(-tried.clusters(batch) // at_once)
        if cost < least and floats(tried, slots) <= limits.shared_floats:
            best, least = tried, cost
        sequences *= 2
    return best


@cache
def _defines(tile: Tile | BatchTile, options: op.AttentionOptions, **flags: bool) -> compiler.KeptDefines:
    return compiler.KeptDefines(
        **tile.defines(),
        PHI=PHI[options.phi],
        BUFFER=options.buffer,
        RELEVANT=options.relevant,
        MIX_MEAN=options.mix == "mean",
        **flags,
    )


class Beside(NamedTuple):
    """What a kernel takes and gives beside an operator's arguments and results; None is not wanted.

    b_ih and b_hh (Gn) are the biases of the inputs' projection, if xp is without them. It writes h_T (B, n), the last
    state, and products: [V; W_a; U_a] h (T, B, (G + 2)n), then W_a s (T, B, n), which `backward` can be given.
    """

    b_ih: Tensor | None = None
    b_hh: Tensor | None = None
    h_T: Tensor | None = None
    products: Tensor | None = None


_NOTHING = Beside()


def forward(
    run: op.AttentiveRun,
    xp: Tensor,
    weights: op.AttentionWeights,
    state: op.AttentionState,
    memory: op.CarriedMemory,
    options: op.AttentionOptions,
    lengths: Tensor | None,
    save: bool,
    beside: Beside = _NOTHING,
) -> op.AttentiveRun:
    """Fill `run` and return it; all tensors float32."""
    T, B, n = run.h.shape
    tile = layout.require_tile(rows_per_unit(options.cell == "lstm"), n, xp.device)
    slots = options.buffer + options.relevant
    batch = _batch_tile(tile, B, slots, batch_forward_floats, layout.limits(xp.device))
    compiler.launch(
        "screened_batch_forward" if batch else "screened_forward",
        _defines(
            batch or tile,
            options,
            REFRESH=options.refresh,
            SAVE=save,
            HAS_BIAS=weights.b is not None,
            HAS_INPUT_BIAS=beside.b_ih is not None,
            HAS_LENGTHS=lengths is not None,
            KEEP_PRODUCTS=beside.products is not None,
        ),
        blocks=(batch.clusters(B) if batch else B) * tile.cluster_blocks,
        threads=tile.threads,
        shared_floats=batch_forward_floats(batch, slots) if batch else forward_floats(tile, slots),
        args={
            "xp": xp,
            "V": weights.V,
            "W_a": weights.W_a,
            "U_a": weights.U_a,
            "v": weights.v,
            "b": weights.b,
            "b_ih": beside.b_ih,
            "b_hh": beside.b_hh,
            "s0": state.s0,
            "c0": state.c0,
            "values0": memory.values0,
            "keys0": memory.keys0,
            "origin0": memory.origin0,
            "relevance0": memory.relevance0,
            "clock0": memory.clock0,
            "lengths": to_device(lengths, xp.device),
            "h": run.h,
            "h_T": beside.h_T,
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
            "products": beside.products,
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
    kept: Tensor | None = None,
) -> op.AttentiveGradients:
    """Return the gradients; all tensors float32. `kept` are the products of the forward pass, if it kept them."""
    T, B, n = saved.h.shape
    m0 = options.buffer + options.relevant
    new = saved.h.new_empty
    lstm = options.cell == "lstm"
    tile = layout.require_tile(rows_per_unit(lstm), n, saved.h.device)

    has_ds = grads.ds is not None
    products = products_of(weights, state, memory, saved, kept)
    gathered0 = None
    if products.projected0 is not None:
        gathered0 = new(B, m0, (tile.rows + has_ds) * n)
    dxp, dq, dk = new(T, B, 4 * n if lstm else n), new(T, B, n), new(T, B, n)
    dv_rows, nothing = new(B, n), new(0)
    dc0 = new(B, n) if lstm else nothing
    floats = _BACKWARD_FLOATS[has_ds]
    batch = _batch_tile(tile, B, m0, floats, layout.limits(saved.h.device))
    compiler.launch(
        "screened_batch_backward" if batch else "screened_backward",
        _defines(
            batch or tile,
            options,
            HAS_DH=grads.dh is not None,
            HAS_DS=has_ds,
            HAS_DC=grads.dc_T is not None,
            HAS_LENGTHS=lengths is not None,
        ),
        blocks=(batch.clusters(B) if batch else B) * tile.cluster_blocks,
        threads=tile.threads,
        shared_floats=floats(batch, m0) if batch else backward_floats(tile, m0, has_ds),
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
    found = op.AttentiveGradients(dxp, dq, dk, dv_rows.sum(0), nothing, dc0, dvalues0=nothing, dkeys0=nothing)
    return carried_gradients(found, weights, state, products.matrices, gathered0)
