"""Attention's recurrences over time in torch's own operations: for any device, with no compiler.

What the compiled kernels do, a step at a time: states are kept once and referred to by index, the forward pass keeps no
graph, and the way back is derived by hand. Memory is that of the states and of the attention weights, or of the
softmax's logarithms alone for full attention; a graph of the loop would keep every tanh of every pair of steps.
Arguments and results are those of `attentive_forward` and `attentive_backward` in `ops.py`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from mnemoscope.kernels._final_memory import remembered
from mnemoscope.kernels._naive import nonlinearity
from mnemoscope.kernels._operators import implement


class Cell(NamedTuple):
    """What h_t and c_t are made of, for one step: "rnn" has no cell state and no gates."""

    h: Tensor
    c: Tensor
    gates: Tensor | None


def _advance(z: Tensor, c: Tensor, b: Tensor | None, cell: str, phi: str) -> Cell:
    if cell == "rnn":
        return Cell(nonlinearity(phi, z, b), c, None)
    i, f, g, o = z.chunk(4, -1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    c = f * c + i * g
    return Cell(o * c.tanh(), c, torch.cat([i, f, g, o], -1))


class Screening:
    """Which states are attended, as indices into [carried | new]: all of them, or the ring S and the relevant set R."""

    def __init__(
        self, origin0: Tensor, relevance0: Tensor, clock0: Tensor, buffer: int, relevant: int, decay: float,
        refresh: bool,
    ) -> None:  # fmt: skip
        self.buffer, self.relevant, self.decay, self.refresh = buffer, relevant, decay, refresh
        carried = torch.arange(origin0.shape[1], device=origin0.device).expand(origin0.shape)
        self.held = torch.where(origin0 >= 0, carried, -1)  # (B, m)
        self.relevance, self.clock = relevance0.clone(), clock0.clone()
        self.rows = torch.arange(len(origin0), device=origin0.device)

    def admit(self, index: int, alive: Tensor) -> Tensor:
        """Take in the state of this index, where a row is alive; returns what is attended now (B, m)."""
        if self.buffer < 0:
            self.held = torch.cat([self.held, torch.where(alive, index, -1)[:, None]], 1)
            return self.held
        held, relevance = self.held.clone(), self.relevance.clone()
        relevance[:, self.buffer :] *= self.decay
        newest = torch.full_like(self.clock, index)
        ring = self.clock % max(self.buffer, 1)
        leaving, worth = newest, torch.zeros_like(relevance.sum(1))
        if self.buffer:
            leaving, worth = held[self.rows, ring], relevance[self.rows, ring]
        if self.relevant:
            standing = relevance[:, self.buffer :].masked_fill(held[:, self.buffer :] < 0, -torch.inf)
            least, place = standing.min(1)
            enters = (leaving >= 0) & (worth > least)
            rows, place = self.rows[enters], place[enters] + self.buffer
            held[rows, place], relevance[rows, place] = leaving[enters], worth[enters]
        if self.buffer:
            held[self.rows, ring] = newest
            relevance[self.rows, ring] = 0
        self.held = torch.where(alive[:, None], held, self.held)
        self.relevance = torch.where(alive[:, None], relevance, self.relevance)
        self.clock = self.clock + alive
        return self.held

    def count(self, alpha: Tensor, alive: Tensor) -> None:
        if self.buffer >= 0:
            counted = alpha if self.refresh else alpha[:, : self.buffer]
            self.relevance[:, : counted.shape[1]] += torch.where(alive[:, None], counted, 0)


def _take(bank: Tensor, held: Tensor) -> Tensor:
    """The rows `held` (B, m) of a bank (B, states, n); full attention takes them as they lie."""
    if bank.shape[1] == held.shape[1]:
        return bank
    return bank.gather(1, held.clamp(min=0)[..., None].expand(-1, -1, bank.shape[2]))


def _alive(lengths: Tensor | None, t: int, like: Tensor) -> Tensor:
    return torch.ones_like(like[:, 0], dtype=torch.bool) if lengths is None else lengths > t


@implement("portable_forward", "cuda")
@implement("portable_forward", "cpu")
def attentive_forward(
    xp: Tensor, V: Tensor, W_a: Tensor, U_a: Tensor, v: Tensor, b: Tensor | None, s0: Tensor, c0: Tensor | None,
    values0: Tensor, keys0: Tensor, origin0: Tensor, relevance0: Tensor, clock0: Tensor, cell: str, phi: str,
    buffer: int, relevant: int, mix: str, decay: float, refresh: bool, lengths: Tensor | None, save: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    """h, s (T,B,n), c_T, final values, keys, slots, relevance | activations, slots, attention: see `ops.py`."""
    (T, B), n, m0 = xp.shape[:2], s0.shape[1], values0.shape[1]
    full, gated = buffer < 0, cell == "lstm"
    values, keys = (torch.cat([t, t.new_zeros(B, T, n)], 1) for t in (values0, keys0))
    screening = Screening(origin0, relevance0, clock0, buffer, relevant, decay, refresh)
    hs, ss = xp.new_zeros(T, B, n), xp.new_zeros(T, B, n)
    kept = T if save else 0
    activations = xp.new_zeros(kept, B, 5 * n if gated else 0)
    slots = torch.zeros(0 if full else (kept, B, m0), dtype=torch.int32, device=xp.device)
    attention = xp.new_zeros((kept, B) if full else (kept, B, m0))
    s, c = s0, s0 if c0 is None else c0
    for t in range(T):
        alive = _alive(lengths, t, s0)
        new = _advance(xp[t] + s @ V.T, c, b, cell, phi)
        values[:, m0 + t], keys[:, m0 + t] = new.h, new.h @ U_a.T
        held = screening.admit(m0 + t, alive)
        seen = slice(0, m0 + t + 1) if full else slice(None)
        scores = torch.tanh((s @ W_a.T)[:, None] + _take(keys[:, seen], held)) @ v  # (B, m)
        scores = scores.masked_fill(held < 0, -torch.inf)
        total = torch.logsumexp(scores, 1) if held.shape[1] else scores.sum(1)
        alpha = torch.exp(scores - total[:, None]).nan_to_num(0.0)  # a row with nothing held attends to nothing
        screening.count(alpha, alive)
        macro = new.h + (alpha[:, None] @ _take(values[:, seen], held)).squeeze(1)
        macro = macro / 2 if mix == "mean" else macro
        living = alive[:, None]
        hs[t], ss[t] = torch.where(living, new.h, 0), torch.where(living, macro, 0)
        s, c = torch.where(living, macro, s), torch.where(living, new.c, c)
        if save:
            attention[t] = total if full else alpha
            if not full:
                slots[t] = held
            if new.gates is not None:
                activations[t] = torch.cat([new.gates, new.c], -1)
    final = (screening.held, screening.relevance) if not full else (origin0.new_empty(B, 0), relevance0.new_empty(B, 0))
    memory = remembered(hs, U_a, values0, keys0, None if full else screening.held)
    return hs, ss, c if gated else xp.new_empty(0), *memory, *final, activations, slots, attention


@implement("portable_backward", "cuda")
@implement("portable_backward", "cpu")
def attentive_backward(
    dh: Tensor | None, ds: Tensor | None, dc_T: Tensor | None, V: Tensor, W_a: Tensor, U_a: Tensor, v: Tensor,
    s0: Tensor, c0: Tensor | None, values0: Tensor, keys0: Tensor, origin0: Tensor, h: Tensor, s: Tensor,
    activations: Tensor, slots: Tensor, attention: Tensor, cell: str, phi: str, buffer: int, relevant: int, mix: str,
    lengths: Tensor | None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """dxp, dq, dk (T,B,.), dv, ds0, dc0, dvalues0, dkeys0: see `ops.py`."""
    (T, B, n), m0, full, gated = h.shape, values0.shape[1], buffer < 0, cell == "lstm"
    gates, cells = activations[..., -5 * n : -n], activations[..., -n:]  # whatever another backend keeps before them
    values = torch.cat([values0, h.transpose(0, 1)], 1)  # (B, m0 + T, n)
    keys = torch.cat([keys0, (h @ U_a.T).transpose(0, 1)], 1)
    by_value, by_key = torch.zeros_like(values), torch.zeros_like(keys)
    dxp, dq = h.new_zeros(T, B, V.shape[0]), torch.zeros_like(h)
    dv, by_s = torch.zeros_like(v), torch.zeros_like(s0)
    by_c = torch.zeros_like(s0) if dc_T is None else dc_T.clone()
    share = 0.5 if mix == "mean" else 1.0
    reach = torch.arange(m0 + T, device=h.device).expand(B, -1)
    filled = torch.cat([origin0 >= 0, _within(lengths, T, B, h.device)], 1)  # (B, m0 + T)
    for t in reversed(range(T)):
        living = _alive(lengths, t, s0)[:, None]
        total = by_s if ds is None else by_s + ds[t]
        by_context = torch.where(living, share * total, 0)  # of c_t, and of h_t through s_t = h_t + c_t
        before = s0 if t == 0 else s[t - 1]
        seen = slice(0, m0 + t + 1) if full else slice(None)
        held = reach[:, seen].where(filled[:, seen], -1) if full else slots[t].long()
        V_i, K_i = _take(values[:, seen], held), _take(keys[:, seen], held)  # (B, m, n)
        slope = torch.tanh((before @ W_a.T)[:, None] + K_i)  # (B, m, n)
        alpha = attention[t]
        if full:
            alpha = torch.exp((slope @ v).masked_fill(held < 0, -torch.inf) - alpha[:, None])
        by_alpha = (V_i @ by_context[..., None]).squeeze(2)  # (B, m)
        by_score = alpha * (by_alpha - (alpha * by_alpha).sum(1, keepdim=True))
        dv += torch.einsum("bi,bin->n", by_score, slope)
        by_inner = by_score[..., None] * v * (1 - slope * slope)  # of W_a s + U_a h_i
        _give(by_key[:, seen], held, by_inner)
        _give(by_value[:, seen], held, alpha[..., None] * by_context[:, None])
        dq[t] = by_inner.sum(1)
        by_h = by_context + by_value[:, m0 + t] + by_key[:, m0 + t] @ U_a
        by_h = torch.where(living, by_h if dh is None else by_h + dh[t], 0)
        c_before = cells[t - 1] if gated and t else c0
        dxp[t], by_c = _retreat(by_h, by_c, living, h[t], cells, gates, c_before, t, cell, phi)
        by_s = torch.where(living, dxp[t] @ V + dq[t] @ W_a, by_s)
    carried = by_value[:, :m0].contiguous(), by_key[:, :m0].contiguous()
    dk = by_key[:, m0:].transpose(0, 1).contiguous()
    return dxp, dq, dk, dv, by_s, by_c if gated else h.new_empty(0), *carried


def _within(lengths: Tensor | None, T: int, B: int, device: torch.device) -> Tensor:
    steps = torch.arange(T, device=device).expand(B, T)
    return steps < (T if lengths is None else lengths[:, None])


def _give(bank: Tensor, held: Tensor, grad: Tensor) -> None:
    """Add the gradients of what was taken; empty slots have none."""
    if bank.shape[1] == held.shape[1]:
        bank += grad
    else:
        bank.scatter_add_(1, held.clamp(min=0)[..., None].expand_as(grad), grad * (held >= 0)[..., None])


def _retreat(
    by_h: Tensor, by_c: Tensor, living: Tensor, h: Tensor, cells: Tensor, gates: Tensor, c_before: Tensor | None,
    t: int, cell: str, phi: str,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """From the gradient of h_t (and c_t) to that of what was added before the non-linearity, and to c_{t-1}."""
    if cell == "rnn":
        return by_h * _slope(h, phi), by_c
    assert c_before is not None
    i, f, g, o = gates[t].chunk(4, -1)
    bent = cells[t].tanh()
    by_cell = torch.where(living, by_c + by_h * o * (1 - bent * bent), 0)
    by_gates = by_cell * g * i * (1 - i), by_cell * c_before * f * (1 - f), by_cell * i * (1 - g * g)
    dz = torch.cat([*by_gates, by_h * bent * o * (1 - o)], -1)
    return torch.where(living, dz, 0), torch.where(living, by_cell * f, by_c)


def _slope(h: Tensor, phi: str) -> Tensor:
    """phi' at z, from h = phi(z) alone; ReLU and modReLU are open exactly where h is not zero."""
    if phi == "tanh":
        return 1 - h * h
    return torch.ones_like(h) if phi == "identity" else (h != 0).to(h.dtype)
