"""Self-attentive recurrences in torch's own operations: for any device, without a compiler.

The algorithm is that of the compiled kernels, one step at a time. States are stored once and referred to by index, the
forward pass records no graph, and the backward pass is derived by hand. Its memory is that of the states and of the
attention weights, or of the softmax's logarithms alone for full attention; a graph of the loop would keep the tanh of
every pair of steps.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from mnemoscope import equations
from mnemoscope.kernels import _operators as op
from mnemoscope.kernels._final_memory import final_memory, final_origin
from mnemoscope.kernels._naive import nonlinearity
from mnemoscope.kernels._operators import (
    AttentionOptions,
    AttentionState,
    AttentionWeights,
    AttentiveGradients,
    AttentiveOutputGradients,
    AttentiveRun,
    AttentiveSaved,
    CarriedMemory,
)


class CellStep(NamedTuple):
    """h_t and c_t (B, n) and the gates i, f, g, o (B, 4n). A plain recurrence passes c on and has no gates."""

    h: Tensor
    c: Tensor
    gates: Tensor | None


def _cell_forward(z: Tensor, c: Tensor, b: Tensor | None, options: AttentionOptions) -> CellStep:
    if options.cell == "rnn":
        return CellStep(nonlinearity(options.phi, z, b), c, None)
    # equations.lstm_cell, which does not return its gates.
    i, f, g, o = z.chunk(4, -1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    c = f * c + i * g
    return CellStep(o * c.tanh(), c, torch.cat([i, f, g, o], -1))


class Screening:
    """Which states are attended, by index (B, m): all of them, or the ring S and the relevant set R."""

    def __init__(self, memory: CarriedMemory, options: AttentionOptions) -> None:
        self.options = options
        origin = memory.origin0
        carried = torch.arange(origin.shape[1], device=origin.device).expand(origin.shape)
        self.held = torch.where(origin >= 0, carried, -1)  # (B, m)
        self.relevance = memory.relevance0.clone()
        self.clock = memory.clock0.clone()
        self.rows = torch.arange(len(origin), device=origin.device)

    def admit(self, index: int, active: Tensor) -> Tensor:
        """Take in the state of this index in the active rows; return what is attended now, (B, m)."""
        buffer = self.options.buffer
        if buffer < 0:
            self.held = torch.cat([self.held, torch.where(active, index, -1)[:, None]], 1)
            return self.held
        held = self.held.clone()
        relevance = self.relevance.clone()
        relevance[:, buffer:] *= self.options.decay

        # The state that leaves the ring S, or the new one where S has no slots.
        newest = torch.full_like(self.clock, index)
        ring = self.clock % max(buffer, 1)
        leaving = newest
        its_relevance = torch.zeros_like(relevance.sum(1))
        if buffer:
            leaving = held[self.rows, ring]
            its_relevance = relevance[self.rows, ring]

        # It takes the place of the least relevant state of R, if it is more relevant.
        if self.options.relevant:
            candidates = relevance[:, buffer:].masked_fill(held[:, buffer:] < 0, -torch.inf)
            least, slot = candidates.min(1)
            enters = (leaving >= 0) & (its_relevance > least)
            rows = self.rows[enters]
            slot = slot[enters] + buffer
            held[rows, slot] = leaving[enters]
            relevance[rows, slot] = its_relevance[enters]
        if buffer:
            held[self.rows, ring] = newest
            relevance[self.rows, ring] = 0

        # Rows past their length stay as they are.
        self.held = torch.where(active[:, None], held, self.held)
        self.relevance = torch.where(active[:, None], relevance, self.relevance)
        self.clock = self.clock + active
        return self.held

    def accumulate_relevance(self, alpha: Tensor, active: Tensor) -> None:
        """Add the attention alpha (B, m) that the states have received; without `refresh` to those in S alone."""
        if self.options.buffer >= 0:
            counted = alpha if self.options.refresh else alpha[:, : self.options.buffer]
            self.relevance[:, : counted.shape[1]] += torch.where(active[:, None], counted, 0)


def _gather(bank: Tensor, held: Tensor) -> Tensor:
    """Return the rows `held` (B, m) of a bank (B, states, n); full attention takes all of them as they are."""
    if bank.shape[1] == held.shape[1]:
        return bank
    return bank.gather(1, held.clamp(min=0)[..., None].expand(-1, -1, bank.shape[2]))


def _scatter_add(bank: Tensor, held: Tensor, grad: Tensor) -> None:
    """Add to the bank the gradients of what `_gather` took from it; empty slots have none."""
    if bank.shape[1] == held.shape[1]:
        bank += grad
    else:
        bank.scatter_add_(1, held.clamp(min=0)[..., None].expand_as(grad), grad * (held >= 0)[..., None])


def _active(lengths: Tensor | None, t: int, like: Tensor) -> Tensor:
    """True for the rows that are not past their length at step t, (B,)."""
    return torch.ones_like(like[:, 0], dtype=torch.bool) if lengths is None else lengths > t


@op.portable_forward.implement("cuda")
@op.portable_forward.implement("cpu")
def attentive_forward(
    xp: Tensor,
    weights: AttentionWeights,
    state: AttentionState,
    memory: CarriedMemory,
    options: AttentionOptions,
    lengths: Tensor | None,
    save: bool,
) -> AttentiveRun:
    """Run the recurrence forward; see `_operators.attentive_forward`."""
    s0, values0, keys0 = state.s0, memory.values0, memory.keys0
    (T, B), n, m0 = xp.shape[:2], s0.shape[1], values0.shape[1]
    full = options.buffer < 0

    # Every state and its key once: those that were carried in, then a place for each step.
    values = torch.cat([values0, values0.new_zeros(B, T, n)], 1)  # (B, m0 + T, n)
    keys = torch.cat([keys0, keys0.new_zeros(B, T, n)], 1)
    screening = Screening(memory, options)
    run = op.portable_forward.allocate(xp, weights, state, memory, options, lengths, save)
    s = s0
    c = s0 if state.c0 is None else state.c0
    for t in range(T):
        active = _active(lengths, t, s0)
        column = active[:, None]

        # The cell reads s_{t-1} and makes h_t, which enters the memory.
        new = _cell_forward(xp[t] + s @ weights.V.T, c, weights.b, options)
        values[:, m0 + t] = new.h
        keys[:, m0 + t] = new.h @ weights.U_a.T
        held = screening.admit(m0 + t, active)

        # s_{t-1} attends to the memory.
        seen = slice(0, m0 + t + 1) if full else slice(None)
        scores = equations.additive_scores(s @ weights.W_a.T, _gather(keys[:, seen], held), weights.v)  # (B, m)
        scores = scores.masked_fill(held < 0, -torch.inf)
        log_sum = torch.logsumexp(scores, 1) if held.shape[1] else scores.sum(1)
        # A row with no state in memory attends to nothing. Other NaNs are the model's, and must be seen.
        alpha = torch.exp(scores - log_sum[:, None]).masked_fill(held < 0, 0)
        screening.accumulate_relevance(alpha, active)

        # s_t = h_t + c_t, or their mean.
        s_new = new.h + equations.attention_context(alpha, _gather(values[:, seen], held))
        if options.mix == "mean":
            s_new = s_new / 2
        run.h[t] = torch.where(column, new.h, 0)
        run.s[t] = torch.where(column, s_new, 0)
        s = torch.where(column, s_new, s)
        c = torch.where(column, new.c, c)

        # What the backward pass reads.
        if save:
            run.attention[t] = log_sum if full else alpha
            if not full:
                run.slots[t] = held
            if new.gates is not None:
                run.activations[t] = torch.cat([new.gates, new.c], -1)

    values_T, keys_T = final_memory(run.h, weights.U_a, values0, keys0, None if full else screening.held)
    run = run._replace(values_T=values_T, keys_T=keys_T)
    if options.cell == "lstm":
        run = run._replace(c_T=c)
    if not full:
        origin_T = final_origin(screening.held, memory.origin0, memory.clock0)
        run = run._replace(slots_T=screening.held, origin_T=origin_T, relevance_T=screening.relevance)
    return run


@op.portable_backward.implement("cuda")
@op.portable_backward.implement("cpu")
def attentive_backward(
    grads: AttentiveOutputGradients,
    weights: AttentionWeights,
    state: AttentionState,
    memory: CarriedMemory,
    options: AttentionOptions,
    saved: AttentiveSaved,
    lengths: Tensor | None,
) -> AttentiveGradients:
    """Run the recurrence backwards in time; see `_operators.attentive_backward`."""
    h, s, v = saved.h, saved.s, weights.v
    T, B, _ = h.shape
    m0 = memory.values0.shape[1]
    full = options.buffer < 0
    lstm = options.cell == "lstm"

    # Every state and its key as the forward pass had them, and their gradients, which are added to as steps attend.
    values = torch.cat([memory.values0, h.transpose(0, 1)], 1)  # (B, m0 + T, n)
    keys = torch.cat([memory.keys0, (h @ weights.U_a.T).transpose(0, 1)], 1)
    d_values = torch.zeros_like(values)
    d_keys = torch.zeros_like(keys)
    indices = torch.arange(m0 + T, device=h.device).expand(B, -1)
    filled = torch.cat([memory.origin0 >= 0, _within_length(lengths, T, B, h.device)], 1)  # (B, m0 + T)

    # The gradients of the results; ds_before and dc_before arrive from the step after.
    dxp = h.new_zeros(T, B, weights.V.shape[0])
    dq = torch.zeros_like(h)
    dv = torch.zeros_like(v)
    ds_before = torch.zeros_like(state.s0)
    dc_before = torch.zeros_like(state.s0) if grads.dc_T is None else grads.dc_T.clone()
    mix = 0.5 if options.mix == "mean" else 1.0
    for t in reversed(range(T)):
        active = _active(lengths, t, state.s0)[:, None]

        # s_t = mix * (h_t + context_t): the gradient of the context, and of h_t through s_t.
        ds = ds_before if grads.ds is None else ds_before + grads.ds[t]
        d_context = torch.where(active, mix * ds, 0)

        # The states that were attended, and the weights they had.
        seen = slice(0, m0 + t + 1) if full else slice(None)
        held = indices[:, seen].where(filled[:, seen], -1) if full else saved.slots[t].long()
        attended = _gather(values[:, seen], held)  # (B, m, n)
        s_before = state.s0 if t == 0 else s[t - 1]
        tanh = torch.tanh((s_before @ weights.W_a.T)[:, None] + _gather(keys[:, seen], held))  # (B, m, n)
        alpha = saved.attention[t]
        if full:
            alpha = torch.exp((tanh @ v).masked_fill(held < 0, -torch.inf) - alpha[:, None])

        # Through the softmax and the scores v . tanh(query + key).
        d_alpha = (attended @ d_context[..., None]).squeeze(2)  # (B, m)
        d_scores = alpha * (d_alpha - (alpha * d_alpha).sum(1, keepdim=True))
        dv += torch.einsum("bi,bin->n", d_scores, tanh)
        d_sum = d_scores[..., None] * v * (1 - tanh * tanh)  # of query + key
        _scatter_add(d_keys[:, seen], held, d_sum)
        _scatter_add(d_values[:, seen], held, alpha[..., None] * d_context[:, None])
        dq[t] = d_sum.sum(1)

        # h_t was read by s_t, as a value and as a key by this and all later steps, and by the caller.
        dh = d_context + d_values[:, m0 + t] + d_keys[:, m0 + t] @ weights.U_a
        if grads.dh is not None:
            dh = dh + grads.dh[t]
        dh = torch.where(active, dh, 0)

        # Through the cell to s_{t-1}.
        dxp[t], dc_before = _cell_backward(dh, dc_before, active, saved, state.c0, t, options)
        ds_before = torch.where(active, dxp[t] @ weights.V + dq[t] @ weights.W_a, ds_before)

    return AttentiveGradients(
        dxp=dxp,
        dq=dq,
        dk=d_keys[:, m0:].transpose(0, 1).contiguous(),
        dv=dv,
        ds0=ds_before,
        dc0=dc_before if lstm else h.new_empty(0),
        dvalues0=d_values[:, :m0].contiguous(),
        dkeys0=d_keys[:, :m0].contiguous(),
    )


def _within_length(lengths: Tensor | None, T: int, B: int, device: torch.device) -> Tensor:
    """True for the steps that are not past a row's length, (B, T)."""
    steps = torch.arange(T, device=device).expand(B, T)
    return steps < (T if lengths is None else lengths[:, None])


