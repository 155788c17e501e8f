"""Jacobians of a model's outputs by all inputs and states before them: every lag in one backward pass."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from mnemoscope.scopes._frame.subject import Subject
from mnemoscope.scopes._measures.rounding import is_quantized, rounding
from mnemoscope.scopes._measures.run_states import run_with_states

ENDS = 4  # output steps that are differentiated
ROWS = 64  # copies of sequences that run at once, if the batch is smaller: more of them, more directions


@dataclass(frozen=True)
class JacobianNorms:
    """Norms of Jacobians by lag, (T, samples), lag 0 first; NaN at lags before the sequence begins.

    Samples are the pairs of an output step and a sequence. `spectral` only if all output directions were used. Where
    some outputs depend on no input at all, as those of padding, their samples are NaN, and T is how many lags the
    others have.

    Attributes:
        ends: (end steps per sequence, B), the output step of each sample.
        measured: by "gradients", or by "changes" of the inputs where there is no gradient.
        reads_later: True if an output before the last step depends on later inputs.
        one_output: True if there is one output per sequence.
    """

    frobenius: np.ndarray
    spectral: np.ndarray | None
    ends: np.ndarray
    measured: str = "gradients"
    reads_later: bool = False
    one_output: bool = False

    @property
    def silent(self) -> np.ndarray:
        """(samples,): True where an output depends on no input."""
        silent: np.ndarray = np.isnan(self.frobenius).all(0)
        return silent

    def without_silent(self) -> JacobianNorms:
        """Return the norms with NaN for outputs that depend on no input, if there are others."""
        felt = np.nanmax(self.frobenius, axis=0) > 0
        if felt.all() or not felt.any():
            return self
        lags = int(self.ends.flatten()[felt].max()) + 1
        kept = [None if norms is None else np.where(felt, norms[:lags], np.nan) for norms in self._all]
        assert kept[0] is not None
        return replace(self, frobenius=kept[0], spectral=kept[1])

    @property
    def _all(self) -> tuple[np.ndarray, np.ndarray | None]:
        return self.frobenius, self.spectral


@dataclass(frozen=True)
class Probes:
    """Which outputs are differentiated: copies of the batch, each with its output steps and its directions.

    Rows of a run are (pairs, directions, batch), flattened; row (i, j, b) looks at the output of sequence b at the step
    ends[(i + b) % len(ends)], so that a large batch sees every end step without being copied.

    Attributes:
        ends: output steps, the last first.
        pairs: end steps per sequence.
        directions: orthonormal output directions per end step and sequence.
    """

    ends: tuple[int, ...]
    pairs: int
    directions: int
    batch: int

    @property
    def copies(self) -> int:
        return self.pairs * self.directions

    def end_of_sample(self) -> Tensor:
        """(pairs, batch): the output step of every sample."""
        numbers = torch.arange(self.pairs)[:, None] + torch.arange(self.batch)
        return torch.tensor(self.ends)[numbers % len(self.ends)]


def by_inputs(subject: Subject, directions: int | None = None, ends: int = ENDS) -> JacobianNorms:
    """Return ||d output_t / d input_{t-k}||: total, through whatever the model does in between.

    If the model has fewer or more output steps than inputs, its last output is differentiated, and lags are counted
    from the last input that it reads. Where no gradient leads to the inputs, as in a quantized model, inputs are
    changed instead: ||change of output_t|| / ||change of input_{t-k}||.
    """
    with torch.no_grad():
        outputs = subject.run(subject.features[:, :2])  # for its shape; of two, as some models squeeze a batch of one
    every_step = len(outputs) == subject.steps
    probes = _probes(subject.features, outputs.shape[-1], directions, ends if every_step else 1)
    x = _repeat_batch(subject.features, probes.copies).requires_grad_()
    y = subject.run(x)  # (T, copies * B, m)
    if not y.requires_grad:
        return by_changes(subject)
    (gradient,) = _pull_back(subject, y, [x], probes)
    if not bool(gradient.any()):
        return by_changes(subject)
    norms = _norms(gradient.flatten(2), probes, y.shape[-1])
    if every_step:
        return replace(norms.without_silent(), reads_later=_reads_later(gradient, probes))
    return replace(norms, one_output=True) if len(y) == 1 else _from_last_read(norms)


def _reads_later(gradient: Tensor, probes: Probes) -> bool:
    """True if an output's gradient (T, rows, ...) by inputs after its own step is more than rounding."""
    rows = _row_norms(gradient.detach().flatten(2)).cpu()
    ends = probes.end_of_sample()[:, None].expand(-1, probes.directions, -1).flatten()
    later = torch.arange(len(rows))[:, None] > ends
    return bool((rows.masked_fill(~later, 0) > 32 * rounding(gradient.dtype) * rows.amax(0)).any())


