"""How a recurrence is laid out over thread blocks: the limits of a device, and the host's side of tile.cuh.

Each kernel checks at compile time that its shared memory is what is computed here.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

_WARPS = 8
_WEIGHTS_PER_THREAD = 192  # that fit its registers beside its other variables
_CLUSTERS = {8: (1,), 9: (1, 2, 4, 8, 16), 10: (1, 2, 4, 8, 16)}  # cluster sizes, by compute capability
_PART = 18  # multiprocessors that a cluster may spread over (a graphics processing cluster)


class Limits(NamedTuple):
    """A device's cluster sizes, its multiprocessors, and the shared memory of a block in floats."""

    clusters: tuple[int, ...]
    multiprocessors: int
    shared_floats: int

    def clusters_at_once(self, blocks: int) -> int:
        """Return how many clusters of so many blocks run at once, one block on each multiprocessor.

        A cluster stays within one of the device's parts. An H200, of 132 multiprocessors, was seen to run at least 64
        clusters of 2 blocks at once, 28 of 4, 14 of 8 and 7 of 16: as many as fit 7 parts of 18.
        """
        most = self.multiprocessors // blocks
        if blocks > 2:
            most = min(most, max(1, self.multiprocessors // _PART) * (_PART // blocks))
        return max(1, most)


@cache
def limits(device: torch.device) -> Limits:
    if torch.version.hip is not None:  # a device of another maker, for which there are no kernels
        return Limits((), 0, 0)
    properties = torch.cuda.get_device_properties(device)
    shared = properties.shared_memory_per_block_optin // 4  # type: ignore[attr-defined]
    return Limits(_CLUSTERS.get(properties.major, ()), properties.multi_processor_count, shared)


def slot_row(slots: int) -> int:
    """Return how many floats a row with one number per slot takes (screening.cuh): a multiple of a warp's 32 lanes."""
    return 32 * max(1, -(-slots // 32))


class Tile(NamedTuple):
    """One sequence over a cluster of blocks; the names are those of tile.cuh and attention.cuh."""

    rows: int
    padded_n: int
    cluster_blocks: int
    units_per_lane: int

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * _WARPS

    @property
    def lanes_per_unit(self) -> int:
        return self.padded_n // (16 * self.units_per_lane)

    @property
    def units_per_block(self) -> int:
        return self.padded_n // self.cluster_blocks

    def slot_floats(self, fields: int, slots: int) -> int:
        """Return the shared memory for `fields` numbers per unit in each of `slots` slots (SlotFields)."""
        slots_per_lane = max(1, -(-slots // self.lanes_per_unit))
        padded_slots = slots_per_lane * self.lanes_per_unit
        slot_stride = self.units_per_block + 32 // self.lanes_per_unit
        return fields * padded_slots * slot_stride

    @property
    def barrier_floats(self) -> int:
        """The shared memory for the barriers of the blocks' exchanges."""
        return 4 if self.cluster_blocks > 1 else 0

    @property
    def outbox_floats(self) -> int:
        """The shared memory from which a block sends `rows` numbers per unit to the others."""
        return self.rows * self.units_per_block if self.cluster_blocks > 1 else 0

    def unit_sum_floats(self, slots: int) -> int:
        """Return the shared memory for a sum over all units, one for each slot."""
        return slot_row(slots) * (_WARPS + self.cluster_blocks)

    def sent_sum_floats(self, slots: int) -> int:
        """Return the same for a sum that is sent and received apart."""
        return self.unit_sum_floats(slots) + slot_row(slots) * _WARPS

    @property
    def warp_floats(self) -> int:
        """The shared memory for one number per warp of the cluster."""
        return _WARPS * self.cluster_blocks

    def defines(self) -> dict[str, int | str]:
        return {
            "PADDED_N": self.padded_n,
            "CLUSTER_BLOCKS": self.cluster_blocks,
            "UNITS_PER_LANE": self.units_per_lane,
            "ROWS": self.rows,
        }


class BatchTile(NamedTuple):
    """Several sequences over a cluster of blocks; the names are those of batch.cuh."""

    tile: Tile
    sequences: int

    @property
    def lanes_per_pair(self) -> int:
        return self.tile.lanes_per_unit // self.sequences

    def _padded_slots(self, slots: int) -> int:
        return -(-slots // self.lanes_per_pair) * self.lanes_per_pair

    def sum_row(self, slots: int) -> int:
        """Return the shared memory for one number per slot and sequence."""
        return self.sequences * (-(-self._padded_slots(slots) // 4) * 4)

    def unit_sum_floats(self, slots: int) -> int:
        """Return the shared memory for a sum over all units."""
        return (_WARPS + self.tile.cluster_blocks) * self.sum_row(slots)

    def slot_floats(self, fields: int, slots: int) -> int:
        """Return the shared memory for `fields` numbers per unit and sequence in each of `slots` slots."""
        slot_stride = self.tile.units_per_block * self.sequences + 32 // self.lanes_per_pair
        return fields * self._padded_slots(slots) * slot_stride

    def clusters(self, batch: int) -> int:
        return -(-batch // self.sequences)

    def defines(self) -> dict[str, int | str]:
        return {**self.tile.defines(), "SEQUENCES": self.sequences}


class TensorTile(NamedTuple):
    """Several sequences over a cluster, products by the tensor cores; the names are those of tensor.cuh.

    `transposed`: the product of the backward pass.
    """

    rows: int
    units_per_block: int
    cluster_blocks: int
    sequences: int
    warp_units: int
    row_groups: int
    column_groups: int
    transposed: bool

    @property
    def padded_n(self) -> int:
        return self.units_per_block * self.cluster_blocks

    @property
    def pair_warps(self) -> int:
        return self.sequences * (self.units_per_block // self.warp_units)

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * max(self.pair_warps, self.row_groups * self.column_groups)

    @property
    def outputs(self) -> int:
        """Rows of a block's slice of the weights."""
        return self.units_per_block * (1 if self.transposed else self.rows)

    @property
    def inputs(self) -> int:
        """Columns of a block's slice of the weights."""
        return self.padded_n * (self.rows if self.transposed else 1)

    @property
    def weights_per_thread(self) -> int:
        """Registers of a thread that hold weights, two each."""
        return self.outputs * self.inputs // 2 // (32 * self.row_groups * self.column_groups)

    @property
    def sums_per_thread(self) -> int:
        """Registers of a thread that hold sums of the product."""
        return self.outputs // 16 // self.row_groups * -(-self.sequences // 8) * 4

    def shared_floats(self, fields: int, slots: int) -> int:
        """Return the shared memory of a block, with `fields` numbers per unit and sequence in each of the slots."""
        lanes_per_pair = 32 // self.warp_units
        padded_slots = -(-slots // lanes_per_pair) * lanes_per_pair
        columns = -(-padded_slots // 4) * 4
        state_stride = self.inputs if self.inputs % 64 else self.inputs + 32
        states = self.sequences * state_stride // 2
        products = self.column_groups * self.sequences * (self.outputs + 4)
        sums = self.cluster_blocks * self.pair_warps * columns
        row = max(columns, (self.rows if self.transposed else 1) * self.warp_units // 2)
        slot_stride = -(-self.sequences * self.units_per_block // 32) * 32 + self.warp_units % 32
        barriers = -(-2 * (1 + self.sequences) // 4) * 4
        return barriers + states + products + sums + self.pair_warps * row + fields * padded_slots * slot_stride

    def clusters(self, batch: int) -> int:
        return -(-batch // self.sequences)

    def pack(self, matrices: Tensor) -> Tensor:
        """Return the matrices (rows * n, n) in bfloat16 as the threads of a cluster hold them, two numbers a float.

        Zeros past n. A thread loads four words at once, and a warp's threads load neighboring ones.
        """
        n, N = matrices.shape[1], self.padded_n
        padded = F.pad(matrices.bfloat16().view(self.rows, n, n), (0, N - n, 0, N - n))
        if self.transposed:
            slices = padded.view(self.rows, N, self.cluster_blocks, -1).permute(2, 3, 0, 1)
        else:
            slices = padded.view(self.rows, self.cluster_blocks, -1, N).transpose(0, 1)
        # Rows: group, tile, upper or lower half, lane / 4. Columns: group, tile, lane % 4, four words of two numbers.
        tiles = slices.reshape(
            self.cluster_blocks,
            self.row_groups,
            -1,
            2,
            8,
            self.column_groups,
            self.inputs // 32 // self.column_groups,
            4,
            2,
            2,
            2,
        )
        return tiles.permute(0, 1, 5, 2, 6, 8, 4, 7, 9, 3, 10).reshape(-1).view(torch.float32)

    def defines(self) -> dict[str, int | str]:
        return {
            "PADDED_N": self.padded_n,
            "CLUSTER_BLOCKS": self.cluster_blocks,
            "SEQUENCES": self.sequences,
            "ROWS": self.rows,
            "WARP_UNITS": self.warp_units,
            "ROW_GROUPS": self.row_groups,
            "COLUMN_GROUPS": self.column_groups,
        }


@cache
def fewest_blocks(rows: int, n: int, clusters: tuple[int, ...]) -> Tile | None:
    """Return the tile with the fewest blocks for `rows` rows of weights per unit; None if the weights do not fit."""
    padded_n = next((size for size in (64, 128, 256, 512) if n <= size), None)
    if padded_n is None:
        return None
    for blocks in clusters:
        # A lane holds 16 columns of each of its units' rows.
        units_per_lane, rest = divmod(padded_n // blocks * padded_n, 16 * 32 * _WARPS)
        fits = units_per_lane * rows * 16 <= _WEIGHTS_PER_THREAD
        if not rest and 1 <= units_per_lane <= padded_n // 16 and fits:
            return Tile(rows, padded_n, blocks, units_per_lane)
    return None


def tile(rows: int, n: int, device: torch.device) -> Tile | None:
    """Return the tile with the fewest blocks on this device; None if the weights do not fit."""
    return fewest_blocks(rows, n, limits(device).clusters)


_MOST_LANES_PER_UNIT = 8  # a warp sends the numbers of four units at once (tile.cuh)


@cache
def wider_tiles(tile: Tile, limits: Limits) -> tuple[Tile, ...]:
    """Return the tiles with more blocks for the same weights, the one with the fewest first."""
    found = []
    for blocks in sorted(limits.clusters):
        factor, rest = divmod(blocks, tile.cluster_blocks)
        if not rest and factor > 1 and tile.units_per_lane % factor == 0:
            found.append(tile._replace(cluster_blocks=blocks, units_per_lane=tile.units_per_lane // factor))
    return tuple(one for one in found if one.lanes_per_unit <= _MOST_LANES_PER_UNIT)


@cache
def spread_tile(tile: Tile, batch: int, limits: Limits) -> Tile:
    """Return the tile with the most blocks for the same weights, of whose clusters one for each sequence runs at once.

    A lane then has fewer weights and fewer slots of a memory. Twice as many blocks took 7 to 20 % off a step of RelRNN
    and RelLSTM on an H200, forward and backward.
    """
    at_once = [one for one in wider_tiles(tile, limits) if limits.clusters_at_once(one.cluster_blocks) >= batch]
    return at_once[-1] if at_once else tile


def require_tile(rows: int, n: int, device: torch.device) -> Tile:
    found = tile(rows, n, device)
    assert found is not None, f"no tile for {rows} rows of {n} units; ask supports() first"
    return found
