"""How a recurrence is laid out over thread blocks: the limits of a device, and the host's side of tile.cuh.

Each kernel checks at compile time that its shared memory is what is computed here.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch

_WARPS = 8
_WEIGHTS_PER_THREAD = 192  # that fit its registers beside its other variables
_CLUSTERS = {8: (1,), 9: (1, 2, 4, 8, 16), 10: (1, 2, 4, 8, 16)}  # cluster sizes, by compute capability

_PARTS = 8  # at most, of a device with clusters (graphics processing clusters)


class Limits(NamedTuple):
    """A device's cluster sizes, its multiprocessors, and the shared memory of a block in floats."""

    clusters: tuple[int, ...]
    multiprocessors: int
    shared_floats: int

    def clusters_at_once(self, blocks: int) -> int:
        """Return how many clusters of so many blocks surely run at once, one block on each multiprocessor.

        A cluster stays within one of the device's parts, which have even numbers of multiprocessors that no cluster
        size need divide: with more than two blocks, each part may leave some idle. An H200 runs 64 clusters of 2 at
        once, but not 32 of 4: those took two rounds (MemRNN, 128 units, 2020 steps, batch 32: 108 ms; 86 ms with 2
        blocks).
        """
        idle = _PARTS * max(0, blocks - 2)
        return (self.multiprocessors - idle) // blocks


@cache
def limits(device: torch.device) -> Limits:
    properties = torch.cuda.get_device_properties(device)
    shared = properties.shared_memory_per_block_optin // 4  # type: ignore[attr-defined]
    return Limits(_CLUSTERS.get(properties.major, ()), properties.multi_processor_count, shared)


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
    def unit_sum_floats(self) -> int:
        """The shared memory for a sum over all units."""
        return 32 * (_WARPS + self.cluster_blocks)

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


@cache
def _tile(rows: int, n: int, clusters: tuple[int, ...]) -> Tile | None:
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
    """Return the tile with the fewest blocks for `rows` rows of weights per unit; None if the weights do not fit."""
    return _tile(rows, n, limits(device).clusters)


def require_tile(rows: int, n: int, device: torch.device) -> Tile:
    found = tile(rows, n, device)
    assert found is not None, f"no tile for {rows} rows of {n} units; ask supports() first"
    return found
