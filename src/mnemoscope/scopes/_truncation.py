"""How short a window may be: what is lost if a model sees, or learns from, its last k inputs alone."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from mnemoscope.errors import MnemoscopeError, check_count, is_number
from mnemoscope.finding import Finding, arrays
from mnemoscope.scopes._frame.scope import not_applicable, scope
from mnemoscope.scopes._frame.subject import Subject
from mnemoscope.scopes._measures.chunks import GROUPS, Chunks, by_weights, norm, relative_error
from mnemoscope.scopes._measures.counters import LateStarts
from mnemoscope.scopes._measures.decay import fit_line
from mnemoscope.scopes._measures.outputs_of_windows import Outputs, windows_of_sequences
from mnemoscope.scopes._measures.truncation_bounds import truncation_bounds
from mnemoscope.scopes._measures.windows import range_in_words, shortest, widened
from mnemoscope.wording import counted

COARSE = 10  # times the error: the shorter chunk for it is given too
LAYER_ALONE = "its recurrent layer alone"

HELP = """
“Outputs” compares a run over the last k inputs with the run over all of them. The window is safe
from where its curve stays under the 1 % line.

“Backpropagation in chunks” is truncated BPTT as it is used in training: the sequence is cut into
chunks of k steps, the state is carried on from chunk to chunk, the gradient is not. Its error is
that of the gradient of the loss at every step, against backpropagation through the whole sequence.
It falls slowly: the first steps of every chunk always lose what came before. Training bears more
than 1 %, which is why the chunk for 10 % is given too.

