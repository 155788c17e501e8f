"""Where a self-attentive recurrence looks, and which of its past states it keeps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mnemoscope.errors import MnemoscopeError
from mnemoscope.finding import Finding, arrays
from mnemoscope.recurrence import Attention, Screening
from mnemoscope.scopes._frame.scope import scope
from mnemoscope.scopes._frame.subject import Subject


@dataclass(frozen=True)
class Tally:
    """What is noted while a run goes on, on the CPU in float64; steps of origin are the last dimension."""

    given: Tensor  # (T, T): attention by step and origin, mean over sequences
    shown: Tensor  # (T, T): of one sequence
    received: Tensor  # (B, T)
    kept_for: Tensor  # (B, T): steps in memory
    kept_beyond_buffer: Tensor  # (B, T): those of them after leaving the buffer
    relevance: Tensor  # (B, T): as it stood when the state was last in memory
    held: Tensor  # (B, T): in memory now
    lag: Tensor  # (B, T), by step: how far back it looks on average
    states_attended: Tensor  # (B, T), by step: exp of the entropy of its attention
    needed: Tensor  # (B, T), by step: the relevance that a state which leaves the buffer must exceed to be kept


HELP = """
Row t of the map is the attention that step t gives to the state made at each earlier step. A bright
vertical line is a state that stays useful; a bright diagonal is a look at the recent past only.

