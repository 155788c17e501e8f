"""How short a window may be: what is lost if a model sees, or learns from, its last k inputs alone."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from mnemoscope.errors import MnemoscopeError
from mnemoscope.finding import Finding, arrays
from mnemoscope.recurrence import State, detach
from mnemoscope.scopes._frame.scope import scope
from mnemoscope.scopes._frame.subject import Subject
from mnemoscope.scopes._measures.rounding import negligible
from mnemoscope.scopes._measures.truncation_bounds import truncation_bounds

HELP = """
“Outputs” compares a run over the last k inputs with the run over all of them. The window is safe
from where its curve stays under the 1 % line.

“Backpropagation in chunks” is truncated BPTT as it is used in training: the sequence is cut into
chunks of k steps, the state is carried on from chunk to chunk, the gradient is not. Its error is
that of the gradient of the loss at every step, against backpropagation through the whole sequence.
It falls slowly: the first steps of every chunk always lose what came before.

Where a bound is drawn it holds for every sequence whose inputs are no larger, not only for these.
"""


@scope(
    "How short may a window be, for predictions and for training?",
    title="Safe window",
    help=HELP,
    needs=("outputs", "deterministic"),
    cost=30,
)
def truncation(
    subject: Subject, *, error: float = 0.01, windows: int = 24, rate: float = 0.01, updates: int = 200
) -> Finding:
    """Find the shortest window that gives the last output, and the shortest chunk that gives the gradient, to `error`.

    Outputs: the window of the last k inputs read from a fresh state (Miller & Hardt 2018, eq. 3), against the whole
    sequence; of a model that reads later inputs too, also the first output from the first k inputs. Bounded, for layers
    that `stability` certifies, with every constant computed. Gradients are by the recurrent layer's weights.

    Series over the windows tried, `window` (K,): `output_error`, ||y_T - y_T^k|| of the worst sequence, and
    `typical_output_error`, the median, relative to the median ||y_T||; `bptt_error`, of backpropagation in chunks of k
    steps between which the state is carried on and detached, relative to the whole gradient of the loss at every step:
    the given one if the recurrence is the whole model, else the mean of 1/2 ||y_t||^2; `gradient_error`, of the model
    that sees the last k inputs alone, for 1/2 ||y_T||^2; `output_bound` (Proposition 1) and `gradient_bound` (Lemma 2,
    corrected, for `gradient_error`) on the same scales, if certified.

    Figures: `window`, the shortest from which on outputs stay within `error`, found by bisection between the windows
    tried; `gradient_window`, the same for `gradient_error`; `bptt_window`, the same for chunks, but never below what
    the task needs; `bptt_window_measured`, without regard to that; `certified_window` (Proposition 1) and
    `trained_window` (Theorem 1, for `updates` steps of size rate / t; a proof only if training keeps the weights as
    stable and as small as they are now); `lambda_fit` of k lambda^k fitted to `gradient_error`; `steps`, the length of
    the sequences. Labels: `ends`, which outputs were looked at; `loss`.

    Args:
        error: the relative difference that is allowed.
        windows: how many window lengths are tried, in equal ratios from 1 to the length of the sequences.
        rate, updates: the training that Theorem 1 is asked about.
    """
    if not 0 < error < 1 or windows < 2 or subject.steps < 2:
        raise MnemoscopeError(
            f"truncation needs 0 < error < 1, at least 2 windows and 2 steps; got {error}, {windows}, {subject.steps}"
        )
    subject.check_finite_outputs()
    lengths = np.unique(np.geomspace(1, subject.steps, windows).round().astype(int))
    bounds = truncation_bounds(subject)

    # Outputs: the last k inputs from a fresh state, against the whole sequence.
    outputs = _Outputs(subject, 2 if bounds is None else bounds.order)
    if outputs.size == 0:
        why = f"the outputs of {subject.name} are zero on these inputs, whatever window they are made from"
        return Finding("truncation", f"truncation does not apply: {why}.", "not applicable", why=why)
    errors = torch.stack([outputs.errors(int(k)) for k in lengths])  # (K, B)
    if bool(errors[:-1].isinf().all()):
        why = f"{subject.name} does not read shorter sequences than these"
        return Finding("truncation", f"truncation does not apply: {why}.", "not applicable", why=why)
    series = arrays(window=lengths, output_error=errors.amax(1), typical_output_error=errors.quantile(0.5, 1))
    window = _shortest(lengths, series["output_error"], error, lambda k: float(outputs.errors(k).max()))
    figures = {"window": window, "steps": float(subject.steps)}
    labels: dict[str, str | list[str]] = {"ends": "first and last" if outputs.both_ends else "last"}
    subject.report(0.4)

    # Gradients by the weights, if there are any; not if the layer runs over the batch: its inputs have other lengths.
    gradient_size = math.nan
    weights = [] if subject.missing("step") else _weights(subject)
    if weights and len(subject.recurrence_inputs) == subject.steps:
        gradient_size, gradient_series, gradient_figures = _gradient_errors(subject, weights, lengths, error)
        series |= gradient_series
        figures |= gradient_figures
        labels["loss"] = "the given one" if _knows_loss(subject) else "1/2 ||y||^2 at every step"

    # What is proved, on the same scales.
    if bounds is not None:
        series |= bounds.bounds(lengths, outputs.size, gradient_size)
        bounds.check(subject, series, outputs.size)
        figures |= bounds.windows(error * outputs.size, rate, updates)
    return Finding(
        "truncation",
        _sentence(figures, error, subject.needs, outputs.both_ends),
        "estimated",  # the windows of the sentence are measured; those that are proved are marked
        why="" if bounds is None else f"bounds: {bounds.condition}",
        figures=figures,
        certified=("certified_window",) if bounds is not None else (),
        series=series,
        labels=labels,
        warnings=_warnings(subject, figures),
        assumptions=_assumptions(bounds is not None, figures),
        method=f"{len(lengths)} windows and chunks of k steps against the whole sequence, then bisection",
    )


def _assumptions(bounded: bool, figures: dict[str, float]) -> tuple[str, ...]:
    if not bounded:
        return ("these sequences are typical",)
    assumptions = ["inputs are no larger than these"]
    if "trained_window" in figures:
        assumptions.append("trained_window: training keeps the weights as stable and as small as they are now")
    return tuple(assumptions)


class _Outputs:
    """The last output, and what windows make of it; of a model that reads later inputs, the first output too.

    Attributes:
        size: the median norm of these outputs; the largest if the median is zero.
        both_ends: True if the model reads later inputs.
    """

    @torch.no_grad()
    def __init__(self, subject: Subject, order: float) -> None:
        self._subject = subject
        self._order = order
        y = subject.run(subject.features)
        self.both_ends = _reads_later(subject, y)
        self._last = y[-1].double()  # (B, m)
        self._first = y[0].double()
        ends = torch.cat([self._last, self._first]) if self.both_ends else self._last
        sizes = torch.linalg.vector_norm(ends, ord=order, dim=-1)
        self.size = float(sizes.quantile(0.5)) or float(sizes.max())

    @torch.no_grad()
    def errors(self, k: int) -> Tensor:
        """Return the error (B,) for windows of k inputs, relative to `size`; the larger one of both ends.

        Infinite if the model does not run on so few inputs, as a convolution wider than that.
        """
        run, x = self._subject.run, self._subject.features
        try:
            errors = self._distance(self._last, run(x[-k:])[-1])
            if self.both_ends:
                errors = torch.maximum(errors, self._distance(self._first, run(x[:k])[0]))
        except torch.OutOfMemoryError:
            raise
        except Exception:
            if k == len(x):
                raise
            return torch.full((x.shape[1],), math.inf, dtype=torch.float64)
        return errors

    def _distance(self, y: Tensor, other: Tensor) -> Tensor:
        difference = y - other.double()
        return torch.linalg.vector_norm(difference, ord=self._order, dim=-1).cpu() / self.size


@torch.no_grad()
def _reads_later(subject: Subject, y: Tensor) -> bool:
    """True if outputs of the first half change with the inputs of the second half."""
    half = subject.steps // 2
    if len(y) != subject.steps or half == 0:
        return False
    other = subject.features.clone()
    other[half:] = other[half:].flip(0) + 1
    change = (subject.run(other)[:half] - y[:half]).abs().max()
    return bool(change > negligible(y.dtype) * y.abs().max())


def _weights(subject: Subject) -> list[Tensor]:
    return [parameter for parameter in subject.layer.parameters() if parameter.is_floating_point()]


def _knows_loss(subject: Subject) -> bool:
    return subject.adapted.recurrence_is_model and not subject.missing("loss")


def _gradient_errors(
    subject: Subject, weights: list[Tensor], lengths: np.ndarray, error: float
) -> tuple[float, dict[str, np.ndarray], dict[str, float]]:
    """Return the size of the last output's gradient, and errors and windows of a truncated model and of chunks."""
    for weight in weights:
        weight.requires_grad_()
    whole_last = _last_gradient(subject, weights, subject.steps)
    whole = _chunked_gradient(subject, weights, subject.steps)
    size = _norm(whole_last)

    def fresh_error(k: int) -> float:
        return float((_last_gradient(subject, weights, k) - whole_last).norm()) / size

    def chunk_error(k: int) -> float:
        return float((_chunked_gradient(subject, weights, k) - whole).norm()) / _norm(whole)

    fresh, chunked = [], []
    for i, k in enumerate(map(int, lengths)):
        subject.report(0.4 + 0.5 * i / len(lengths))
        fresh.append(fresh_error(k))
        chunked.append(chunk_error(k))
    series = arrays(gradient_error=fresh, bptt_error=chunked)
    measured = _shortest(lengths, series["bptt_error"], error, chunk_error)
    figures = {
        "gradient_window": _shortest(lengths, series["gradient_error"], error, fresh_error),
        "bptt_window": _at_least_the_need(measured, subject),
        "bptt_window_measured": measured,
        "lambda_fit": _fit_lambda(lengths, series["gradient_error"]),
    }
    return size, series, figures


