"""Less data with the same look: a page has to stay light."""

from __future__ import annotations

import numpy as np

LINE, CLOUD, CELLS = 1500, 20_000, 160
"""Points of a line, points of a cloud, and rows or columns of a heat map that are kept at most, at full detail."""


def thin_places(size: int, most: int) -> np.ndarray:
    """Which of `size` values to keep, evenly spread, both ends among them."""
    most = max(2, most)
    return np.arange(size) if size <= most else np.unique(np.linspace(0, size - 1, most).round().astype(int))


def some_places(size: int, most: int) -> np.ndarray:
    """Which points of a cloud to keep: drawn at random, always the same ones."""
    if size <= most:
        return np.arange(size)
    return np.sort(np.random.default_rng(0).choice(size, max(1, most), replace=False))


def blocks(z: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Means over blocks of at most `most` rows and columns, and the first row and column of each block."""
    rows, columns = (_edges(size, most) for size in z.shape)
    sums = np.add.reduceat(np.add.reduceat(z, rows, 0), columns, 1)
    counts = np.outer(np.diff([*rows, z.shape[0]]), np.diff([*columns, z.shape[1]]))
    return sums / counts, rows, columns


def _edges(size: int, most: int) -> np.ndarray:
    return np.unique(np.linspace(0, size, min(size, max(2, most)) + 1).astype(int)[:-1])