For layers with relevancy screening, states that are kept long after they leave the buffer are those
that the network found worth keeping.
"""


@scope(
    "Where does it look, and what does it keep?",
    title="Attention",
    help=HELP,
    needs="attention",
    cost=3,
)
def attention(subject: Subject, *, layer: int = 0, sequence: int = 0) -> Finding:
    """The attention that each step gives to the state of each earlier step, and how long states are kept.

    Series: `attention` (T, T), the mean over sequences of what step t (row) gives to the state made at step i (column);
    `attention_of_sequence` (T, T), of one sequence; `received` (T,), the attention that a step's state receives in all;
    `kept_for` (T,), the steps that it stays in memory (mean over sequences); `kept_beyond_buffer` (T,), those of them
    that it spends in the relevant set, for a layer with a buffer; `relevance` (T,), the score with which it was last
    judged, of one sequence; `relevance_needed` (T,), what a state that leaves the buffer at step t must exceed to be
    kept, NaN while there is room; `kept_at_end` (slots,), the origins in that sequence's memory after the last step;
    `lag` (T,), how far back a step looks on average; `states_attended` (T,), the effective number of states it attends,
    exp of the entropy. Spread: standard deviations over sequences, under the same names.

    Figures: `mean_lag`, `longest_lag` with at least 1 % of a step's attention, `states_attended`, `beyond_buffer`, the
    share of attention given to states older than the buffer, `needed`, the share given as far back as the task needs.

    Args:
        layer: which layer of a stack.
        sequence: which sequence of the batch the series of one sequence show.
    """
    tally = _watch(subject, layer, sequence)
    buffer = None if subject.layer.screening is None else subject.layer.screening.buffer
    averaged = {name: getattr(tally, name) for name in ("received", "kept_for", "lag", "states_attended")}
    if buffer is not None:
        averaged["kept_beyond_buffer"] = tally.kept_beyond_buffer
    figures = _figures(tally, buffer, subject.needs)
    series = arrays(
        attention=tally.given, attention_of_sequence=tally.shown, relevance=tally.relevance[sequence],
        kept_at_end=tally.held[sequence].nonzero()[:, 0], **{name: values.mean(0) for name, values in averaged.items()},
    ) | ({} if buffer is None else arrays(relevance_needed=tally.needed[sequence]))  # fmt: skip
    return Finding(
        "attention", _sentence(figures, series, subject.name), "estimated", figures=figures, series=series,
        spread=arrays(**{name: values.std(0, correction=0) for name, values in averaged.items()}),
        assumptions=("these sequences are typical of the data",), warnings=_warnings(figures, subject),
        method="one run step by step, attention laid out by the step at which each state was made",
    )  # fmt: skip


@torch.no_grad()
def _watch(subject: Subject, layer: int, sequence: int) -> Tally:
    drive, recurrence = subject.recurrence_inputs, subject.recurrence
    steps, batch = drive.shape[:2]
    _check(subject, layer, sequence)
    screening = subject.layer.screening
    buffer = 0 if screening is None else screening.buffer
    tally = Tally(*(torch.zeros(rows, steps, dtype=torch.float64) for rows in [steps] * 2 + [batch] * 8))
    state = recurrence.initial_state(batch)
    before: Attention | None = None
    for t, x in enumerate(drive.unbind(0)):
        tally.needed[:, t] = _needed(screening, before)
        _, state, attended = recurrence.observe(x, state)
        assert attended is not None  # the scope needs attention
        before = attended[layer]
        _note(tally, t, before, buffer, sequence)
        subject.report((t + 1) / steps)
    return tally


def _needed(screening: Screening | None, before: Attention | None) -> Tensor:
    """The least relevance (B,) in the relevant set, as it is weighed in the next step; NaN where there is room."""
    nowhere = torch.tensor(torch.nan, dtype=torch.float64)
    if screening is None or not screening.buffer or before is None or before.relevance is None:
        return nowhere
    kept = slice(screening.buffer, None)
    if before.origin[:, kept].shape[1] == 0:
        return nowhere
    room = (before.origin[:, kept] < 0).any(1).cpu()
    least = before.relevance[:, kept].double().cpu().amin(1) * screening.decay
    return torch.where(room, nowhere, least)


def _note(tally: Tally, t: int, attention: Attention, buffer: int, sequence: int) -> None:
    """Add one step's attention over slots, (B, slots), laid out by the step at which each slot's state was made."""
    weights, origin = attention.weights.double().cpu(), attention.origin.cpu()
    relevance = torch.zeros_like(weights) if attention.relevance is None else attention.relevance.cpu()
    filled, at = (origin >= 0).double(), origin.clamp(min=0)  # an empty slot has origin -1 and adds nothing
    blank = torch.zeros_like(tally.held)
    given, held = blank.scatter_add(1, at, weights * filled), blank.scatter_add(1, at, filled)  # (B, T)
    score = blank.scatter_add(1, at, relevance.double() * filled)
    lags = (t - torch.arange(held.shape[1])).double()
    tally.given[t], tally.shown[t] = given.mean(0), given[sequence]
    tally.received.add_(given)
    tally.kept_for.add_(held)
    tally.kept_beyond_buffer.add_(held * (lags >= buffer))
    tally.relevance.copy_(torch.where(held > 0, score, tally.relevance))
    tally.held.copy_(held)
    tally.lag[:, t] = (given * lags).sum(1)
    tally.states_attended[:, t] = torch.special.entr(given).sum(1).exp()


def _check(subject: Subject, layer: int, sequence: int) -> None:
    layers, batch = subject.layer.num_layers, subject.recurrence_inputs.shape[1]
    if not 0 <= layer < layers or not 0 <= sequence < batch:
        raise MnemoscopeError(
            f"attention has layers 0 to {layers - 1} and sequences 0 to {batch - 1}; got {layer} and {sequence}"
        )


def _figures(tally: Tally, buffer: int | None, needs: float | None) -> dict[str, float]:
    given = tally.given
    steps = torch.arange(len(given))
    lags = (steps[:, None] - steps).double()  # (T, T)
    figures = {
        "mean_lag": _share(given * lags, given), "states_attended": float(tally.states_attended.mean()),
        "longest_lag": float(lags[given >= 0.01].max()) if bool((given >= 0.01).any()) else 0.0,
    }  # fmt: skip
    if buffer is not None:
        figures["beyond_buffer"] = _share(given * (lags >= buffer), given)
    if needs is not None:
        late = given[int(needs) :]  # only these steps have a state so old
        figures["needed"] = _share(late * (lags[int(needs) :] >= needs), late)
    return figures


def _share(part: Tensor, whole: Tensor) -> float:
    return float(part.sum() / whole.sum()) if bool(whole.sum() > 0) else 0.0


def _sentence(figures: dict[str, float], series: dict[str, np.ndarray], name: str) -> str:
    attended, lag = figures["states_attended"], figures["mean_lag"]
    said = f"{name} attends to {attended:.1f} of its past states, {lag:.1f} steps back on average"
    if "beyond_buffer" in figures:
        said += f"; {100 * figures['beyond_buffer']:.0f} % goes to kept states older than its buffer"
    most = np.argsort(-series["received"], kind="stable")[:3]
    return f"{said}; most of it went to the states of steps {', '.join(str(int(step)) for step in sorted(most))}."


def _warnings(figures: dict[str, float], subject: Subject) -> tuple[str, ...]:
    if (
        figures.get("needed", 1.0) >= 0.01
        or subject.needs is None
        or subject.needs >= subject.recurrence_inputs.shape[0]
    ):
        return ()
    return ("hardly any attention goes as far back as the task needs: train longer, or keep more relevant states",)
