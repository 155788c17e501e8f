"""Where a gradient went: ds_{t+k}/dh_t and dL/dh_t split by the number of hops (Kerg et al. 2020, Proposition 1).

A hop is one factor F: from a macro-state on to a later one, through attention or through the recurrence. The blocks are
used in the form in which attention makes them, a weight times (I + a rank-one matrix), so no F is ever formed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mnemoscope.errors import MnemoscopeError
from mnemoscope.theory.attention._jacobians import AttentionBlocks, macro_partial


def decompose(
    blocks: AttentionBlocks, t: int, k: int, *, hops: int | None = None, direction: Tensor | None = None
) -> Tensor:
    """ds_{t+k}/dh_t, the terms of s hops apart (eq. 42).

    Args:
        blocks: a run, from `attention_blocks` or `SelfAttentiveNet.blocks`.
        t: the step of h_t, counted from 0.
        k: how many steps later s_{t+k} is.
        hops: the most hops to resolve, default all k of them.
        direction: how H_t moves, (N, M); default the unit vectors of h_t, with an LSTM's cell held.

    Returns:
        (hops + 1, n, M): summed over the first dimension, with all hops, the total derivative.
    """
    blocks.check_span(t, k)
    return _forward(blocks, t, k, _most(hops, k), direction)[:, : blocks.hidden.shape[1]]


def _most(hops: int | None, all_of_them: int) -> int:
    if hops is not None and hops < 0:
        raise MnemoscopeError(f"hops must be at least 0; got {hops}")
    return all_of_them if hops is None else hops


def _forward(blocks: AttentionBlocks, t: int, k: int, hops: int, direction: Tensor | None) -> Tensor:
    n = blocks.hidden.shape[1]
    moved = torch.eye(blocks.width, n).to(blocks.hidden) if direction is None else direction
    dH = moved.new_zeros(k + 1, hops + 1, *moved.shape)  # dH_{t+i} by hops
    dH[0, 0] = moved
    dS = torch.zeros_like(dH[0])
    for i in range(k + 1):
        reached = torch.zeros_like(dS)
        if i:
            dH[i, 1:] = blocks.J[t + i - 1] @ dS[:-1]
            reached[1:] = macro_partial(blocks, t + i) @ dS[:-1]
        live = slice(0, i + 1)  # i steps make at most i hops
        reached[live] += blocks.f1[t + i] @ dH[i, live] + blocks.f2[t + i] @ _context(blocks, t, i, dH[:, live, :n])
        dS = reached
    return dS


def _context(blocks: AttentionBlocks, t: int, i: int, dh: Tensor) -> Tensor:
    """What the moves of the attended states h_t .. h_{t+i} make of the context: sum_j alpha_j (I + X_j) dh_j."""
    recent = blocks.origin[t + i] >= t  # slots whose state was made at or after step t
    origin = blocks.origin[t + i, recent] - t
    weight = blocks.weight[t + i, recent]
    moves = dh[origin] * weight.view(-1, 1, 1, 1)  # (slots, hops + 1, n, M)
    scores = torch.einsum("ji,jsim->jsm", blocks.score_by_hidden[t + i, recent], moves)
    return moves.sum(0) + torch.einsum("ji,jsm->sim", blocks.deviation[t + i, recent], scores)


def gradient_by_hops(
    blocks: AttentionBlocks, macro_gradient: Tensor, hidden_gradient: Tensor | None = None, *, hops: int | None = None
) -> Tensor:
    """dL/dh_t of every step t at once, the terms of s hops apart, in O(T m n) a hop.

    Args:
        blocks: a run of T steps.
        macro_gradient: how the loss reads each s_t itself, (T, n); zero where it does not.
        hidden_gradient: how it reads each h_t itself, (T, n); counted as 0 hops.
        hops: the most hops to resolve, default all T - 1 of them.

    Returns:
        (hops + 1, T, n): summed over the first dimension, with all hops, the total derivative dL/dh_t.
    """
    rows = _most(hops, blocks.steps - 1) + 1
    return _backward(blocks, *_seeds(blocks, macro_gradient, hidden_gradient, rows), hop=1)[0]


def state_gradients(
    blocks: AttentionBlocks, macro_gradient: Tensor, hidden_gradient: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The total derivatives dL/dh_t and dL/ds_t of every step, (T, n) each; arguments as in `gradient_by_hops`."""
    dh, ds = _backward(blocks, *_seeds(blocks, macro_gradient, hidden_gradient, rows=1), hop=0)
    return dh[0], ds[0]


def _seeds(
    blocks: AttentionBlocks, macro_gradient: Tensor, hidden_gradient: Tensor | None, rows: int
) -> tuple[Tensor, Tensor]:
    """What the loss itself reads of every H and S, in the first of `rows` rows: (rows, T, N) each."""
    T, n = blocks.hidden.shape
    dH, dS = (macro_gradient.new_zeros(rows, T, blocks.width) for _ in range(2))
    for into, gradient in ((dS, macro_gradient), (dH, hidden_gradient)):
        if gradient is not None:
            if gradient.shape != (T, n):
                raise MnemoscopeError(f"a gradient for each state is ({T}, {n}) here; got {list(gradient.shape)}")
            into[0, :, :n] = gradient
    return dH, dS


def _backward(blocks: AttentionBlocks, dH: Tensor, dS: Tensor, hop: int) -> tuple[Tensor, Tensor]:
    """Complete dL/dH and dL/dS, latest step first; an F moves them `hop` rows on, so that hop=0 adds all paths up."""
    rows, T, _ = dH.shape
    n = blocks.hidden.shape[1]
    for t in reversed(range(T)):
        if t + 1 < T:
            later = slice(0, rows - hop)
            dS[hop:, t] += dH[later, t + 1] @ blocks.J[t] + dS[later, t + 1] @ macro_partial(blocks, t + 1)
        live = slice(0, T - t)  # the end is at most T - 1 - t hops away
        dH[live, t] += dS[live, t] @ blocks.f1[t]
        filled = blocks.origin[t] >= 0
        dH[live, blocks.origin[t, filled], :n] += _context_back(blocks, t, filled, dS[live, t] @ blocks.f2[t])
    return dH[..., :n], dS[..., :n]


def _context_back(blocks: AttentionBlocks, t: int, filled: Tensor, dc: Tensor) -> Tensor:
    """dL/dc_t (rows, n) brought to each attended state: alpha_j dc (I + X_j), (rows, slots, n)."""
    weight = blocks.weight[t, filled]
    by_score = weight * (dc @ blocks.deviation[t, filled].T)  # dL/de: (rows, slots)
    through_scores = torch.einsum("sm,mn->smn", by_score, blocks.score_by_hidden[t, filled])
    return through_scores + torch.einsum("sn,m->smn", dc, weight)
