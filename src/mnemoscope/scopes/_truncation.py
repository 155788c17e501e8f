"""How short a window may be: what is lost if a model sees, or learns from, its last k inputs alone."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from mnemoscope.errors import MnemoscopeError
from mnemoscope.finding import Finding, arrays
from mnemoscope.recurrence import State, detach
from mnemoscope.scopes._frame.scope import scope
from mnemoscope.scopes._frame.subject import Subject
from mnemoscope.scopes._measures.truncation_bounds import truncation_bounds

HELP = """
Each curve compares a run over the last k inputs with the run over all of them. The window is safe
from where its curve stays under the 1 % line.

“Backpropagation cut” is what truncated BPTT does: the state is carried on, the gradient is not.
Where a bound is drawn it holds for every sequence whose inputs are no larger, not only for these.
"""


@scope(
    "How short may a window be, for predictions and for training?",
    title="Safe window",
    help=HELP,
    needs="outputs",
    cost=30,
)
def truncation(
    subject: Subject, *, error: float = 0.01, windows: int = 24, rate: float = 0.01, updates: int = 200
) -> Finding:
    """Find the shortest window k with which the last output, and its gradient, are the same up to `error`.

    Measured against the run over the whole sequence, for the window of the last k inputs read from a fresh state
    (Miller & Hardt 2018, eq. 3). Bounded, for layers that `stability` certifies, with every constant computed.
    Gradients are by the recurrent layer's weights, of the loss 1/2 ||y_T||^2 averaged over sequences.

    Series over the windows tried, `window` (K,): `output_error`, ||y_T - y_T^k|| of the worst sequence, and
    `typical_output_error`, the median, relative to the median ||y_T||; `gradient_error`, of the truncated model, and
    `bptt_error`, of backpropagation cut k steps back from a state that was carried on, relative to the whole gradient;
    `output_bound` (Proposition 1) and `gradient_bound` (Lemma 2, corrected) on the same scales, if certified.

    Figures: `window`, the shortest one tried from which on outputs stay within `error`; `gradient_window`,
    `bptt_window`, the same for gradients; `certified_window` (Proposition 1) and `trained_window` (Theorem 1, for
    `updates` steps of size rate / t); `lambda_fit` of k lambda^k fitted to the gradient error; `steps`, the length of
    the sequences.

    Args:
        error: the relative difference that is allowed.
        windows: how many window lengths are tried, in equal ratios from 1 to the length of the sequences.
        rate, updates: the training that Theorem 1 is asked about.
    """
    if not 0 < error < 1 or windows < 2 or subject.steps < 2:
        raise MnemoscopeError(
            f"truncation needs 0 < error < 1, at least 2 windows and 2 steps; got {error}, {windows}, {subject.steps}"
        )
    lengths = np.unique(np.geomspace(1, subject.steps, windows).round().astype(int))
    bounds = truncation_bounds(subject)

    # Outputs: the last k inputs from a fresh state, against the whole sequence.
    size, errors = _output_errors(subject, lengths, 2 if bounds is None else bounds.order)
    worst = errors.amax(1) / size
    typical = errors.quantile(0.5, 1) / size
    series = arrays(window=lengths, output_error=worst, typical_output_error=typical)
    figures = {"window": _shortest(lengths, series["output_error"], error), "steps": float(subject.steps)}
    subject.report(0.4)

    # Gradients by the weights; not if the layer runs over the batch, so that its inputs have other lengths.
    gradient_size = math.nan
    if not subject.missing("step") and len(subject.recurrence_inputs) == subject.steps:
        gradient_size, gradient_series = _gradient_errors(subject, lengths)
        series |= gradient_series
        figures["gradient_window"] = _shortest(lengths, series["gradient_error"], error)
        figures["bptt_window"] = _shortest(lengths, series["bptt_error"], error)
        figures["lambda_fit"] = _fit_lambda(lengths, series["gradient_error"])

    # What is proved, on the same scales.
    if bounds is not None:
        series |= bounds.bounds(lengths, size, gradient_size)
        figures |= bounds.windows(error * size, rate, updates)
    return Finding(
        "truncation",
        _sentence(figures, error),
        "estimated",  # the windows of the sentence are measured; those that are proved are marked
        why="" if bounds is None else f"bounds: {bounds.condition}",
        figures=figures,
        certified=tuple(name for name in ("certified_window", "trained_window") if name in figures),
        series=series,
        warnings=_warnings(subject, figures),
        assumptions=("these sequences are typical" if bounds is None else "inputs are no larger than these",),
        method=f"{len(lengths)} windows of the last k inputs, against the whole sequence",
    )


@torch.no_grad()
def _output_errors(subject: Subject, lengths: np.ndarray, order: float) -> tuple[float, Tensor]:
    """Return the median norm of the last output, and its error (K, B) for each window."""
    y = subject.run(subject.features)[-1].double()  # (B, m)
    truncated = [subject.run(subject.features[-int(k) :])[-1].double() for k in lengths]
    size = float(torch.linalg.vector_norm(y, ord=order, dim=-1).quantile(0.5))
    errors = torch.stack([torch.linalg.vector_norm(y - y_k, ord=order, dim=-1) for y_k in truncated])
    return max(size, torch.finfo(torch.float64).tiny), errors.cpu()


def _gradient_errors(subject: Subject, lengths: np.ndarray) -> tuple[float, dict[str, np.ndarray]]:
    """Return the norm of the whole gradient, and the relative errors of a truncated model and of truncated BPTT."""
    for parameter in subject.layer.parameters():
        parameter.requires_grad_()
    whole = _gradient(subject, subject.steps, None)
    states = _states_before(subject, lengths)
    size = max(float(whole.norm()), torch.finfo(whole.dtype).tiny)
    fresh_errors = []  # the truncated model: from a fresh state
    bptt_errors = []  # truncated BPTT: from the state that was carried on
    for i, k in enumerate(map(int, lengths)):
        subject.report(0.4 + 0.6 * i / len(lengths))
        fresh_errors.append(float((_gradient(subject, k, None) - whole).norm()) / size)
        bptt_errors.append(float((_gradient(subject, k, states[k]) - whole).norm()) / size)
    return size, arrays(gradient_error=fresh_errors, bptt_error=bptt_errors)


def _gradient(subject: Subject, k: int, state: State | None) -> Tensor:
    """Return the gradient of 1/2 ||y_T||^2 by the layer's weights, through the last k steps from the given state."""
    y = subject.recurrence(subject.recurrence_inputs[-k:], state)[0][-1]
    loss = y.square().sum() / (2 * len(y))
    weights = list(subject.layer.parameters())
    gradients = torch.autograd.grad(loss, weights, allow_unused=True, materialize_grads=True)
    return torch.cat([gradient.flatten() for gradient in gradients]).double()


