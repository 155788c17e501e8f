"""How many sequences share a cluster, and over how many blocks, where the tensor cores make the products."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from mnemoscope.kernels._cuda.layout import Limits, TensorTile

_REGISTERS = 16384  # of a quarter of a multiprocessor, which has every fourth warp
_OTHER_VARIABLES = 56  # of a thread, beside its weights, its sums and a number per slot
_MOST_SEQUENCES = 16
_MOST_GROUPS = 16


@cache
def choose_tile(
    rows: int, n: int, batch: int, slots: int, fields: int, limits: Limits, *, transposed: bool
) -> TensorTile | None:
    """Return the tile that is expected to be the fastest; None if none fits.

    rows: of weights per unit. fields: numbers per unit and slot. transposed: for the backward pass.
    """
    if max(limits.clusters, default=1) == 1:  # the blocks' exchange needs a device that has clusters
        return None
    fitting = [
        tile
        for tile in _tiles(rows, n, batch, limits, transposed)
        if tile.shared_floats(fields, slots) <= limits.shared_floats and _spilled(tile, slots) <= _OTHER_VARIABLES
    ]
    return min(fitting, key=lambda tile: _cost(tile, batch, slots, limits), default=None)


def _tiles(rows: int, n: int, batch: int, limits: Limits, transposed: bool) -> Iterator[TensorTile]:
    for blocks in limits.clusters:
        units = -(-n // (16 * blocks)) * 16
        if units * blocks % 32:
            units += 16
        # The fewest sequences for each number of rounds of clusters, one after the other.
        by_rounds = {_rounds(batch, many, blocks, limits): many for many in range(_MOST_SEQUENCES, 0, -1)}
        for sequences in by_rounds.values():
            for warp_units in (32, 16, 8):
                if units % warp_units == 0:
                    yield from _groupings(TensorTile(rows, units, blocks, sequences, warp_units, 1, 1, transposed))


def _rounds(batch: int, sequences: int, blocks: int, limits: Limits) -> int:
    clusters = -(-batch // sequences)
    return -(-clusters // limits.clusters_at_once(blocks))


def _groupings(tile: TensorTile) -> Iterator[TensorTile]:
    """The ways to divide the product among 4 to 16 warps."""
    for row_groups in _divisors(tile.outputs // 16):
        for column_groups in _divisors(tile.inputs // 32):
            grouped = tile._replace(row_groups=row_groups, column_groups=column_groups)
            if 4 <= row_groups * column_groups <= _MOST_GROUPS and grouped.threads <= 1024:
                yield grouped


@cache
def _divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, _MOST_GROUPS + 1) if number % divisor == 0]


def _spilled(tile: TensorTile, slots: int) -> int:
    """Return how many registers of a thread would be missing."""
    warps = tile.threads // 32
    registers = min(255, _REGISTERS // (-(-warps // 4) * 32) // 8 * 8)
    held = tile.weights_per_thread + tile.sums_per_thread + -(-slots * tile.warp_units // 32)
    return max(0, held + _OTHER_VARIABLES - registers)


def _cost(tile: TensorTile, batch: int, slots: int, limits: Limits) -> float:
    """Return about how many clocks a step takes, of all clusters that wait for each other."""
    lanes_per_pair = 32 // tile.warp_units
    # Four warps run at once. A warp alone cannot keep its quarter of a multiprocessor busy, two nearly can.
    instructions = 250 + -(-slots // lanes_per_pair) * (20 + 4 * tile.rows)
    pairs = instructions * max(-(-tile.pair_warps // 4), 2.2)
    # 8 clocks for 16 rows, 16 columns and 8 sequences.
    tiles = tile.outputs * tile.inputs // 256 // (tile.row_groups * tile.column_groups) * -(-tile.sequences // 8)
    product = 8 * tiles * -(-tile.row_groups * tile.column_groups // 4)
    shared = tile.row_groups * tile.inputs / 2 + 2 * tile.column_groups * tile.outputs  # floats, of each sequence
    sent = 2 * tile.sequences * tile.inputs + 4 * tile.cluster_blocks * tile.pair_warps * slots  # bytes
    step = 1000 + pairs + product + shared * tile.sequences / 32 + sent / 32 + 30 * _spilled(tile, slots)
    return step * _rounds(batch, tile.sequences, tile.cluster_blocks, limits)
