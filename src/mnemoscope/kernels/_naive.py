"""The same recurrences as plain torch loops, differentiable any number of times.

A fused backward pass is not itself differentiable. When the gradient of a gradient is asked for, it is taken through
these loops instead. They take the operators' own arguments (`_operators`), `save` excepted.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from mnemoscope import equations
from mnemoscope.kernels._operators import (
    AttentionOptions,
    AttentionState,
    AttentionWeights,
    CarriedMemory,
    SabOptions,
    empty_memory,
)

_NONLINEARITIES = {"tanh": torch.tanh, "relu": torch.relu, "identity": lambda z: z}


def nonlinearity(phi: str, z: Tensor, b: Tensor | None) -> Tensor:
    """Return phi(z); b is modReLU's bias."""
    if phi == "modrelu":
        assert b is not None
        return equations.modrelu(z, b)
    return _NONLINEARITIES[phi](z)


def active_rows(lengths: Tensor | None, t: int, like: Tensor) -> Tensor:
    """True for the rows that are not past their length at step t, (B, 1)."""
    if lengths is None:
        return torch.ones(like.shape[0], 1, dtype=torch.bool, device=like.device)
    return (lengths.to(like.device) > t).unsqueeze(1)


def masked(active: Tensor, new: Tensor, old: Tensor) -> tuple[Tensor, Tensor]:
    """Return the output, zero past a row's length, and the state, which stays as it was at its length."""
    return torch.where(active, new, 0), torch.where(active, new, old)


def first_state(state: Tensor, xp: Tensor, n: int) -> Tensor:
    """Return the state before the first step (B, n); one without elements is zero."""
    return state if state.numel() else xp.new_zeros(xp.shape[1], n)


