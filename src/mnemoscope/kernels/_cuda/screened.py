"""Relevancy screening on CUDA: RelRNN and RelLSTM.

One cluster of blocks has one sequence (screened_forward.cu, screened_backward.cu), or several, where a batch has more
sequences than clusters fit on the device at once (screened_batch_forward.cu, screened_batch_backward.cu). In bfloat16
the tensor cores make the products of several sequences (screened_tensor_forward.cu, screened_tensor_backward.cu).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import NamedTuple

import torch
from torch import Tensor

from mnemoscope.kernels import _operators as op
from mnemoscope.kernels._absent import shared_absent
from mnemoscope.kernels._cuda import compiler, layout
from mnemoscope.kernels._cuda.arguments import PHI, to_device
from mnemoscope.kernels._cuda.layout import BatchTile, Limits, TensorTile, Tile
from mnemoscope.kernels._cuda.products import Factors, carried_gradients, products_of, stack_matrices
from mnemoscope.kernels._cuda.tensor_tiles import choose_tile

_MAX_SLOTS = 128  # of a sequence that has a cluster alone: a lane sends the sums of four slots
_MAX_SHARED_SLOTS = 32  # of sequences that share a cluster: a lane of a warp keeps the record of one slot


def rows_per_unit(lstm: bool) -> int:
    """Rows of [V; W_a; U_a] per unit."""
    return 6 if lstm else 3


def supports(lstm: bool, n: int, slots: int, device: torch.device) -> bool:
    """True if the weights fit the registers, and the slots the shared memory, of one cluster."""
    return _tile(lstm, n, slots, device) is not None


def _tile(lstm: bool, n: int, slots: int, device: torch.device) -> Tile | None:
    """Return the tile with the fewest blocks of which each has room for its units' weights and slots."""
    fewest = layout.tile(rows_per_unit(lstm), n, device)
    if fewest is None or slots > _MAX_SLOTS:
        return None
    return _with_room(fewest, slots, layout.limits(device))


@cache
def _with_room(fewest: Tile, slots: int, limits: Limits) -> Tile | None:
    for tile in (fewest, *layout.wider_tiles(fewest, limits)):
        if backward_floats(tile, slots, has_ds=True) <= limits.shared_floats:
            return tile
    return None


def _require_tile(options: op.AttentionOptions, n: int, device: torch.device) -> Tile:
    slots = options.buffer + options.relevant
    found = _tile(options.cell == "lstm", n, slots, device)
    assert found is not None, f"no tile for {n} units and {slots} slots; ask supports() first"
    return found


@cache
def forward_floats(tile: Tile, slots: int) -> int:
    states = tile.barrier_floats + tile.padded_n
    return states + tile.sent_sum_floats(slots) + tile.slot_floats(tile.rows + 1, slots)


@cache
def backward_floats(tile: Tile, slots: int, has_ds: bool) -> int:
    fields = tile.rows + has_ds
    products = tile.barrier_floats + tile.outbox_floats + tile.rows * tile.padded_n
    return products + tile.sent_sum_floats(slots) + tile.slot_floats(2 * fields, slots)


@cache
def batch_forward_floats(batch: BatchTile, slots: int) -> int:
    tile, row = batch.tile, batch.sum_row(slots)
    states = tile.barrier_floats + batch.sequences * (tile.padded_n + 2)
    return states + batch.unit_sum_floats(slots) + row + batch.slot_floats(tile.rows + 1, slots)


