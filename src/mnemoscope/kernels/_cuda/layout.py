"""How recurrences are laid over thread blocks: what a device allows, and the host's side of tile.cuh."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import torch

_WARPS = 8
_REGISTERS = 192  # weights that a thread can hold beside what it works with
_CLUSTERS = {8: (1,), 9: (1, 2, 4, 8, 16), 10: (1, 2, 4, 8, 16)}  # blocks a sequence, by compute capability


class Limits(NamedTuple):
    """What a device allows: blocks that may walk a sequence together, its multiprocessors, a block's shared memory."""

    clusters: tuple[int, ...]
    multiprocessors: int
    shared_floats: int


@cache
def limits(device: torch.device) -> Limits:
    found = torch.cuda.get_device_properties(device)
    shared = found.shared_memory_per_block_optin // 4  # type: ignore[attr-defined]
    return Limits(_CLUSTERS.get(found.major, ()), found.multi_processor_count, shared)


@dataclass(frozen=True)
class Tile:
    """A cluster of C blocks a sequence, 8 warps a block; J units x 16 columns of each of their rows in a lane."""

    rows: int
    N: int
    C: int
    J: int

    threads = 32 * _WARPS

    @property
    def lanes(self) -> int:
        """Lanes that share a unit."""
        return self.N // (16 * self.J)

    @property
    def units(self) -> int:
        """Units a block."""
        return self.N // self.C

    def bank(self, fields: int, slots: int) -> int:
        """Floats of shared memory for `fields` numbers a unit in each of `slots` slots (Bank of attention.cuh)."""
        a_lane = max(1, -(-slots // self.lanes))
        return fields * a_lane * self.lanes * (self.units + 32 // self.lanes)

    def exchange(self) -> int:
        """Floats of shared memory for sums over all units."""
        return 32 * (_WARPS + self.C)

    def defines(self) -> dict[str, int | str | bool]:
        return {"N": self.N, "C": self.C, "J": self.J, "ROWS": self.rows}


@cache
def _tile(rows: int, n: int, clusters: tuple[int, ...]) -> Tile | None:
    N = next((N for N in (64, 128, 256, 512) if n <= N), None)
    if N is None:
        return None
    for C in clusters:
        J, rest = divmod(N // C * N, 16 * 32 * _WARPS)
        if not rest and 1 <= J <= N // 16 and J * rows * 16 <= _REGISTERS:
            return Tile(rows, N, C, J)
    return None


def tile(rows: int, n: int, device: torch.device) -> Tile | None:
    """The tile with the fewest blocks for `rows` rows of weights a unit; None where the weights do not fit."""
    return _tile(rows, n, limits(device).clusters)