Where a bound is drawn it holds for every sequence whose inputs are no larger, not only for these.
"""


WITHOUT_GRADIENT = {
    "": "",
    "zero": "; no gradient of the loss reaches its weights",
    "not finite": "; the gradient of the loss overflows, so that no chunks can be compared with it",
}
"""What the sentence says of chunks where there are none, by the label `gradient`."""


@scope(
    "How short may a window be, for predictions and for training?",
    title="Safe window",
    help=HELP,
    needs=("outputs", "deterministic", "apart"),
    cost=30,
)
def truncation(
    subject: Subject, *, error: float = 0.01, windows: int = 24, rate: float = 0.01, updates: int = 200
) -> Finding:
    """Find the shortest window that gives the last output, and the shortest chunk that gives the gradient, to `error`.

    Outputs: the window of the last k inputs read from a fresh state (Miller & Hardt 2018, eq. 3), whose counters of
    steps have gone on, against the whole sequence; of a model that reads later inputs too, also the first output
    from the first k inputs. Bounded, for layers that `stability` certifies, with every constant computed. Gradients
    are by the recurrent layer's weights.

    Series over the windows tried, `window` (K,): `output_error`, ||y_T - y_T^k|| of the worst sequence, and
    `typical_output_error`, the median, relative to the median ||y_T||; `bptt_error`, of backpropagation in chunks of k
    steps, the last a whole one, between which the state is carried on and detached, relative to the whole gradient of
    the loss at every step: the given one if the recurrence is the whole model, else the mean of 1/2 ||y_t||^2;
    `gradient_error`, of the model that sees the last k inputs alone, for 1/2 ||y_T||^2; `output_bound` (Proposition 1)
    and `gradient_bound` (Lemma 2, corrected, for `gradient_error`) on the same scales, if certified.

    Figures: `window`, the shortest from which on outputs stay within `error`, found by bisection between the windows
    tried; `window_of_some_lengths`, the shortest tried that does, if some lengths do and longer ones do not;
    `output_variation`, the median distance of these outputs from their mean over sequences, relative to their size, if
    the sequences differ; `gradient_window`, as `window` for `gradient_error`; `bptt_window`, the same for chunks, but
    never below what the task needs; `bptt_window_measured`, without regard to that; `bptt_window_coarse`, that for ten
    times the `error`, if that is below 1; `certified_window` (Proposition 1) and `trained_window` (Theorem 1, for
    the given updates of size rate / t; a proof only if training keeps the weights as stable and as small as they are
    now); `lambda_fit` of k lambda^k fitted to `gradient_error`; `steps`, the length of the sequences; `error`, as
    given. Spread: of `window`, 5 % and 95 % quantiles over sequences; of `bptt_window` and `bptt_window_measured`, the
    least and the largest over four groups of sequences, each with its part of the gradient, looked for near that of
    all. Labels: `ends`, which outputs were looked at; `loss`; `gradient_of`, the model or its layer; `over`, how many
    groups; `gradient`, "zero" or "not finite", if there is none to compare with.

    Args:
        error: the relative difference that is allowed.
        windows: how many window lengths are tried, in equal ratios from 1 to the length of the sequences.
        rate: the step size of the training that Theorem 1 is asked about: update t has rate / t.
        updates: of that training.
    """
    subject.check_steps(2)
    check_count("windows", windows, 2)
    check_count("updates", updates)
    if not (is_number(error) and 0 < error < 1):
        raise MnemoscopeError(f"error must lie between 0 and 1; got {error!r}")
    if not (is_number(rate) and rate > 0):
        raise MnemoscopeError(f"rate must be above 0; got {rate!r}")
    subject.check_finite_outputs()
    lengths = np.unique(np.geomspace(1, subject.steps, windows).round().astype(int))
    bounds = truncation_bounds(subject)

    # Outputs: the last k inputs from a fresh state, against the whole sequence.
    late_start = LateStarts(subject)
    outputs = Outputs(subject, 2 if bounds is None else bounds.order, late_start)
    if outputs.size == 0:
        why = f"the outputs of {subject.name} are zero on these inputs, whatever window they are made from"
        return not_applicable("truncation", why)
    lengths = np.unique([outputs.aligned(int(k)) for k in lengths])
    errors = torch.stack([outputs.errors(int(k)) for k in lengths])  # (K, B)
    if bool(errors[:-1].isinf().all()):
        return not_applicable("truncation", f"{subject.name} does not read shorter sequences than these")
    series = arrays(window=lengths, output_error=errors.amax(1), typical_output_error=errors.quantile(0.5, 1))
    window = shortest(lengths, series["output_error"], error, lambda k: float(outputs.errors(k).max()))
    window = window if math.isinf(window) else float(outputs.aligned(int(window)))
    figures = {"window": window, "steps": float(subject.steps), "error": error}
    enough = lengths[:-1][series["output_error"][:-1] <= error]
    if not window < subject.steps and len(enough):  # as within blocks: windows between these begin elsewhere
        figures["window_of_some_lengths"] = float(enough[0])
    if bool((subject.features != subject.features[:, :1]).any()):
        figures["output_variation"] = outputs.variation
    spread = {}
    if subject.batch > 1 and window < math.inf:
        spread["window"] = widened(windows_of_sequences(outputs, int(window), lengths, error), window)
    labels: dict[str, str | list[str]] = {"ends": "first and last" if outputs.both_ends else "last"}
    subject.report(0.4)

    # Gradients by the weights, if there are any; not if the layer reads sequences of another length than the model.
    gradients = _Gradients()
    weights = [] if subject.missing("step") else _weights(subject)
    if weights and len(subject.recurrence_inputs) == subject.steps:
        gradients = _measure_gradients(subject, weights, lengths, error, late_start)
    series |= gradients.series
    figures |= gradients.figures
    spread |= gradients.spread
    labels |= gradients.labels

    # What is proved, on the same scales.
    if bounds is not None:
        series |= bounds.bounds(lengths, outputs.size, gradients.size)
        bounds.check(subject, series, outputs.size)
        figures |= bounds.windows(error * outputs.size, rate, updates)
    tried = "windows and chunks" if gradients.figures else "windows"
    return Finding(
        "truncation",
        _sentence(figures, spread, labels, error, subject.needs),
        "estimated",  # the windows of the sentence are measured; those that are proved are marked
        why="" if bounds is None else f"bounds: {bounds.condition}",
        figures=figures,
        certified=("certified_window",) if bounds is not None else (),
        series=series,
        spread=spread,
        labels=labels,
        warnings=_warnings(subject, figures),
        assumptions=_assumptions(bounds is not None, figures),
        method=f"{len(lengths)} {tried} of k steps against the whole sequence, then bisection",
    )


def _assumptions(bounded: bool, figures: dict[str, float]) -> tuple[str, ...]:
    if not bounded:
        return ("these sequences are typical",)
    assumptions = ["inputs are no larger than these"]
    if "trained_window" in figures:
        assumptions.append("trained_window: training keeps the weights as stable and as small as they are now")
    return tuple(assumptions)


def _weights(subject: Subject) -> list[Tensor]:
    return [
        parameter for parameter in subject.layer.parameters() if parameter.is_floating_point() or parameter.is_complex()
    ]


@dataclass(frozen=True)
class _Gradients:
    """Errors and windows of a truncated model's gradient and of chunks, and the size of the last output's gradient."""

    size: float = math.nan
    series: dict[str, np.ndarray] = field(default_factory=dict)
    figures: dict[str, float] = field(default_factory=dict)
    spread: dict[str, np.ndarray] = field(default_factory=dict)
    labels: dict[str, str | list[str]] = field(default_factory=dict)


def _measure_gradients(
    subject: Subject, weights: list[Tensor], lengths: np.ndarray, error: float, late_start: LateStarts
) -> _Gradients:
    for weight in weights:
        weight.requires_grad_()
    whole_last = _last_gradient(subject, weights, subject.steps, late_start)
    chunks = Chunks(subject, weights)
    whole_model = subject.adapted.recurrence_is_model
    labels: dict[str, str | list[str]] = {
        "loss": chunks.loss,
        "gradient_of": "the model" if whole_model else LAYER_ALONE,
    }
    for gradient in (chunks.whole, whole_last):
        if not 0 < float(gradient.norm()) < math.inf:  # there is nothing to compare chunks with
            return _Gradients(labels=labels | {"gradient": "zero" if not bool(gradient.any()) else "not finite"})

    def fresh_error(k: int) -> float:
        return relative_error(_last_gradient(subject, weights, k, late_start), whole_last)

    # Errors of all lengths tried, and the windows between them.
    fresh, chunked = [], []
    for i, k in enumerate(map(int, lengths)):
        subject.report(0.4 + 0.4 * i / len(lengths))
        fresh.append(fresh_error(k))
        chunked.append(chunks.error(k))
    series = arrays(gradient_error=fresh, bptt_error=chunked)
    measured = shortest(lengths, series["bptt_error"], error, chunks.error)
    figures = {
        "gradient_window": shortest(lengths, series["gradient_error"], error, fresh_error),
        "bptt_window": _at_least_the_need(measured, subject),
        "bptt_window_measured": measured,
        "lambda_fit": _fit_lambda(lengths, series["gradient_error"]),
    }
    if COARSE * error < 1:
        figures["bptt_window_coarse"] = shortest(lengths, series["bptt_error"], COARSE * error, chunks.error)

    # What groups of sequences make of the chunks alone.
    subject.report(0.8)
    spread = {}
    windows = chunks.windows_of_groups(int(measured), lengths, error) if measured < math.inf else np.empty(0)
    if len(windows) > 1:
        low, high = min(windows.min(), measured), max(windows.max(), measured)
        spread["bptt_window_measured"] = np.array([low, high])
        spread["bptt_window"] = np.array([_at_least_the_need(window, subject) for window in (low, high)])
        labels["over"] = f"{len(windows)} {'sequences' if subject.batch <= GROUPS else 'groups of sequences'}"
    return _Gradients(norm(whole_last), series, figures, spread, labels)


def _at_least_the_need(window: float, subject: Subject) -> float:
    """Return the window, but no less than a chunk that holds an input and the output that needs it."""
    if subject.needs is None:
        return window
    return max(window, min(subject.needs + 1, float(subject.steps)))


def _last_gradient(subject: Subject, weights: list[Tensor], k: int, late_start: LateStarts) -> Tensor:
    """Return the gradient of 1/2 ||y_T||^2 by the weights, through the last k steps from a fresh state."""
    x = subject.recurrence_inputs
    y = subject.recurrence(x[-k:], late_start(len(x) - k))[0][-1]
    return by_weights(y.square().sum() / (2 * len(y)), weights)


def _fit_lambda(lengths: np.ndarray, errors: np.ndarray) -> float:
    """Fit lambda of a k lambda^k (Lemma 2's form) to the errors, in logarithms."""
    usable = (errors > 1e-12) & np.isfinite(errors)
    if usable.sum() < 3:
        return math.nan
    slope, _ = fit_line(lengths[usable], np.log(errors[usable] / lengths[usable]))
    return math.exp(slope)


def _sentence(
    figures: dict[str, float],
    spread: dict[str, np.ndarray],
    labels: dict[str, str | list[str]],
    error: float,
    needs: float | None,
) -> str:
    window, steps = figures["window"], figures["steps"]
    percent = f"{100 * error:g} %"
    both = labels["ends"] == "first and last"
    outputs = "first and last outputs" if both else "last output"
    over = range_in_words(spread.get("window"), "sequences")
    if window < steps and figures.get("output_variation", math.inf) <= 2 * error:
        depend, they_vary, their = ("depend", "they vary", "their") if both else ("depends", "it varies", "its")
        sentence = (
            f"Its {outputs} hardly {depend} on the inputs: from sequence to sequence {they_vary} by "
            f"{figures['output_variation']:.2g} of {their} size, so no window can be found"
        )
    elif not window < steps and "window_of_some_lengths" in figures:
        enough = counted(figures["window_of_some_lengths"], "input")
        sentence = (
            f"The last {enough} give its {outputs} to {percent}, as do windows of some other lengths, but not all "
            "longer ones: it matters where they begin"
        )
    elif not window < steps:
        sentence = f"No window shorter than the {steps:.0f} steps looked at gives its {outputs} to {percent}{over}"
    elif both:
        sentence = (
            f"Its {outputs} are given to {percent} by the {window:.0f} inputs nearest to each{over}; those between, "
            "which read both directions, were not looked at"
        )
    else:
        inputs = f"input{over} gives" if window == 1 else f"{window:.0f} inputs{over} give"
        sentence = f"The last {inputs} its {outputs} to {percent}"
        if window <= steps / 2:  # a window of nearly all steps may be longer in longer sequences
            sentence += ": a feed-forward network over so many inputs could replace it"
    proved = figures.get("certified_window", math.inf)
    if proved < math.inf:
        sentence += f" (proved for {proved:.0f})" if window < steps else f"; {proved:.0f} are proved to be enough"
    if "bptt_window" not in figures:
        return f"{sentence}{WITHOUT_GRADIENT[str(labels.get('gradient', ''))]}."
    over = range_in_words(spread.get("bptt_window_measured"), str(labels.get("over", "")))
    gradient = "its recurrent layer's own gradient" if labels.get("gradient_of") == LAYER_ALONE else "the gradient"
    return f"{sentence}; {_chunks_in_words(figures, over, gradient, error, needs)}."


def _chunks_in_words(figures: dict[str, float], over: str, gradient: str, error: float, needs: float | None) -> str:
    window, measured, steps = figures["bptt_window"], figures["bptt_window_measured"], figures["steps"]
    coarse = figures.get("bptt_window_coarse", math.inf)
    percent, coarsely = f"{100 * error:g} %", f"{100 * COARSE * error:g} %"
    if measured < window and needs is not None:
        return (
            f"chunks of {counted(measured, 'step')}{over} give {gradient} to {percent}, but the task needs "
            f"{needs:g} steps back: backpropagate through {'all' if window >= steps else 'at least'} {window:.0f}"
        )
    if window < steps:
        chunks = f"backpropagation in chunks of {counted(window, 'step')}{over} gives {gradient} to {percent}"
    else:
        chunks = f"no chunks shorter than the {steps:.0f} steps{over} give {gradient} to {percent}"
    return f"{chunks}; those of {coarse:.0f} give it to {coarsely}" if coarse < min(window, steps) else chunks


def _warnings(subject: Subject, figures: dict[str, float]) -> tuple[str, ...]:
    # The input k steps back is in windows of k + 1 inputs and more.
    if subject.needs is None or figures["window"] >= min(subject.needs + 1, figures["steps"]):
        return ()
    return ("outputs hardly depend on inputs as far back as the task needs: train longer, or use a longer memory",)
