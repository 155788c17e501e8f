"""The last output of a model, and what windows of its last inputs make of it."""

from __future__ import annotations

import bisect
import functools
import math

import numpy as np
import torch
from torch import Tensor

from mnemoscope.scopes._frame.subject import Subject
from mnemoscope.scopes._measures.counters import LateStarts
from mnemoscope.scopes._measures.rounding import least_response
from mnemoscope.scopes._measures.windows import shortest_near


class Outputs:
    """The last output, and what windows make of it; of a model that reads later inputs, the first output too.

    Attributes:
        size: the median norm of these outputs; the largest if the median is zero.
        variation: the median distance of these outputs from their mean over sequences, relative to `size`.
        both_ends: True if the model reads later inputs.
        stride: inputs per output. Windows are longer by less than that where they would else begin between two outputs.
    """

    @torch.no_grad()
    def __init__(self, subject: Subject, order: float, late_start: LateStarts) -> None:
        self._subject = subject
        self._late_start = late_start
        self._order = order
        y = subject.run(subject.features)
        self.stride = _stride(subject, len(y))
        self.both_ends = _reads_later(subject, y)
        self._last = y[-1].double()  # (B, m)
        self._first = y[0].double()
        ends = torch.cat([self._last, self._first]) if self.both_ends else self._last
        sizes = _norms(ends, order)
        self.size = float(sizes.quantile(0.5)) or float(sizes.max())
        centered = [end - end.mean(0) for end in ((self._last, self._first) if self.both_ends else (self._last,))]
        distances = _norms(torch.cat(centered), order)
        self.variation = float(distances.quantile(0.5)) / self.size if self.size else math.nan

    def aligned(self, k: int) -> int:
        """Return the shortest window of at least k inputs that begins where an output does."""
        return k + (self._subject.steps - k) % self.stride

    @torch.no_grad()
    def errors(self, k: int) -> Tensor:
        """Return the error (B,) for windows of k inputs, aligned, relative to `size`; the larger one of both ends.

        Infinite if the model does not run on so few inputs, as a convolution wider than that.
        """
        run, x, k = self._subject.run, self._subject.features, self.aligned(k)
        try:
            errors = self._distance(self._last, self._last_of_window(k))
            if self.both_ends:
                errors = torch.maximum(errors, self._distance(self._first, run(x[:k])[0]))
        except torch.OutOfMemoryError:
            raise
        except Exception:
            if k == len(x):
                raise
            return torch.full((x.shape[1],), math.inf, dtype=torch.float64)
        return errors

    def _last_of_window(self, k: int) -> Tensor:
        x = self._subject.features
        late = self._late_start(len(x) - k) if self._subject.adapted.recurrence_is_model else None
        return (self._subject.run(x[-k:]) if late is None else self._subject.recurrence(x[-k:], late)[0])[-1]

    def _distance(self, y: Tensor, other: Tensor) -> Tensor:
        difference = y - other.double()
        return _norms(difference, self._order).cpu() / self.size


def _norms(vectors: Tensor, order: float) -> Tensor:
    """Return the norms of vectors (..., m), whose squares may overflow."""
    largest = vectors.abs().amax(-1, keepdim=True)
    scaled = torch.where(largest > 0, vectors / largest, 0.0)
    return torch.linalg.vector_norm(scaled, ord=order, dim=-1) * largest[..., 0]


def windows_of_sequences(outputs: Outputs, window: int, lengths: np.ndarray, error: float) -> np.ndarray:
    """Return the shortest window (B,) of each sequence, looked for from the `window` of the worst one on."""
    errors = functools.cache(outputs.errors)

    def of_sequence(b: int) -> float:
        return shortest_near(window, lengths, error, lambda k: float(errors(k)[b]))

    found = [of_sequence(b) for b in range(len(errors(window)))]
    return np.array([k if math.isinf(k) else outputs.aligned(int(k)) for k in found])


def _stride(subject: Subject, outputs: int) -> int:
    """Return how many inputs there are for each output, as a strided convolution has more than one; 1 if that varies.

    That is by how much sequences may be shorter that give one output less. The part of all inputs for which there is an
    output says less: a wide convolution of stride 1 gives few of them, too.
    """
    if outputs in (1, subject.steps):
        return 1

    @functools.cache
    def count(steps: int) -> int:
        try:
            return len(subject.run(subject.features[:steps]))
        except torch.OutOfMemoryError:
            raise
        except Exception:  # it does not read so few steps
            return 0

    def least_steps(outputs: int) -> int:
        return 1 + bisect.bisect_left(range(1, subject.steps), outputs, key=count)

    return max(1, least_steps(outputs) - least_steps(outputs - 1))


@torch.no_grad()
def _reads_later(subject: Subject, y: Tensor) -> bool:
    """True if outputs of the first half change with the inputs of the second half."""
    half = subject.steps // 2
    if len(y) != subject.steps or half == 0:
        return False
    other = subject.features.clone()
    other[half:] = other[half:].flip(0) + 1
    change = (subject.run(other)[:half] - y[:half]).abs().max()
    return bool(change > least_response(subject.model, y.dtype) * y.abs().max())