def _at_least_the_need(window: float, subject: Subject) -> float:
    """Return the window, but no less than a chunk that holds an input and the output that needs it."""
    if subject.needs is None:
        return window
    return max(window, min(subject.needs + 1, float(subject.steps)))


def _norm(gradient: Tensor) -> float:
    return max(float(gradient.norm()), torch.finfo(gradient.dtype).tiny)


def _last_gradient(subject: Subject, weights: list[Tensor], k: int) -> Tensor:
    """Return the gradient of 1/2 ||y_T||^2 by the weights, through the last k steps from a fresh state."""
    y = subject.recurrence(subject.recurrence_inputs[-k:])[0][-1]
    return _by_weights(y.square().sum() / (2 * len(y)), weights)


def _chunked_gradient(subject: Subject, weights: list[Tensor], k: int) -> Tensor:
    """Return the gradient by the weights of the loss at every step, in chunks of k steps: truncated BPTT."""
    state: State | None = None
    outputs = []
    for chunk in subject.recurrence_inputs.split(k):
        y, state = subject.recurrence(chunk, state)
        state = detach(state)
        outputs.append(y)
    y = torch.cat(outputs)
    loss = subject.loss_of(y) if _knows_loss(subject) else y.square().sum() / (2 * y.shape[0] * y.shape[1])
    return _by_weights(loss, weights)


