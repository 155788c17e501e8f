"""How short a window does: what is lost when a model sees, or learns from, its last k inputs alone."""

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
from mnemoscope.scopes._measures.truncation_bounds import promise_of

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
    """The shortest window k with which the last output, and its gradient, come out the same up to `error`.

    Measured against the run over the whole sequence, for the window of the last k inputs read from a fresh state
    (Miller & Hardt 2018, eq. 3); and bounded, for layers that `stability` certifies, with every constant computed.
    Gradients are by the recurrent layer's weights, of the loss 1/2 ||y_T||^2 averaged over sequences.

    Series over the windows tried, `window` (K,): `output_error`, ||y_T - y_T^k|| of the worst sequence, and
    `typical_output_error`, the median, relative to the median ||y_T||; `gradient_error`, of the truncated model, and
    `bptt_error`, of backpropagation cut k steps back in a state that was carried on, relative to the whole gradient;
    `output_bound` (Proposition 1) and `gradient_bound` (Lemma 2, corrected) on the same scales, where certified.

    Figures: `window`, the shortest tried from which on outputs keep within `error`; `gradient_window`, `bptt_window`,
    the same for gradients; `certified_window` (Proposition 1) and `trained_window` (Theorem 1, for `updates` steps of
    size rate / t); `lambda_fit` of k lambda^k fitted to the gradient error; `steps`, the length of the sequences.

    Args:
        error: relative size of the difference that is allowed.
        windows: how many window lengths are tried, in equal ratios from 1 to the length of the sequences.
        rate, updates: the training that Theorem 1 is asked about.
    """
    if not 0 < error < 1 or windows < 2 or subject.steps < 2:
        raise MnemoscopeError(
            f"truncation needs 0 < error < 1, at least 2 windows and 2 steps; got {error}, {windows}, {subject.steps}"
        )
    lengths = np.unique(np.geomspace(1, subject.steps, windows).round().astype(int))
    promise = promise_of(subject)
    size, errors = _outputs(subject, lengths, 2 if promise is None else promise.order)
    worst, typical = errors.amax(1) / size, errors.quantile(0.5, 1) / size
    series = arrays(window=lengths, output_error=worst, typical_output_error=typical)
    figures = {"window": _shortest(lengths, series["output_error"], error), "steps": float(subject.steps)}
    subject.report(0.4)
    whole = math.nan
    if (
        not subject.missing("step") and len(subject.recurrence_inputs) == subject.steps
    ):  # not so where the layer runs over the batch
        whole, more = _gradients(subject, lengths)
        series |= more
        figures["gradient_window"] = _shortest(lengths, series["gradient_error"], error)
        figures["bptt_window"] = _shortest(lengths, series["bptt_error"], error)
        figures["lambda_fit"] = _fitted_lambda(lengths, series["gradient_error"])
    if promise is not None:
        series |= promise.bounds(lengths, size, whole)
        figures |= promise.windows(error * size, rate, updates)
    return Finding(
        "truncation", _sentence(figures, error), "estimated" if promise is None else "certified",
        "" if promise is None else promise.condition, figures, series, warnings=_warnings(subject, figures),
        assumptions=("these sequences are typical" if promise is None else "inputs are no larger than these",),
        method=f"{len(lengths)} windows of the last k inputs, against the whole sequence",
    )  # fmt: skip


@torch.no_grad()
def _outputs(subject: Subject, lengths: np.ndarray, order: float) -> tuple[float, Tensor]:
    """The typical size of the last output, and its error (K, B) for each window."""
    y = subject.run(subject.features)[-1].double()  # (B, m)
    cut = [subject.run(subject.features[-int(k) :])[-1].double() for k in lengths]
    size = float(torch.linalg.vector_norm(y, ord=order, dim=-1).quantile(0.5))
    errors = torch.stack([torch.linalg.vector_norm(y - y_k, ord=order, dim=-1) for y_k in cut])
    return max(size, torch.finfo(torch.float64).tiny), errors.cpu()


def _gradients(subject: Subject, lengths: np.ndarray) -> tuple[float, dict[str, np.ndarray]]:
    """The size of the whole gradient, and the relative errors of the truncated model's and of a truncated pass."""
    for parameter in subject.layer.parameters():
        parameter.requires_grad_()
    whole = _gradient(subject, subject.steps, None)
    states = _states_before(subject, lengths)
    size = max(float(whole.norm()), torch.finfo(whole.dtype).tiny)
    truncated, cut = [], []
    for i, k in enumerate(lengths):
        subject.report(0.4 + 0.6 * i / len(lengths))
        truncated.append(float((_gradient(subject, int(k), None) - whole).norm()) / size)
        cut.append(float((_gradient(subject, int(k), states[int(k)]) - whole).norm()) / size)
    return size, arrays(gradient_error=truncated, bptt_error=cut)


def _gradient(subject: Subject, k: int, state: State | None) -> Tensor:
    """The gradient of 1/2 ||y_T||^2 by the layer's weights, through the last k steps, from a state or a fresh one."""
    y = subject.recurrence(subject.recurrence_inputs[-k:], state)[0][-1]
    weights = list(subject.layer.parameters())
    found = torch.autograd.grad(y.square().sum() / (2 * len(y)), weights, allow_unused=True, materialize_grads=True)
    return torch.cat([g.flatten() for g in found]).double()


@torch.no_grad()
def _states_before(subject: Subject, lengths: np.ndarray) -> dict[int, State]:
    """The states in which the last k steps begin, cut from the graph, by k."""
    state, states, done = subject.recurrence.initial_state(subject.recurrence_inputs.shape[1]), {}, 0
    for k in sorted(map(int, lengths), reverse=True):
        begin = subject.steps - k
        if begin > done:
            state, done = subject.recurrence(subject.recurrence_inputs[done:begin], state)[1], begin
        states[k] = detach(state)
    return states


def _shortest(lengths: np.ndarray, errors: np.ndarray, allowed: float) -> float:
    """The least window from which on no error exceeds what is allowed."""
    too_large = np.nonzero(~(errors <= allowed))[0]
    following = int(too_large[-1]) + 1 if len(too_large) else 0
    return float(lengths[following]) if following < len(lengths) else math.inf


def _fitted_lambda(lengths: np.ndarray, errors: np.ndarray) -> float:
    """lambda of a k lambda^k through the errors (Lemma 2's form), in logarithms."""
    usable = (errors > 1e-12) & np.isfinite(errors)
    if usable.sum() < 3:
        return math.nan
    return float(np.exp(np.polyfit(lengths[usable], np.log(errors[usable] / lengths[usable]), 1)[0]))


def _sentence(figures: dict[str, float], error: float) -> str:
    window, steps = figures["window"], figures["steps"]
    if window < steps:
        said = f"The last {window:.0f} inputs give its outputs to {100 * error:g} %: a feed-forward net that deep"
    else:
        said = f"No window shorter than the {steps:.0f} steps looked at gives its outputs to {100 * error:g} %"
    if figures.get("certified_window", math.inf) < math.inf:
        said += f" (proved for {figures['certified_window']:.0f})"
    if "bptt_window" not in figures:
        return f"{said}."
    if figures["bptt_window"] < steps:
        return f"{said}; backpropagation may be cut after {figures['bptt_window']:.0f} steps."
    return f"{said}; backpropagation needs all of them."


def _warnings(subject: Subject, figures: dict[str, float]) -> tuple[str, ...]:
    if subject.needs is None or figures["window"] >= min(subject.needs, figures["steps"]):
        return ()
    return ("outputs hardly depend on inputs as far back as the task needs: train longer, or use a longer memory",)