@torch.no_grad()
def _states_before(subject: Subject, lengths: np.ndarray) -> dict[int, State]:
    """Return the states in which the last k steps begin, detached, by k."""
    state = subject.recurrence.initial_state(subject.recurrence_inputs.shape[1])
    states = {}
    done = 0
    for k in sorted(map(int, lengths), reverse=True):
        begin = subject.steps - k
        if begin > done:
            state = subject.recurrence(subject.recurrence_inputs[done:begin], state)[1]
            done = begin
        states[k] = detach(state)
    return states


def _shortest(lengths: np.ndarray, errors: np.ndarray, allowed: float) -> float:
    """Return the shortest window from which on no error exceeds what is allowed; infinity if there is none."""
    too_large = np.nonzero(~(errors <= allowed))[0]
    following = int(too_large[-1]) + 1 if len(too_large) else 0
    return float(lengths[following]) if following < len(lengths) else math.inf


def _fit_lambda(lengths: np.ndarray, errors: np.ndarray) -> float:
    """Fit lambda of a k lambda^k (Lemma 2's form) to the errors, in logarithms."""
    usable = (errors > 1e-12) & np.isfinite(errors)
    if usable.sum() < 3:
        return math.nan
    slope = np.polyfit(lengths[usable], np.log(errors[usable] / lengths[usable]), 1)[0]
    return float(np.exp(slope))


def _sentence(figures: dict[str, float], error: float) -> str:
    window, steps = figures["window"], figures["steps"]
    if window < steps:
        sentence = (
            f"The last {window:.0f} inputs give its outputs to {100 * error:g} %: a feed-forward network over so many "
            "inputs could replace it"
        )
    else:
        sentence = f"No window shorter than the {steps:.0f} steps looked at gives its outputs to {100 * error:g} %"
    if figures.get("certified_window", math.inf) < math.inf:
        sentence += f" (proved for {figures['certified_window']:.0f})"
    if "bptt_window" not in figures:
        return f"{sentence}."
    if figures["bptt_window"] < steps:
        return f"{sentence}; backpropagation may be cut after {figures['bptt_window']:.0f} steps."
    return f"{sentence}; backpropagation needs all of them."


def _warnings(subject: Subject, figures: dict[str, float]) -> tuple[str, ...]:
    if subject.needs is None or figures["window"] >= min(subject.needs, figures["steps"]):
        return ()
    return ("outputs hardly depend on inputs as far back as the task needs: train longer, or use a longer memory",)
