"""The Start-End spectrum of any sequence model: how far its outputs are from treating the two halves apart."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mnemoscope.errors import MnemoscopeError
from mnemoscope.theory.separation._grid import distinct_sequences
from mnemoscope.theory.separation._rank import float_ranks

Array = np.ndarray


@dataclass(frozen=True)
class Spectrum:
    """Singular values of the Start-End matrices of a model's C outputs.

    `rank` counts those above `tolerance` after equilibration, a numerical figure: for a smooth model it says how many
    terms of eq. 5 the arithmetic can tell apart. `effective_rank` (Roy & Vetterli 2007) is exp of the entropy of the
    normalized singular values. `distance` is the share of the matrix, in Frobenius norm, that no separable function
    can take over.
    """

    singular_values: Array  # (C, min(rows, columns)), descending
    rank: Array  # (C,)
    effective_rank: Array  # (C,): from 1 (separable) to min(rows, columns)
    distance: Array  # (C,): from 0 (separable) to 1
    tolerance: float  # relative to the largest singular value
    shape: tuple[int, int]
    whole: bool  # whether every Start and End sequence was used
    ignored: tuple[str, ...] = ()  # of "start" and "end", what changes no output by more than rounding


def last_output(result: Any) -> Tensor:
    """(B, C) from what a sequence model returns: `output` (T, B, C) or a tuple that begins with it."""
    output = result[0] if isinstance(result, tuple) else result
    return output[-1]


def separation_spectrum(
    model: Callable[[Tensor], Any],
    templates: Tensor,
    length: int,
    *,
    readout: Callable[[Any], Tensor] = last_output,
    limit: int = 256,
    batch: int = 4096,
    seed: int = 0,
) -> Spectrum:
    """The spectrum of `model`'s matricised grid tensor (section 3.2, appendix C) on the given template inputs.

    `model` takes sequences (length, B, ...) and `readout` turns its result into (B, C) or (B,). `templates` (n, ...)
    are n inputs for one time step: vectors (n, input_size), or token numbers (n,). With more than `limit` half
    sequences, that many are drawn for Start and for End. Put the model into eval mode first: dropout's noise would
    pass for a dependence on the input.

    Examples:
        >>> from mnemoscope.theory import separation_spectrum
        >>> spectrum = separation_spectrum(nn.RNN(1, 4).eval(), torch.randn(2, 1), length=6)
        >>> spectrum.singular_values.shape  # of each of 4 outputs
        (4, 8)
    """
    matrices, whole = start_end_matrices(model, templates, length, readout=readout, limit=limit, batch=batch, seed=seed)
    if not np.isfinite(matrices).all():
        raise MnemoscopeError("the outputs overflow on sequences of these inputs: there are no singular values")
    spectra = np.linalg.svd(matrices.astype(np.float64), compute_uv=False)  # large values would overflow in float32
    tolerance = max(matrices.shape[1:]) * float(np.finfo(matrices.dtype).eps)
    return Spectrum(
        singular_values=spectra,
        rank=float_ranks(matrices),
        effective_rank=effective_rank(spectra),
        distance=separable_distance(spectra),
        tolerance=tolerance,
        shape=(matrices.shape[1], matrices.shape[2]),
        whole=whole,
        ignored=_ignored(matrices, tolerance),
    )


def _ignored(matrices: Array, tolerance: float) -> tuple[str, ...]:
    """The halves that change no output of (C, rows, columns): rows are Starts, columns Ends."""
    size = np.abs(matrices).max(initial=0.0)
    axes = {"start": 1, "end": 2}
    return tuple(half for half, axis in axes.items() if np.ptp(matrices, axis=axis).max() <= tolerance * size)


@torch.no_grad()
def start_end_matrices(
    model: Callable[[Tensor], Any],
    templates: Tensor,
    length: int,
    *,
    readout: Callable[[Any], Tensor] = last_output,
    limit: int = 256,
    batch: int = 4096,
    seed: int = 0,
) -> tuple[Array, bool]:
    """One Start-End matrix an output, (C, rows, columns), and whether they hold the whole grid."""
    if length < 2 or length % 2:
        raise MnemoscopeError(f"a Start-End partition needs an even number of time steps, got {length}")
    rng = np.random.default_rng(seed)
    starts, ends = (distinct_sequences(len(templates), length // 2, limit, rng) for _ in range(2))
    values = torch.cat([_values(readout(model(x))) for x in _pairs(starts, ends, templates, batch)])
    matrices = values.T.reshape(-1, len(starts), len(ends)).cpu().numpy()
    return matrices, len(templates) ** (length // 2) <= limit


def _pairs(starts: Array, ends: Array, templates: Tensor, batch: int) -> Iterator[Tensor]:
    """Every Start followed by every End, at most `batch` at a time: (length, B, ...)."""
    count = len(starts) * len(ends)
    for pairs in np.array_split(np.arange(count), -(-count // batch)):
        symbols = np.concatenate([starts[pairs // len(ends)], ends[pairs % len(ends)]], axis=1)  # (B, length)
        yield templates[torch.from_numpy(symbols.T.copy()).to(templates.device)]


def _values(result: Tensor) -> Tensor:
    """(B, C), in a precision that numpy knows."""
    columns = result[:, None] if result.ndim == 1 else result.flatten(1)
    return columns.float() if columns.dtype.itemsize < 4 else columns


def effective_rank(spectra: Array) -> Array:
    """exp(-sum p log p) with p = s / sum s, over the last axis; 0 for a zero matrix."""
    total = spectra.sum(axis=-1, keepdims=True)
    p = spectra / np.where(total > 0, total, 1.0)
    entropy = -(p * np.log(np.where(p > 0, p, 1.0))).sum(axis=-1)
    return np.where(total[..., 0] > 0, np.exp(entropy), 0.0)


def separable_distance(spectra: Array) -> Array:
    """sqrt(1 - s_1^2 / sum s^2), over the last axis: Eckart and Young's distance from rank one, as a share."""
    largest = spectra.max(axis=-1, keepdims=True, initial=0.0)
    shares = spectra / np.where(largest > 0, largest, 1.0)  # squares of very large values would overflow
    energy = (shares**2).sum(axis=-1)
    rest = (shares[..., 1:] ** 2).sum(axis=-1)
    return np.sqrt(rest / np.where(energy > 0, energy, 1.0))