@torch.no_grad()
def by_changes(subject: Subject) -> JacobianNorms:
    """Return how much the last output changes with each earlier input, by changing one input after the other.

    An input becomes that of another sequence, in every second sequence at a time: the range of all inputs, on which the
    rounding of a quantized model depends, stays as it was. There a response that a tenth of the change does not make
    smaller is rounding: what is under twice the largest such counts as 0. Norms are root mean squares over sequences
    whose input was another one.
    """
    x = subject.features
    steps, batch = x.shape[:2]
    other = x.roll(1, 1)
    if batch == 1:
        other = x + x.std() * torch.randn(x.shape, generator=subject.generator()).to(x)
    sizes = (other - x).double().flatten(2).norm(dim=-1).cpu()  # (T, B)
    is_other = sizes > 0
    y = subject.run(x)[-1].double().cpu()
    halves = [torch.arange(start, batch, 2) for start in range(min(batch, 2))]
    responses, to_a_tenth = torch.zeros(2, steps, batch, dtype=torch.float64)
    shares = ((1.0, responses), (0.1, to_a_tenth)) if is_quantized(subject.model) else ((1.0, responses),)
    for step, rows in itertools.product(range(steps), halves):
        for share, found in shares:
            changed = x.clone()
            changed[step, rows] = torch.lerp(x[step, rows], other[step, rows], share)
            change = (subject.run(changed)[-1].double().cpu() - y).norm(dim=-1) / sizes[step]
            found[step, rows] = change.where(is_other[step], 0)[rows]
        subject.report(0.6 * (step + 1) / steps)
    count = is_other.sum(1).clamp(min=1)
    typical, smaller = ((found.square().sum(1) / count).sqrt() for found in (responses, to_a_tenth))
    rounded = torch.where(smaller > typical / 3, torch.maximum(smaller, typical), 0)
    typical[typical <= 2 * rounded.max()] = 0
    ends = torch.full((1, batch), steps - 1)
    norms = typical[:, None, None].expand(-1, 1, batch)
    return JacobianNorms(_by_lag(norms, ends), None, ends.numpy(), measured="changes")


def _from_last_read(norms: JacobianNorms) -> JacobianNorms:
    """Return norms with lags counted from the last input that the output reads in any sample."""
    read = np.nonzero(np.nanmax(norms.frobenius, axis=1) > 0)[0]
    unread = int(read[0]) if len(read) else 0
    spectral = None if norms.spectral is None else norms.spectral[unread:]
    return JacobianNorms(norms.frobenius[unread:], spectral, norms.ends - unread)


def by_inputs_and_states(
    subject: Subject, directions: int | None = None, ends: int = ENDS
) -> tuple[JacobianNorms, JacobianNorms | None]:
    """Return the same of the recurrence, and ||d output_t / d h_{t-k}||, from one graph.

    Where outputs are not made from the state, the gradient by h_t is zero: lag 0 then repeats lag 1. None for the
    latter if no gradient leads to the inputs.
    """
    inputs = subject.recurrence_inputs
    with torch.no_grad():
        outputs = subject.recurrence(inputs[:1, :1])[0].shape[-1]
    probes = _probes(inputs, outputs, directions, ends)
    x = _repeat_batch(inputs, probes.copies).requires_grad_()
    y, states = run_with_states(subject, x)
    if not y.requires_grad:
        return by_changes(subject), None
    by_input, *by_sources = _pull_back(subject, y, [x, *states.sources], probes)
    by_state = _norms(states.total_gradient(by_sources), probes, outputs)
    for norms in (by_state.frobenius, by_state.spectral):
        if norms is not None and len(norms) > 1 and not norms[0].any():
            norms[0] = norms[1]
    return _norms(by_input.flatten(2), probes, outputs).without_silent(), by_state


