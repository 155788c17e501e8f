"""Fewer data points that look the same: a page has to stay light."""

from __future__ import annotations

import numpy as np

MAX_LINE_POINTS = 1500
MAX_CLOUD_POINTS = 20_000
MAX_HEAT_CELLS = 160  # rows or columns
"""How much of a line, a cloud and a heat map is drawn at full detail."""


def even_indices(size: int, limit: int) -> np.ndarray:
    """Return at most `limit` (at least 2) of the indices below `size`, evenly spread, with both ends."""
    limit = max(2, limit)
    if size <= limit:
        return np.arange(size)
    return np.unique(np.linspace(0, size - 1, limit).round().astype(int))


def random_indices(size: int, limit: int) -> np.ndarray:
    """Return at most `limit` of the indices below `size`, in order: a random choice that is always the same."""
    if size <= limit:
        return np.arange(size)
    return np.sort(np.random.default_rng(0).choice(size, max(1, limit), replace=False))


def block_means(z: np.ndarray, limit: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return z averaged over blocks, at most `limit` rows and columns of them, and each block's first row and column.

    z: (rows, columns). Returns (R, C), (R,) and (C,) with R, C <= max(2, limit).
    """
    rows = _block_starts(z.shape[0], limit)
    columns = _block_starts(z.shape[1], limit)
    sums = np.add.reduceat(np.add.reduceat(z, rows, 0), columns, 1)
    heights = np.diff([*rows, z.shape[0]])
    widths = np.diff([*columns, z.shape[1]])
    return sums / np.outer(heights, widths), rows, columns


def _block_starts(size: int, limit: int) -> np.ndarray:
    blocks = min(size, max(2, limit))
    return np.unique(np.linspace(0, size, blocks + 1).astype(int)[:-1])
