"""Grid tensors (section 3.2) and their matricisation (appendix C)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from mnemoscope.errors import MnemoscopeError

Array = np.ndarray


def all_sequences(values: int, length: int) -> Array:
    """Every sequence of `length` indices below `values`, (values^length, length), the last index running fastest."""
    return np.indices((values,) * length).reshape(length, -1).T


def distinct_sequences(values: int, length: int, count: int, rng: np.random.Generator) -> Array:
    """`count` different sequences of `length` indices below `values`: all of them where there are no more."""
    if values**length <= count:
        return all_sequences(values, length)
    if values**length < 2**63:
        codes = rng.choice(values**length, count, replace=False)
        return np.stack(np.unravel_index(codes, (values,) * length), axis=-1)
    # Too many to number. Two of them are hardly ever equal; draw again until all differ.
    sequences = rng.integers(values, size=(count, length))
    while len(np.unique(sequences, axis=0)) < count:
        sequences = rng.integers(values, size=(count, length))
    return sequences


def grid_tensor(function: Callable[[Array], Array], templates: Array, length: int) -> Array:
    """A(y)_{d_1..d_T} = y(x^(d_1), ..., x^(d_T)): an array of shape (n,) * length (section 3.2).

    `function` maps sequences (B, length, ...) to values (B,); `templates` (n, ...) are the n template vectors.
    """
    sequences = all_sequences(len(templates), length)
    return np.asarray(function(templates[sequences])).reshape((len(templates),) * length)


def matricize(tensor: Array, rows: Sequence[int]) -> Array:
    """The matricisation with respect to (I, J), appendix C: the modes `rows` (from 0, ascending) are I, the others J.

    Entry (d_1..d_T) lands in row 1 + sum_t (d_{i_t} - 1) M^(|I| - t), and so for columns: the last index runs fastest.
    """
    if sorted(set(rows)) != list(rows) or not all(0 <= mode < tensor.ndim for mode in rows):
        raise MnemoscopeError(f"rows must be modes of 0..{tensor.ndim - 1} in ascending order, got {list(rows)}")
    columns = [mode for mode in range(tensor.ndim) if mode not in rows]
    height = int(np.prod([tensor.shape[mode] for mode in rows], dtype=np.int64))
    return tensor.transpose([*rows, *columns]).reshape(height, -1)


def start_end(tensor: Array) -> Array:
    """The Start-End matricisation: rows are the first half of the modes, columns the second."""
    if tensor.ndim % 2:
        raise MnemoscopeError(f"a Start-End partition needs an even number of time steps, got {tensor.ndim}")
    return matricize(tensor, range(tensor.ndim // 2))
