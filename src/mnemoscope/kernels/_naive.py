"""The same recurrences as plain torch loops, differentiable any number of times.

A fused backward pass is not itself differentiable; when a gradient of a gradient is asked for, it is taken through
these loops instead. They take the operators' own arguments (see `ops.py`).
"""

from __future__ import annotations

import torch
from torch import Tensor

_NONLINEARITIES = {"tanh": torch.tanh, "relu": torch.relu, "identity": lambda z: z}


def nonlinearity(phi: str, z: Tensor, b: Tensor | None) -> Tensor:
    """phi(z); modReLU(z) = sign(z) relu(|z| + b)."""
    if phi == "modrelu":
        assert b is not None
        return z.sign() * torch.relu(z.abs() + b)
    return _NONLINEARITIES[phi](z)


def _alive(lengths: Tensor | None, t: int, like: Tensor) -> Tensor:
    if lengths is None:
        return torch.ones(like.shape[0], 1, dtype=torch.bool, device=like.device)
    return (lengths.to(like.device) > t).unsqueeze(1)  # (B, 1)


def _hold(alive: Tensor, new: Tensor, old: Tensor) -> tuple[Tensor, Tensor]:
    """The output (zero past a row's length) and the state (as it was at its length)."""
    return torch.where(alive, new, 0), torch.where(alive, new, old)