def of_loss(subject: Subject) -> tuple[Tensor, Tensor | None]:
    """Return ||d loss / d input_t|| (T,), and ||d loss / d h_t|| (T,) for a model with a step."""
    if subject.missing("step") or not subject.adapted.recurrence_is_model:
        x = subject.features.clone().requires_grad_()
        loss = subject.loss_of(subject.run(x))
        if not loss.requires_grad:
            return x.new_zeros(len(x)), None
        (by_input,) = torch.autograd.grad(loss, x, allow_unused=True, materialize_grads=True)
        return by_input.flatten(1).norm(dim=1), None
    x = subject.recurrence_inputs.clone().requires_grad_()
    outputs, states = run_with_states(subject, x)
    loss = subject.loss_of(outputs)
    by_input, *by_sources = torch.autograd.grad(loss, [x, *states.sources], allow_unused=True, materialize_grads=True)
    by_state = states.total_gradient(by_sources)
    return by_input.flatten(1).norm(dim=1), by_state.flatten(1).norm(dim=1)


def of_loss_by_lag(subject: Subject, positions: int) -> tuple[np.ndarray, np.ndarray | None]:
    """Return norms of the gradients of each output step's part of the loss by lag, (T, samples), by inputs and states.

    Samples are the pairs of one of the last `positions` output steps and a sequence; NaN where the lag leads before the
    sequence's start. The part of output y_t is what the loss changes with it: (d loss / d y_t) d y_t / d input_{t-k}.
    One backward pass for each output step.
    """
    by_states = not subject.missing("step") and subject.adapted.recurrence_is_model
    x = (subject.recurrence_inputs if by_states else subject.features).clone().requires_grad_()
    states = None
    if by_states:
        y, states = run_with_states(subject, x)
    else:
        y = subject.run(x)
    leaf = y.detach().requires_grad_()
    (by_output,) = torch.autograd.grad(subject.loss_of(leaf), leaf)

    # One output step after the other; where there are not as many as input steps, lags count from the last input.
    ends = range(max(0, len(y) - positions), len(y))
    inputs, hidden = [], []
    for end in ends:
        vector = torch.zeros_like(y)
        vector[end] = by_output[end]
        sources = [x, *([] if states is None else states.sources)]
        by_input, *by_sources = (
            torch.autograd.grad(y, sources, vector, retain_graph=True, allow_unused=True, materialize_grads=True)
            if y.requires_grad
            else [torch.zeros_like(source) for source in sources]
        )
        inputs.append(_row_norms(by_input.flatten(2)))
        if states is not None:
            hidden.append(_row_norms(states.total_gradient(by_sources).detach()))
        subject.report(0.6 + 0.3 * len(inputs) / len(ends))
    last = torch.tensor([end if len(y) == len(x) else len(x) - 1 for end in ends])
    samples = last[:, None].expand(-1, x.shape[1])
    by_lag = [_by_lag(torch.stack(norms, 1), samples) for norms in (inputs, hidden) if norms]
    return by_lag[0], by_lag[1] if states is not None else None


def fill_last_step(gradient: Tensor) -> Tensor:
    """Return the gradient (T, ...); if its last step is zero, as the output is not made from the state, repeat the one
    before."""
    if len(gradient) < 2 or bool(gradient[-1].any()):
        return gradient
    return torch.cat([gradient[:-1], gradient[-2:-1]])


