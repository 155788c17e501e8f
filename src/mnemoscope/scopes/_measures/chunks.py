"""Truncated backpropagation through time: its gradient in chunks, of all sequences together and of groups of them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from mnemoscope.recurrence import State, detach
from mnemoscope.scopes._frame.subject import Subject
from mnemoscope.scopes._measures.parameter_batches import real_parts
from mnemoscope.scopes._measures.rounding import negligible
from mnemoscope.scopes._measures.windows import shortest_near

GROUPS = 4  # of sequences, each with a gradient of its own


class Chunks:
    """The gradient by the weights of the loss at every step, in chunks between which the state is carried on.

    The loss is the given one if the recurrence is the whole model, else the mean of 1/2 ||y_t||^2.

    Attributes:
        loss: in words.
        whole: (P,), the gradient through the whole sequences.
    """

    def __init__(self, subject: Subject, weights: list[Tensor]) -> None:
        self._subject = subject
        self._weights = weights
        self._knows_loss = subject.adapted.recurrence_is_model and not subject.missing("loss")
        self.loss = "the given one" if self._knows_loss else "1/2 ||y||^2 at every step"
        self.whole = self._gradient(subject.steps)

    def error(self, k: int) -> float:
        """Return the error of chunks of k steps, relative to the gradient through the whole sequences."""
        return relative_error(self._gradient(k), self.whole)

    def windows_of_groups(self, window: int, lengths: np.ndarray, allowed: float) -> np.ndarray:
        """Return the shortest chunk (G,) that gives the gradient of each group of sequences to the error `allowed`.

        A group's gradient is the part of the whole gradient that comes through its outputs: if the loss is a sum or a
        mean over sequences, the gradient of the group's own loss. Its window is looked for from the `window` of all
        sequences on; a group without a gradient has none. Empty for one sequence, and if the parts do not add up to
        the whole, as where sequences do not run on their own.
        """
        if self._subject.batch == 1:
            return np.empty(0)
        groups = torch.arange(self._subject.batch).tensor_split(min(GROUPS, self._subject.batch))
        by_outputs = self._by_outputs()
        try:
            parts = [self._part(self._subject.steps, rows, by_outputs) for rows in groups]
        except torch.OutOfMemoryError:
            raise
        except Exception:  # it runs on batches of one size only
            return np.empty(0)

        # The parts add up to the whole; what is zero but for rounding has no window.
        zero = negligible(self._subject.dtype) * max(float(part.norm()) for part in parts)
        if not float((torch.stack(parts).sum(0) - self.whole).norm()) <= zero:
            return np.empty(0)
        windows = []
        for rows, part in zip(groups, parts, strict=True):
            if float(part.norm()) <= zero:
                continue

            def error_of(k: int, rows: Tensor = rows, part: Tensor = part) -> float:
                return relative_error(self._part(k, rows, by_outputs), part)

            windows.append(shortest_near(window, lengths, allowed, error_of))
        return np.array(windows)

    def _gradient(self, k: int) -> Tensor:
        return by_weights(self._loss_of(self._outputs(k)), self._weights)

    def _part(self, k: int, rows: Tensor, by_outputs: Tensor) -> Tensor:
        """Return the part of the gradient that comes through the outputs of some of the sequences."""
        return by_weights((self._outputs(k, rows) * by_outputs[:, rows]).sum(), self._weights)

    def _by_outputs(self) -> Tensor:
        """Return the gradient (T, B, m) of the loss by the outputs."""
        y = self._outputs(self._subject.steps).detach().requires_grad_()
        return torch.autograd.grad(self._loss_of(y), y)[0]

    def _outputs(self, k: int, rows: Tensor | None = None) -> Tensor:
        """Return outputs (T, B, m), made in chunks of k steps; of some of the sequences, if given.

        The last chunk is a whole one, the first may be shorter: else a loss at the last step alone would be a matter of
        what is left over after the whole chunks.
        """
        x = self._subject.recurrence_inputs
        state: State | None = None
        outputs = []
        first = len(x) % k
        lengths = [*([first] if first else []), *[k] * (len(x) // k)]
        for chunk in (x if rows is None else x[:, rows]).split(lengths):
            y, state = self._subject.recurrence(chunk, state)
            state = detach(state)
            outputs.append(y)
        return torch.cat(outputs)

    def _loss_of(self, y: Tensor) -> Tensor:
        return self._subject.loss_of(y) if self._knows_loss else y.square().sum() / (2 * y.shape[0] * y.shape[1])


def by_weights(loss: Tensor, weights: list[Tensor]) -> Tensor:
    """Return the gradient (P,) of a loss by all weights together, in float64."""
    if not loss.requires_grad:
        return torch.zeros(1, dtype=torch.float64, device=loss.device)
    gradients = torch.autograd.grad(loss, weights, allow_unused=True, materialize_grads=True)
    return torch.cat([real_parts(gradient).flatten() for gradient in gradients]).double()


def relative_error(gradient: Tensor, whole: Tensor) -> float:
    """Return ||gradient - whole|| / ||whole||."""
    return float((gradient - whole).norm()) / norm(whole)


def norm(gradient: Tensor) -> float:
    """Return the norm of a gradient, or the smallest number above zero: it is divided by."""
    return max(float(gradient.norm()), torch.finfo(gradient.dtype).tiny)