def _by_weights(loss: Tensor, weights: list[Tensor]) -> Tensor:
    if not loss.requires_grad:
        return torch.zeros(1, dtype=torch.float64, device=loss.device)
    gradients = torch.autograd.grad(loss, weights, allow_unused=True, materialize_grads=True)
    return torch.cat([gradient.flatten() for gradient in gradients]).double()


def _shortest(
    lengths: np.ndarray, errors: np.ndarray, allowed: float, error_of: Callable[[int], float] | None = None
) -> float:
    """Return the shortest window from which on no error tried exceeds what is allowed; infinity if there is none.

    With `error_of`, the gap below it to the next window tried is closed by bisection.
    """
    too_large = np.nonzero(~(errors <= allowed))[0]
    following = int(too_large[-1]) + 1 if len(too_large) else 0
    if following == len(lengths):
        return math.inf
    enough = int(lengths[following])
    too_short = int(lengths[following - 1]) if following else 0
    while error_of is not None and enough - too_short > 1:
        middle = (enough + too_short) // 2
        if error_of(middle) <= allowed:
            enough = middle
        else:
            too_short = middle
    return float(enough)


def _fit_lambda(lengths: np.ndarray, errors: np.ndarray) -> float:
    """Fit lambda of a k lambda^k (Lemma 2's form) to the errors, in logarithms."""
    usable = (errors > 1e-12) & np.isfinite(errors)
    if usable.sum() < 3:
        return math.nan
    slope = np.polyfit(lengths[usable], np.log(errors[usable] / lengths[usable]), 1)[0]
    return float(np.exp(slope))


def _sentence(figures: dict[str, float], error: float, needs: float | None, both_ends: bool) -> str:
    window, steps = figures["window"], figures["steps"]
    percent = f"{100 * error:g} %"
    outputs = "first and last output" if both_ends else "last output"
    if not window < steps:
        sentence = f"No window shorter than the {steps:.0f} steps looked at gives its {outputs} to {percent}"
    elif both_ends:
        sentence = (
            f"The {window:.0f} inputs nearest to them give its {outputs} to {percent}; those between, which read both "
            "directions, were not looked at"
        )
    else:
        sentence = (
            f"The last {'input gives' if window == 1 else f'{window:.0f} inputs give'} its {outputs} to {percent}: a "
            "feed-forward network over so many inputs could replace it"
        )
    if figures.get("certified_window", math.inf) < math.inf:
        sentence += f" (proved for {figures['certified_window']:.0f})"
    if "bptt_window" not in figures:
        return f"{sentence}."
    return f"{sentence}; {_chunks_in_words(figures, percent, needs)}."


def _chunks_in_words(figures: dict[str, float], percent: str, needs: float | None) -> str:
    window, measured, steps = figures["bptt_window"], figures["bptt_window_measured"], figures["steps"]
    if measured < window and needs is not None:
        return (
            f"chunks of {measured:.0f} {_steps(measured)} give the gradient to {percent}, but the task needs "
            f"{needs:g} steps back: backpropagate through {'all' if window >= steps else 'at least'} {window:.0f}"
        )
    if window < steps:
        return f"backpropagation in chunks of {window:.0f} {_steps(window)} gives the gradient to {percent}"
    return f"backpropagation needs all {steps:.0f} steps"


def _steps(count: float) -> str:
    return "step" if count == 1 else "steps"


def _warnings(subject: Subject, figures: dict[str, float]) -> tuple[str, ...]:
    if subject.needs is None or figures["window"] >= min(subject.needs, figures["steps"]):
        return ()
    return ("outputs hardly depend on inputs as far back as the task needs: train longer, or use a longer memory",)
