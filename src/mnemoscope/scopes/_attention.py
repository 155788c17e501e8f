"""Where a self-attentive recurrence looks, and which of its past states stay in its memory."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from mnemoscope.errors import MnemoscopeError, is_whole
from mnemoscope.finding import Finding, arrays
from mnemoscope.recurrence import Attention, Screening
from mnemoscope.scopes._frame.scope import scope
from mnemoscope.scopes._frame.subject import Subject

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
    """Measure the attention that each step gives to the state of each earlier step, and how long states are kept.

    Series: `attention` (T, T), the mean over sequences of what step t (row) gives to the state made at step i (column);
    `attention_of_sequence` (T, T), of one sequence; `received` (T,), all attention that a step's state receives;
    `kept_for` (T,), the steps that it stays in memory (mean over sequences); `kept_beyond_buffer` (T,), those of them
    that it spends in the relevant set, for a layer with a buffer; `relevance` (T,), its last relevance in memory, of
    one sequence; `relevance_needed` (T,), what a state that leaves the buffer at step t must exceed to be kept, NaN
    while there is room; `kept_at_end` (slots,), the origins in that sequence's memory after the last step; `lag` (T,),
    how far back a step looks on average; `states_attended` (T,), the effective number of states it attends, exp of the
    entropy. Spread: standard deviations over sequences, under the same names.

    Figures: `mean_lag`, `longest_lag` with at least 1 % of a step's attention, `states_attended`, `beyond_buffer`, the
    fraction of attention given to states older than the buffer, `needed`, the fraction given as far back as the task
    needs.

    Args:
        layer: which layer of a stack.
        sequence: which sequence of the batch the series of one sequence show.
    """
    screening = subject.layer.screening
    buffer = None if screening is None else screening.buffer
    record = _record_run(subject, layer, sequence)

    # Series: those with a spread over sequences, and those of one sequence.
    by_sequence = {
        "received": record.received,
        "kept_for": record.kept_for,
        "lag": record.lag,
        "states_attended": record.states_attended,
    }  # (B, T) each
    if buffer is not None:
        by_sequence["kept_beyond_buffer"] = record.kept_beyond_buffer
    series = arrays(
        attention=record.mean,
        attention_of_sequence=record.of_sequence,
        relevance=record.relevance[sequence],
        kept_at_end=record.in_memory[sequence].nonzero()[:, 0],
        **{name: values.mean(0) for name, values in by_sequence.items()},
    )
    if buffer is not None:
        series |= arrays(relevance_needed=record.relevance_needed[sequence])

    figures = _figures(record, buffer, subject.needs)
    return Finding(
        "attention",
        _sentence(figures, series, subject.name),
        "estimated",
        figures=figures,
        series=series,
        spread=arrays(**{name: values.std(0, correction=0) for name, values in by_sequence.items()}),
        warnings=_warnings(figures, subject),
        assumptions=("these sequences are typical of the data",),
        method="one run step by step, attention laid out by the step at which each state was made",
    )


class _Record:
    """What is recorded during a run of T steps, on the CPU in float64; origins of states are the last dimension.

    Attributes:
        mean: (T, T), attention by step and origin, mean over sequences.
        of_sequence: (T, T), attention by step and origin, of one sequence.
        received: (B, T), the attention that each state has received.
        kept_for: (B, T), the steps that each state was in memory.
        kept_beyond_buffer: (B, T), those of them after it left the buffer.
        relevance: (B, T), the last relevance of each state in memory.
        in_memory: (B, T), 1 for each state that is in memory now.
        lag: (B, T) by step, how far back the step looks on average.
        states_attended: (B, T) by step, exp of the entropy of its attention.
        relevance_needed: (B, T) by step, what a state that leaves the buffer must exceed to be kept.
    """

    def __init__(self, steps: int, batch: int) -> None:
        self.mean = torch.zeros(steps, steps, dtype=torch.float64)
        self.of_sequence = torch.zeros_like(self.mean)
        self.received = torch.zeros(batch, steps, dtype=torch.float64)
        self.kept_for = torch.zeros_like(self.received)
        self.kept_beyond_buffer = torch.zeros_like(self.received)
        self.relevance = torch.zeros_like(self.received)
        self.in_memory = torch.zeros_like(self.received)
        self.lag = torch.zeros_like(self.received)
        self.states_attended = torch.zeros_like(self.received)
        self.relevance_needed = torch.zeros_like(self.received)

    def add(self, t: int, attention: Attention, buffer: int, sequence: int) -> None:
        """Add the attention of step t."""
        # By slot -> by the step at which the state in the slot was made; empty slots have origin -1 and add nothing.
        origin = attention.origin.cpu()
        filled = (origin >= 0).double()

        def by_origin(slots: Tensor) -> Tensor:
            return torch.zeros_like(self.received).scatter_add(1, origin.clamp(min=0), slots * filled)  # (B, T)

        weights = by_origin(attention.weights.double().cpu())
        in_memory = by_origin(filled)
        self.mean[t] = weights.mean(0)
        self.of_sequence[t] = weights[sequence]

        # By state.
        lags = (t - torch.arange(len(self.mean))).double()
        self.received += weights
        self.kept_for += in_memory
        self.kept_beyond_buffer += in_memory * (lags >= buffer)
        self.in_memory = in_memory
        if attention.relevance is not None:
            relevance = by_origin(attention.relevance.double().cpu())
            self.relevance = torch.where(in_memory > 0, relevance, self.relevance)

        # By step.
        self.lag[:, t] = (weights * lags).sum(1)
        self.states_attended[:, t] = torch.special.entr(weights).sum(1).exp()


@torch.no_grad()
def _record_run(subject: Subject, layer: int, sequence: int) -> _Record:
    inputs = subject.recurrence_inputs
    steps, batch = inputs.shape[:2]
    _check(subject, layer, sequence)
    screening = subject.layer.screening
    buffer = 0 if screening is None else screening.buffer
    record = _Record(steps, batch)
    state = subject.recurrence.initial_state(batch)
    before: Attention | None = None
    for t, x in enumerate(inputs.unbind(0)):
        record.relevance_needed[:, t] = _relevance_needed(screening, before)
        _, state, attended = subject.recurrence.observe(x, state)
        assert attended is not None  # the scope needs attention
        before = attended[layer]
        record.add(t, before, buffer, sequence)
        subject.report((t + 1) / steps)
    return record


def _relevance_needed(screening: Screening | None, before: Attention | None) -> Tensor:
    """Return the least relevance (B,) in the relevant set, as the next step weighs it; NaN while there is room."""
    nan = torch.tensor(torch.nan, dtype=torch.float64)
    if screening is None or not screening.buffer or before is None or before.relevance is None:
        return nan
    relevant = slice(screening.buffer, None)
    if before.origin[:, relevant].shape[1] == 0:
        return nan
    has_room = (before.origin[:, relevant] < 0).any(1).cpu()
    least = before.relevance[:, relevant].double().cpu().amin(1) * screening.decay
    return torch.where(has_room, nan, least)


def _check(subject: Subject, layer: int, sequence: int) -> None:
    layers, batch = subject.layer.num_layers, subject.recurrence_inputs.shape[1]
    whole = is_whole(layer) and is_whole(sequence)
    if not whole or not 0 <= layer < layers or not 0 <= sequence < batch:
        raise MnemoscopeError(
            f"attention has layers 0 to {layers - 1} and sequences 0 to {batch - 1}; got {layer!r} and {sequence!r}"
        )


def _figures(record: _Record, buffer: int | None, needs: float | None) -> dict[str, float]:
    attention = record.mean
    steps = torch.arange(len(attention))
    lags = (steps[:, None] - steps).double()  # (T, T)
    noticeable = attention >= 0.01
    figures = {
        "mean_lag": _fraction(attention * lags, attention),
        "states_attended": float(record.states_attended.mean()),
        "longest_lag": float(lags[noticeable].max()) if bool(noticeable.any()) else 0.0,
    }
    if buffer is not None:
        figures["beyond_buffer"] = _fraction(attention * (lags >= buffer), attention)
    if needs is not None:
        late = attention[int(needs) :]  # only these steps have a state so old
        figures["needed"] = _fraction(late * (lags[int(needs) :] >= needs), late)
    return figures


def _fraction(part: Tensor, whole: Tensor) -> float:
    return float(part.sum() / whole.sum()) if bool(whole.sum() > 0) else 0.0


def _sentence(figures: dict[str, float], series: dict[str, np.ndarray], name: str) -> str:
    attended, lag = figures["states_attended"], figures["mean_lag"]
    sentence = f"{name} attends to {attended:.1f} of its past states, {lag:.1f} steps back on average"
    if "beyond_buffer" in figures:
        sentence += f"; {100 * figures['beyond_buffer']:.0f} % goes to kept states older than its buffer"
    most = sorted(np.argsort(-series["received"], kind="stable")[:3])
    return f"{sentence}; the states of steps {', '.join(map(str, most))} received the most."


def _warnings(figures: dict[str, float], subject: Subject) -> tuple[str, ...]:
    if (
        figures.get("needed", 1.0) >= 0.01
        or subject.needs is None
        or subject.needs >= subject.recurrence_inputs.shape[0]
    ):
        return ()
    return ("hardly any attention goes as far back as the task needs: train longer, or keep more relevant states",)