def _probes(x: Tensor, outputs: int, directions: int | None, ends: int) -> Probes:
    """Choose output steps, over the last third of the sequence, and directions enough for a steady median."""
    steps, batch = x.shape[:2]
    chosen = sorted({steps - 1 - round(i * steps / 10) for i in range(min(ends, 10))}, reverse=True)
    if directions is None:
        directions = max(1, ROWS // (batch * len(chosen)))
    directions = min(directions, outputs)
    pairs = len(chosen)
    if batch >= len(chosen):  # the sequences share the end steps between them
        pairs = min(pairs, max(1, ROWS // (batch * directions)))
    return Probes(tuple(chosen), pairs, directions, batch)


def _repeat_batch(x: Tensor, times: int) -> Tensor:
    return x.repeat(1, times, *[1] * (x.dim() - 2))


def _pull_back(subject: Subject, y: Tensor, sources: list[Tensor], probes: Probes) -> tuple[Tensor, ...]:
    """Make one backward pass from y (T, rows, m), each row from its own step and in a direction of its own."""
    outputs = y.shape[-1]
    shape = (probes.pairs, probes.batch, outputs, probes.directions)
    gauss = torch.randn(shape, generator=subject.generator(), dtype=torch.float64)
    basis = torch.linalg.qr(gauss).Q  # orthonormal: as many as outputs give the whole Jacobian
    directions = basis.permute(0, 3, 1, 2).reshape(-1, outputs).to(y)

    # With another number of outputs than of inputs it is the last one; else every row has its own.
    rows = torch.arange(y.shape[1], device=y.device)
    ends = probes.end_of_sample()[:, None].expand(-1, probes.directions, -1).flatten().to(y.device)
    vectors = torch.zeros_like(y)
    if len(y) != len(sources[0]):
        ends = torch.full_like(ends, len(y) - 1)
    vectors[ends, rows] = directions
    return torch.autograd.grad(y, sources, vectors, allow_unused=True, materialize_grads=True)


def _norms(gradient: Tensor, probes: Probes, outputs: int) -> JacobianNorms:
    """Return norms by lag from gradient (T, rows, d), rows of the Jacobians."""
    gradient = gradient.detach()
    shape = (probes.pairs, probes.directions, probes.batch)
    rows = _row_norms(gradient).unflatten(1, shape)
    frobenius = rows.norm(dim=2) * math.sqrt(outputs / probes.directions)  # (T, pairs, B)
    ends = probes.end_of_sample()
    by_lag = _by_lag(frobenius, ends)
    if probes.directions < outputs:
        return JacobianNorms(by_lag, None, ends.numpy())
    jacobians = torch.nan_to_num(gradient.double()).unflatten(1, shape).transpose(2, 3)  # (T, pairs, B, m, d)
    spectral = torch.linalg.matrix_norm(jacobians, ord=2)
    return JacobianNorms(by_lag, _by_lag(spectral, ends), ends.numpy())


def _row_norms(gradient: Tensor) -> Tensor:
    """(T, R, d) -> (T, R). Steps whose squares may leave the range of float32 are computed again in float64."""
    rows = torch.linalg.vector_norm(gradient, dim=2).double()
    out_of_range = (~(rows > 1e-15) | rows.isinf()).any(1) & ~_all_zero(gradient)
    steps = out_of_range.nonzero().squeeze(1)
    if len(steps):
        rows[steps] = torch.linalg.vector_norm(gradient[steps], dim=2, dtype=torch.float64)
    return rows


def _all_zero(gradient: Tensor) -> Tensor:
    """(T, R, d) -> (T,): True where the gradient at a step is exactly zero."""
    flat = gradient.flatten(1)
    return (flat.amax(1) == 0) & (flat.amin(1) == 0)


def _by_lag(norms: Tensor, ends: Tensor) -> np.ndarray:
    """Turn steps (T, pairs, B) into lags before each end (T, samples). NaN becomes infinity; NaN marks no such lag."""
    known = torch.nan_to_num(norms, nan=torch.inf, posinf=torch.inf).flatten(1).cpu()
    steps = ends.flatten() - torch.arange(len(known))[:, None]  # (T, samples)
    by_lag = known.gather(0, steps.clamp(min=0))
    return by_lag.masked_fill(steps < 0, torch.nan).numpy()