@cache
def batch_backward_floats(batch: BatchTile, slots: int, *, has_ds: bool) -> int:
    tile, row = batch.tile, batch.sum_row(slots)
    memory = batch.slot_floats(2 * (tile.rows + has_ds), slots)
    products = tile.barrier_floats + batch.sequences * (tile.rows * tile.padded_n + 10)
    return products + batch.unit_sum_floats(slots) + 3 * row + memory


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
    while 0 < slots <= _MAX_SHARED_SLOTS and sequences <= tile.lanes_per_unit:
        tried = BatchTile(tile, sequences)
        cost = _step_cost(sequences) * -(-tried.clusters(batch) // at_once)
        if cost < least and floats(tried, slots) <= limits.shared_floats:
            best, least = tried, cost
        sequences *= 2
    return best


def shares_clusters(options: op.AttentionOptions, n: int, batch: int, device: torch.device) -> bool:
    """True if sequences share a cluster in float32."""
    tile = _require_tile(options, n, device)
    slots = options.buffer + options.relevant
    return _batch_tile(tile, batch, slots, batch_forward_floats, layout.limits(device)) is not None


def fits_tensor_cores(options: op.AttentionOptions, n: int, device: torch.device) -> bool:
    """True if the bfloat16 kernels can run a batch of any size."""
    return tensor_tiles(options, n, 1, device, has_ds=True) is not None


def tensor_tiles(
    options: op.AttentionOptions, n: int, batch: int, device: torch.device, *, has_ds: bool
) -> tuple[TensorTile, TensorTile] | None:
    """Return how the forward and the backward pass run in bfloat16 on the tensor cores; None if the weights do not fit.

    has_ds: the backward pass has a gradient of s.
    """
    rows, slots = rows_per_unit(options.cell == "lstm"), options.buffer + options.relevant
    limits = layout.limits(device)
    if not 0 < slots <= _MAX_SHARED_SLOTS:
        return None
    forward_tile = choose_tile(rows, n, batch, slots, rows + 1, limits, transposed=False)
    backward_tile = choose_tile(rows, n, batch, slots, 2 * (rows + has_ds), limits, transposed=True)
    return (forward_tile, backward_tile) if forward_tile and backward_tile else None


@cache
def _defines(tile: Tile | BatchTile | TensorTile, options: op.AttentionOptions, **flags: bool) -> compiler.KeptDefines:
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


class _Launch(NamedTuple):
    """Which kernel runs a pass, and how many blocks of how many threads."""

    kernel: str
    tile: Tile | BatchTile | TensorTile
    blocks: int
    threads: int
    shared_floats: int


def _forward_launch(options: op.AttentionOptions, n: int, B: int, device: torch.device, bfloat16: bool) -> _Launch:
    rows, slots = rows_per_unit(options.cell == "lstm"), options.buffer + options.relevant
    if bfloat16:
        found = tensor_tiles(options, n, B, device, has_ds=True)
        assert found is not None, "ask fits_tensor_cores() first"
        return _tensor_launch("screened_tensor_forward", found[0], B, found[0].shared_floats(rows + 1, slots))
    tile = _require_tile(options, n, device)
    batch = _batch_tile(tile, B, slots, batch_forward_floats, layout.limits(device))
    if batch:
        blocks = batch.clusters(B) * tile.cluster_blocks
        return _Launch("screened_batch_forward", batch, blocks, tile.threads, batch_forward_floats(batch, slots))
    tile = layout.spread_tile(tile, B, layout.limits(device))
    return _Launch("screened_forward", tile, B * tile.cluster_blocks, tile.threads, forward_floats(tile, slots))


def _backward_launch(
    options: op.AttentionOptions, n: int, B: int, device: torch.device, bfloat16: bool, has_ds: bool
) -> _Launch:
    rows, slots = rows_per_unit(options.cell == "lstm"), options.buffer + options.relevant
    if bfloat16:
        found = tensor_tiles(options, n, B, device, has_ds=has_ds)
        assert found is not None, "ask fits_tensor_cores() first"
        floats = found[1].shared_floats(2 * (rows + has_ds), slots)
        return _tensor_launch("screened_tensor_backward", found[1], B, floats)
    tile = _require_tile(options, n, device)
    batch = _batch_tile(tile, B, slots, _BACKWARD_FLOATS[has_ds], layout.limits(device))
    if batch:
        blocks = batch.clusters(B) * tile.cluster_blocks
        floats = _BACKWARD_FLOATS[has_ds](batch, slots)
        return _Launch("screened_batch_backward", batch, blocks, tile.threads, floats)
    tile = layout.spread_tile(tile, B, layout.limits(device))
    blocks = B * tile.cluster_blocks
    return _Launch("screened_backward", tile, blocks, tile.threads, backward_floats(tile, slots, has_ds))


def _tensor_launch(kernel: str, tile: TensorTile, B: int, shared_floats: int) -> _Launch:
    return _Launch(kernel, tile, tile.clusters(B) * tile.cluster_blocks, tile.threads, shared_floats)


def _matrices(tile: Tile | BatchTile | TensorTile, weights: op.AttentionWeights) -> dict[str, Tensor]:
    """Return V, W_a and U_a as the kernel of this tile takes them."""
    if isinstance(tile, TensorTile):
        return {"weights": tile.pack(stack_matrices(weights))}
    return {"V": weights.V, "W_a": weights.W_a, "U_a": weights.U_a}


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
    *,
    bfloat16: bool = False,
) -> op.AttentiveRun:
    """Fill `run` and return it; all tensors float32.

    bfloat16: on the tensor cores, for weights that bfloat16 holds exactly.
    """
    T, B, n = run.h.shape
    launched = _forward_launch(options, n, B, xp.device, bfloat16)
    args = {
        "xp": xp,
        **_matrices(launched.tile, weights),
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
    }
    if bfloat16:
        del args["products"]  # its kernel keeps none
    compiler.launch(
        launched.kernel,
        _defines(
            launched.tile,
            options,
            REFRESH=options.refresh,
            SAVE=save,
            HAS_BIAS=weights.b is not None,
            HAS_INPUT_BIAS=beside.b_ih is not None,
            HAS_LENGTHS=lengths is not None,
            KEEP_PRODUCTS=beside.products is not None,
        ),
        blocks=launched.blocks,
        threads=launched.threads,
        shared_floats=launched.shared_floats,
        args=args,
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
    factors: Factors | None = None,
    *,
    sum_dv: bool = True,
) -> op.AttentiveGradients:
    """Return the gradients; all tensors float32. That of v is by sequence, (B, n), unless it is to be summed.

    `kept` are the products of the forward pass, if it kept them; `factors` what a run on the tensor cores multiplied,
    None for a run in float32.
    """
    T, B, n = saved.h.shape
    m0 = options.buffer + options.relevant
    new = saved.h.new_empty
    lstm = options.cell == "lstm"
    has_ds = grads.ds is not None
    launched = _backward_launch(options, n, B, saved.h.device, factors is not None, has_ds)
    products = products_of(weights, state, memory, saved, kept, factors)
    gathered0 = None
    if products.projected0 is not None:
        gathered0 = new(B, m0, (rows_per_unit(lstm) + has_ds) * n)
    dxp, dq, dk = new(T, B, 4 * n if lstm else n), new(T, B, n), new(T, B, n)
    dv_rows, nothing = new(B, n), shared_absent(saved.h.dtype, saved.h.device)
    dc0 = new(B, n) if lstm else nothing
    compiler.launch(
        launched.kernel,
        _defines(
            launched.tile,
            options,
            HAS_DH=grads.dh is not None,
            HAS_DS=has_ds,
            HAS_DC=grads.dc_T is not None,
            HAS_LENGTHS=lengths is not None,
        ),
        blocks=launched.blocks,
        threads=launched.threads,
        shared_floats=launched.shared_floats,
        args={
            "dh": grads.dh,
            "ds": grads.ds,
            "dc_T": grads.dc_T,
            **_matrices(launched.tile, weights),
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
    dv = dv_rows.sum(0) if sum_dv else dv_rows
    found = op.AttentiveGradients(dxp, dq, dk, dv, nothing, dc0, nothing, nothing)
    return carried_gradients(found, weights, state, products.matrices, gathered0)