def _cell_backward(
    dh: Tensor,
    dc: Tensor,
    active: Tensor,
    saved: AttentiveSaved,
    c0: Tensor | None,
    t: int,
    options: AttentionOptions,
) -> tuple[Tensor, Tensor]:
    """Return the gradients of what was added before the nonlinearity and of c_{t-1}, from those of h_t and c_t."""
    if options.cell == "rnn":
        return dh * _slope(saved.h[t], options.phi), dc
    # A compiled kernel saves other activations before the gates and the cell states.
    n = dh.shape[-1]
    gates, cells = saved.activations[t, :, -5 * n : -n], saved.activations[..., -n:]
    c_before = cells[t - 1] if t else c0
    assert c_before is not None
    i, f, g, o = gates.chunk(4, -1)
    tanh_c = cells[t].tanh()
    dc = torch.where(active, dc + dh * o * (1 - tanh_c * tanh_c), dc)
    dz_i = dc * g * i * (1 - i)
    dz_f = dc * c_before * f * (1 - f)
    dz_g = dc * i * (1 - g * g)
    dz_o = dh * tanh_c * o * (1 - o)
    dz = torch.cat([dz_i, dz_f, dz_g, dz_o], -1)
    return torch.where(active, dz, 0), torch.where(active, dc * f, dc)


def _slope(h: Tensor, phi: str) -> Tensor:
    """Return phi'(z) from h = phi(z) alone. ReLU and modReLU are open exactly where h is not zero."""
    if phi == "tanh":
        return 1 - h * h
    return torch.ones_like(h) if phi == "identity" else (h != 0).to(h.dtype)