def split_projection(xp: Tensor, V: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Return the projected inputs and V; from [x, 1] and [V, U, b] where the kernel makes the projection."""
    if V.shape[1] == n:
        return xp, V
    return F.linear(xp, V[:, n:]), V[:, :n]


def rnn(xp: Tensor, V: Tensor, h0: Tensor, b: Tensor | None, phi: str, lengths: Tensor | None) -> tuple[Tensor]:
    """h_t = phi(xp_t + V h_{t-1})."""
    h = first_state(h0, xp, V.shape[0])
    xp, V = split_projection(xp, V, h.shape[1])
    outputs = []
    for t, x in enumerate(xp.unbind(0)):
        new = nonlinearity(phi, x + h @ V.T, b)
        output, h = masked(active_rows(lengths, t, h), new, h)
        outputs.append(output)
    return (torch.stack(outputs),)


def lstm(xp: Tensor, V: Tensor, h0: Tensor, c0: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return h (T, B, n) and c_T (B, n)."""
    h = first_state(h0, xp, V.shape[0] // 4)
    c = first_state(c0, xp, V.shape[0] // 4)
    xp, V = split_projection(xp, V, h.shape[1])
    outputs = []
    for t, x in enumerate(xp.unbind(0)):
        active = active_rows(lengths, t, h)
        h_new, c_new = equations.lstm_cell(x + h @ V.T, c)
        output, h = masked(active, h_new, h)
        c = torch.where(active, c_new, c)
        outputs.append(output)
    return torch.stack(outputs), c


def rac(xp: Tensor, V: Tensor, h0: Tensor, b: Tensor | None, lengths: Tensor | None) -> tuple[Tensor]:
    """h_t = (V h_{t-1} + b) * xp_t."""
    h = h0
    outputs = []
    for t, x in enumerate(xp.unbind(0)):
        output, h = masked(active_rows(lengths, t, h0), F.linear(h, V, b) * x, h)
        outputs.append(output)
    return (torch.stack(outputs),)


def goru(xp: Tensor, W: Tensor, h0: Tensor, b: Tensor, lengths: Tensor | None) -> tuple[Tensor]:
    """h_t = g * h_{t-1} + (1 - g) * modReLU(r * (Q h_{t-1}) + xp_c, b), W = [W_r; W_g; Q]."""
    n = W.shape[1]
    h = first_state(h0, xp, n)
    outputs = []
    for t, x in enumerate(xp.unbind(0)):
        product = h @ W.T
        gates = x[:, : 2 * n] + product[:, : 2 * n]
        new = equations.goru_cell(gates, product[:, 2 * n :], x[:, 2 * n :], h, b)
        output, h = masked(active_rows(lengths, t, h), new, h)
        outputs.append(output)
    return (torch.stack(outputs),)


def gru(xp: Tensor, V: Tensor, b_hn: Tensor | None, h0: Tensor, lengths: Tensor | None) -> tuple[Tensor]:
    """nn.GRU's equations; b_hn is the bias that the reset gate multiplies."""
    h = first_state(h0, xp, V.shape[1])
    bias = None if b_hn is None else F.pad(b_hn, (2 * V.shape[1], 0))
    outputs = []
    for t, x in enumerate(xp.unbind(0)):
        new = equations.gru_cell(x, F.linear(h, V, bias), h)
        output, h = masked(active_rows(lengths, t, h), new, h)
        outputs.append(output)
    return (torch.stack(outputs),)


def attentive(
    xp: Tensor,
    weights: AttentionWeights,
    state: AttentionState,
    memory: CarriedMemory,
    options: AttentionOptions,
    lengths: Tensor | None,
    slots: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return h and s (T, B, n) and c_T (B, n).

    Which state is in which slot was decided by the forward pass: `slots` (T, B, m) says so.
    """
    s = first_state(state.s0, xp, weights.v.shape[0])
    c = s if state.c0 is None else first_state(state.c0, xp, s.shape[1])
    xp, V = split_projection(xp, weights.V, s.shape[1])
    if options.buffer >= 0 and not memory.values0.numel():
        memory = empty_memory(s, s.shape[0], options.buffer + options.relevant)
    values, keys = memory.values0, memory.keys0
    m0 = values.shape[1]
    held = torch.arange(m0, device=xp.device).expand(memory.origin0.shape).where(memory.origin0 >= 0, -1)  # (B, m)
    hs, ss = [], []
    for t, x in enumerate(xp.unbind(0)):
        active = active_rows(lengths, t, s)
        z = x + s @ V.T
        query = s @ weights.W_a.T

        # The cell.
        if options.cell == "lstm":
            h_new, c_new = equations.lstm_cell(z, c)
        else:
            h_new, c_new = nonlinearity(options.phi, z, weights.b), c

        # The memory with h_t in it.
        key = h_new @ weights.U_a.T
        if options.buffer < 0:
            held = torch.cat([held, torch.where(active, m0 + t, -1)], 1)
            values = torch.cat([values, h_new.unsqueeze(1)], 1)
            keys = torch.cat([keys, key.unsqueeze(1)], 1)
        else:
            now = torch.where(active, slots[t].long(), held)
            values = _rearrange(values, held, now, h_new, m0 + t)
            keys = _rearrange(keys, held, now, key, m0 + t)
            held = now

        # Attention over it.
        context, _ = equations.additive_attention(query, keys, values, weights.v, held >= 0)
        s_new = h_new + context
        if options.mix == "mean":
            s_new = s_new / 2
        output, s = masked(active, s_new, s)
        c = torch.where(active, c_new, c)
        hs.append(torch.where(active, h_new, 0))
        ss.append(output)
    return torch.stack(hs), torch.stack(ss), c


def _rearrange(bank: Tensor, held: Tensor, now: Tensor, newest: Tensor, index: int) -> Tensor:
    """Return the bank (B, m, n) of the states `now` (B, m) from that of the states `held`; `index` is the newest."""
    if not bank.shape[1]:  # neither S nor R has a slot
        return bank
    source = (now.unsqueeze(2) == held.unsqueeze(1)).long().argmax(2)  # (B, m): the slot of each state before
    moved = bank.gather(1, source.unsqueeze(2).expand_as(bank))
    return torch.where((now == index).unsqueeze(2), newest.unsqueeze(1), moved)


def sab(
    xp: Tensor,
    V: Tensor,
    w: Tensor,
    h0: Tensor,
    c0: Tensor,
    memory: CarriedMemory,
    options: SabOptions,
    lengths: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return h and attended (T, B, n) and c_T (B, n)."""
    h, c = h0, c0

    def score(keys: Tensor) -> Tensor:
        return (keys.detach() if options.detach_scores else keys) @ w

    values, scores, filled = memory.values0, score(memory.keys0), memory.origin0 >= 0
    hs, contexts = [], []
    for t, x in enumerate(xp.unbind(0)):
        active = active_rows(lengths, t, h0)
        clock = memory.clock0 + t

        # The LSTM, cut from its past every `truncation` steps.
        cut = ((clock > 0) & (clock % options.truncation == 0))[:, None]
        h_before = torch.where(cut, h.detach(), h)
        c_before = torch.where(cut, c.detach(), c)
        h_new, c_new = equations.lstm_cell(x + h_before @ V.T, c_before)

        # What it attends to.
        weights = equations.sparse_attention_weights(scores, filled, options.top)
        attended = equations.attention_context(weights, values)
        output, h = masked(active, h_new + attended, h)
        c = torch.where(active, c_new, c)

        # What it stores.
        due = ((clock + 1) % options.store_every == 0)[:, None] & active
        if bool(due.any()):
            values = torch.cat([values, h[:, None]], 1)
            filled = torch.cat([filled, due], 1)
            scores = torch.cat([scores, score(h.tanh())[:, None]], 1)
        hs.append(output)
        contexts.append(torch.where(active, attended, 0))
    return torch.stack(hs), torch.stack(contexts), c
