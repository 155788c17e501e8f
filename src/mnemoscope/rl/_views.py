"""What agents in many gridworlds see, worked out for all of them at once: minigrid's rules on arrays.

A cell is one number: object, color and state in a byte each, and whether it hides what lies behind it in the fourth.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

LARGEST_TABLE = 9  # 4 ** 9 entries; wider views are worked out in each step


def pack(kind: int, color: int, state: int, opaque: bool) -> int:
    """A cell as one number."""
    return kind | color << 8 | state << 16 | opaque << 24


def unpack(cells: np.ndarray) -> np.ndarray:
    """Object, color and state of cells (...): (..., 3) uint8."""
    return np.ascontiguousarray(cells, dtype="<u4").view(np.uint8).reshape(*cells.shape, 4)[..., :3]


@functools.cache
def view_coordinates(size: int) -> np.ndarray:
    """(4, size, size, 2): where the cells of a view lie from the agent, for the directions right, down, left, up."""
    half = size // 2
    corners = [(0, -half), (-half, 0), (1 - size, -half), (-half, 1 - size)]
    views = []
    for direction, corner in enumerate(corners):
        square = np.stack(np.meshgrid(range(size), range(size), indexing="ij"), axis=-1) + corner
        for _ in range(direction + 1):
            square = square[::-1].transpose(1, 0, 2)  # minigrid's Grid.rotate_left
        views.append(square)
    return np.stack(views)


def view_distances(size: int) -> np.ndarray:
    """(size, size): how far cells are from the agent at the middle of the near edge; diagonal ones are as near."""
    aside, ahead = abs(np.arange(size) - size // 2), np.arange(size)[::-1]
    return np.maximum(aside[:, None], ahead)


def light_row(lit: np.ndarray, opaque: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Which cells of a row are visible, and which of the row before it, from those that the row behind it lights.

    Cells are bits. This is one row of minigrid's Grid.process_vis: light spreads to the right, then to the left, and
    each transparent cell that it passes lights its neighbors in the next row.
    """
    lit, ahead = lit.copy(), np.zeros_like(lit)
    for i in range(size - 1):
        passes = (lit & ~opaque) >> i & 1
        lit |= passes << (i + 1)
        ahead |= passes * (3 << i)
    for i in range(size - 1, 0, -1):
        passes = (lit & ~opaque) >> i & 1
        lit |= passes << (i - 1)
        ahead |= passes * (3 << (i - 1))
    return lit, ahead


@functools.cache
def row_lighting(size: int) -> Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """`light_row` for one width, from a table where it is small enough."""
    if size > LARGEST_TABLE:
        return lambda lit, opaque: light_row(lit, opaque, size)
    every = np.arange(1 << 2 * size, dtype=np.int64)
    visible, ahead = light_row(every >> size, every & ((1 << size) - 1), size)

    def look_up(lit: np.ndarray, opaque: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        index = lit << size | opaque
        return visible[index], ahead[index]

    return look_up


def visible_cells(opaque: np.ndarray) -> np.ndarray:
    """(rows, size, size) bool: what an agent at the middle of the near edge sees through views with opaque cells."""
    rows, size, _ = opaque.shape
    light = row_lighting(size)
    bits = 1 << np.arange(size)
    blocked = (opaque * bits[:, None]).sum(1)  # (rows, size): the bits of each row of a view
    lit = np.full(rows, 1 << size // 2)
    seen = np.empty((rows, size), dtype=np.int64)
    for j in range(size - 1, -1, -1):
        seen[:, j], lit = light(lit, blocked[:, j])
    return (seen[:, None, :] & bits[:, None]) != 0