def projected(xp: Tensor, V: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Projected inputs and V; of a joined walk, from its inputs [x, 1] and [V, U, b]."""
    return (xp, V) if V.shape[1] == n else (torch.nn.functional.linear(xp, V[:, n:]), V[:, :n])


def lstm_cell(z: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """z (B, 4n) before the gates' non-linearities, in torch's order i, f, g, o -> h, c."""
    i, f, g, o = z.chunk(4, -1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def rnn(xp: Tensor, V: Tensor, h0: Tensor, b: Tensor | None, phi: str, lengths: Tensor | None) -> tuple[Tensor]:
    """h_t = phi(xp_t + V h_{t-1})."""
    xp, V = projected(xp, V, h0.shape[1])
    h, outputs = h0, []
    for t, x in enumerate(xp.unbind(0)):
        out, h = _hold(_alive(lengths, t, h0), nonlinearity(phi, x + h @ V.T, b), h)
        outputs.append(out)
    return (torch.stack(outputs),)


def lstm(xp: Tensor, V: Tensor, h0: Tensor, c0: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
    """-> h (T, B, n), c_T (B, n)."""
    xp, V = projected(xp, V, h0.shape[1])
    h, c, outputs = h0, c0, []
    for t, x in enumerate(xp.unbind(0)):
        alive = _alive(lengths, t, h0)
        h_new, c_new = lstm_cell(x + h @ V.T, c)
        out, h = _hold(alive, h_new, h)
        c = torch.where(alive, c_new, c)
        outputs.append(out)
    return torch.stack(outputs), c


def rac(xp: Tensor, V: Tensor, h0: Tensor, b: Tensor | None, lengths: Tensor | None) -> tuple[Tensor]:
    """h_t = (V h_{t-1} + b) * xp_t."""
    h, outputs = h0, []
    for t, x in enumerate(xp.unbind(0)):
        out, h = _hold(_alive(lengths, t, h0), torch.nn.functional.linear(h, V, b) * x, h)
        outputs.append(out)
    return (torch.stack(outputs),)


def goru(xp: Tensor, W: Tensor, h0: Tensor, b: Tensor, lengths: Tensor | None) -> tuple[Tensor]:
    """h' = g h + (1 - g) modReLU(r (Q h) + xp_c, b), W = [W_r; W_g; Q]."""
    h, outputs = h0, []
    for t, x in enumerate(xp.unbind(0)):
        (x_r, x_g, x_c), (p_r, p_g, u) = x.chunk(3, -1), (h @ W.T).chunk(3, -1)
        r, g = (x_r + p_r).sigmoid(), (x_g + p_g).sigmoid()
        candidate = nonlinearity("modrelu", r * u + x_c, b)
        out, h = _hold(_alive(lengths, t, h0), g * h + (1 - g) * candidate, h)
        outputs.append(out)
    return (torch.stack(outputs),)


def attend(query: Tensor, values: Tensor, keys: Tensor, filled: Tensor, v: Tensor) -> Tensor:
    """c = sum_i softmax_i(v . tanh(query + k_i)) h_i over filled slots, zero where none is; values (B, m, n)."""
    logits = torch.tanh(query.unsqueeze(1) + keys) @ v  # (B, m)
    logits = logits.masked_fill(~filled, -torch.inf)
    some = filled.any(1, keepdim=True)
    weights = torch.where(some, logits.where(some, torch.zeros_like(logits)).softmax(1), 0)
    return (weights.unsqueeze(1) @ values).squeeze(1)


def attentive(
    xp: Tensor, V: Tensor, W_a: Tensor, U_a: Tensor, v: Tensor, b: Tensor | None, s0: Tensor, c0: Tensor | None,
    values0: Tensor, keys0: Tensor, origin0: Tensor, slots: Tensor, cell: str, phi: str, full: bool, mix: str,
    lengths: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """-> h, s (T, B, n), c_T (B, n). Which state sits in which slot is a choice already made: `slots` holds it."""
    xp, V = projected(xp, V, s0.shape[1])
    s, c, hs, ss = s0, s0 if c0 is None else c0, [], []
    values, keys, m0 = values0, keys0, values0.shape[1]
    held = torch.arange(m0, device=xp.device).expand(origin0.shape).where(origin0 >= 0, -1)  # (B, m)
    for t, x in enumerate(xp.unbind(0)):
        alive = _alive(lengths, t, s0)
        z, query = x + s @ V.T, s @ W_a.T
        h_new, c_new = lstm_cell(z, c) if cell == "lstm" else (nonlinearity(phi, z, b), c)
        if full:
            now = torch.where(alive, m0 + t, -1)
            held = torch.cat([held, now], 1)
            values = torch.cat([values, h_new.unsqueeze(1)], 1)
            keys = torch.cat([keys, (h_new @ U_a.T).unsqueeze(1)], 1)
        else:
            now = torch.where(alive, slots[t].long(), held)
            values = _rearrange(values, held, now, h_new, m0 + t)
            keys = _rearrange(keys, held, now, h_new @ U_a.T, m0 + t)
            held = now
        s_new = h_new + attend(query, values, keys, held >= 0, v)
        s_new = s_new / 2 if mix == "mean" else s_new
        out, s = _hold(alive, s_new, s)
        c = torch.where(alive, c_new, c)
        hs.append(torch.where(alive, h_new, 0))
        ss.append(out)
    return torch.stack(hs), torch.stack(ss), c


def _rearrange(bank: Tensor, held: Tensor, now: Tensor, newest: Tensor, index: int) -> Tensor:
    """A bank (B, m, n) of the states `held` (B, m) becomes that of the states `now`, of which `index` is the newest."""
    if not bank.shape[1]:  # neither S nor R has a slot
        return bank
    source = (now.unsqueeze(2) == held.unsqueeze(1)).long().argmax(2)  # (B, m): where each state sat before
    moved = bank.gather(1, source.unsqueeze(2).expand_as(bank))
    return torch.where((now == index).unsqueeze(2), newest.unsqueeze(1), moved)


MARGIN = 1e-7  # by which a kept score must exceed the top-th largest


def sparse(scores: Tensor, filled: Tensor, top: int) -> Tensor:
    """A softmax while no more than `top` are filled, else what stands out above the top-th; (B, m) -> (B, m)."""
    scores = scores.masked_fill(~filled, torch.finfo(scores.dtype).min)
    soft = torch.softmax(scores, -1) * filled
    if scores.shape[1] <= top:
        return soft
    kept = torch.relu(scores - scores.topk(top, -1).values[:, -1:] - MARGIN)
    return torch.where(filled.sum(-1, keepdim=True) > top, kept / (kept.sum(-1, keepdim=True) + MARGIN), soft)


def sab(
    xp: Tensor, V: Tensor, w: Tensor, h0: Tensor, c0: Tensor, values0: Tensor, keys0: Tensor, origin0: Tensor,
    clock0: Tensor, store_every: int, top: int, truncation: int, lengths: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """-> h, attended (T, B, n), c_T (B, n)."""
    h, c, hs, contexts = h0, c0, [], []
    values, scores, filled = values0, keys0 @ w, origin0 >= 0
    for t, x in enumerate(xp.unbind(0)):
        alive, clock = _alive(lengths, t, h0), clock0 + t
        cut = ((clock > 0) & (clock % truncation == 0))[:, None]
        before, c_before = (torch.where(cut, state.detach(), state) for state in (h, c))
        h_new, c_new = lstm_cell(x + before @ V.T, c_before)
        attended = (sparse(scores, filled, top).unsqueeze(1) @ values).squeeze(1)
        out, h = _hold(alive, h_new + attended, h)
        c = torch.where(alive, c_new, c)
        due = ((clock + 1) % store_every == 0)[:, None] & alive
        if bool(due.any()):
            values, filled = torch.cat([values, h[:, None]], 1), torch.cat([filled, due], 1)
            scores = torch.cat([scores, (h.tanh() @ w)[:, None]], 1)
        hs.append(out)
        contexts.append(torch.where(alive, attended, 0))
    return torch.stack(hs), torch.stack(contexts), c
