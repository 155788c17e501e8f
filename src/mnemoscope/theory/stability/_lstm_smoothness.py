"""The constants of Miller & Hardt's lemmas for an LSTM, in the infinity norm of its state (c, h).

The paper proves an LSTM stable in the infinity norm and then iterates the map to reach the Euclidean one. Its Lemmas
1-4 hold in any norm of the state, with induced norms of the Jacobians and the dual norm of the loss's gradient; so here
they are applied to the LSTM itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from mnemoscope.theory._statement import PAPERS, Row, statement
from mnemoscope.theory.stability._constants import NONLINEARITIES, SystemConstants, state_gap, state_norm_bound
from mnemoscope.theory.stability._descent import (
    LossConstants,
    gradient_gap,
    loss_smoothness,
    squared_loss,
    trajectory_gap,
)
from mnemoscope.theory.stability._instances import bounded_inputs, flatten, lstm_states, random_lstm, shrunk_lstm
from mnemoscope.theory.stability._lstm import GateBounds, Start, gate_bounds, gates

SIGMA = NONLINEARITIES["sigmoid"]
TANH = NONLINEARITIES["tanh"]


def lstm_constants(*weights: Tensor | None, input_bound: float, start: Start | None = None) -> SystemConstants:
    """lambda, L_x, L_w and the betas of an LSTM with the given weights (as in `lstm_certificate`).

    They hold for every w' with |W'| <= |W| and |U'| <= |U| entry by entry, |b'_g| <= |b_g|, and b' <= b in the other
    gates, where b is the sum of both biases: no gate of w' opens wider than w's can.

    A unit's next (c, h) is a function of its four preactivations and its c, whose first and second derivatives are
    bounded entry by entry on the reachable box; preactivations are bilinear in the weights and (h, x, 1).
    """
    (W, U, b) = gates(*weights)
    at = gate_bounds(*weights, input_bound=input_bound, start=start)
    slope, bend = _derivatives(at)  # (2, n, 5), (2, n, 5, 5)
    biases = [1.0 for bias in weights[2:] if bias is not None]
    read = math.hypot(float(at.h.norm()), math.sqrt(U.shape[2]) * input_bound, *biases)
    state = torch.cat([W.abs().sum(2), torch.ones_like(b[:1])]).T  # what a unit move of (c, h) does to (a, c): (n, 5)
    bent = (bend @ state[..., None])[..., 0]  # (2, n, 5)
    lam = float((slope * state).sum(-1).max())
    L_x = float((slope[..., :4] * U.abs().sum(2).T).sum(-1).max())
    mixed = float((read * bent + math.sqrt(len(at.h)) * slope)[..., :4].norm(dim=-1).max())
    rest = float(torch.tanh(b[2].abs()).max())  # >= ||phi(0, 0)||
    begin = 0.0 if start is None else max(float(part.max()) for part in start)
    box = float(torch.maximum(at.c, at.h).max())
    return SystemConstants(
        lam=lam,
        L_x=L_x,
        L_w=read * float(slope[..., :4].norm(dim=-1).max()),
        beta_ww=read * read * _largest_norm(bend[..., :4, :4]),
        beta_wh=mixed,
        beta_hw=mixed,
        beta_hh=float((bent * state).sum(-1).max()),
        state_bound=state_norm_bound(lam, L_x * input_bound + rest, box, begin),
        norm="linf",
        start=begin,
    )


def _derivatives(at: GateBounds) -> tuple[Tensor, Tensor]:
    """Bounds of the first (2, n, 5) and second (2, n, 5, 5) derivatives of (c_+, h_+) in (a_i, a_f, a_g, a_o, c).

    c_+ = sigma(a_i) tanh(a_g) + sigma(a_f) c and h_+ = sigma(a_o) tanh(c_+).
    """
    cell = torch.stack([at.g / 4, at.c / 4, at.i, torch.zeros_like(at.c), at.f], -1)
    bend = cell.new_zeros(*cell.shape, 5)
    bend[:, 0, 0] = SIGMA.smoothness * at.g
    bend[:, 1, 1] = SIGMA.smoothness * at.c
    bend[:, 2, 2] = TANH.smoothness * at.i
    bend[:, 0, 2] = bend[:, 2, 0] = bend[:, 1, 4] = bend[:, 4, 1] = SIGMA.lipschitz
    hidden = at.o[:, None] * cell
    turn = at.o[:, None, None] * (bend + TANH.smoothness * cell[:, :, None] * cell[:, None, :])
    turn[:, 3, :] = turn[:, :, 3] = cell / 4
    hidden[:, 3] = torch.tanh(at.c) / 4
    turn[:, 3, 3] = SIGMA.smoothness * torch.tanh(at.c)
    return torch.stack([cell, hidden]), torch.stack([bend, turn])


def _gradient(x: Tensor, weights: tuple[Tensor, ...], readout: Tensor, target: Tensor) -> Tensor:
    leaves = tuple(w.detach().requires_grad_() for w in weights)
    h = lstm_states(x, leaves)[1][-1]
    return flatten(torch.autograd.grad(0.5 * (readout @ h - target).square().sum(), leaves))


def _instance(n: int, seed: int) -> tuple[Tensor, tuple[Tensor, ...], Tensor, Tensor, SystemConstants, LossConstants]:
    """Inputs, weights, read-out, target and constants of a random stable LSTM: d = 3, T = 60, |x| <= 1/2."""
    generator = torch.Generator().manual_seed(seed)
    readout = torch.randn(2, n, generator=generator, dtype=torch.float64) / n
    target = torch.randn(2, generator=generator, dtype=torch.float64)
    weights = random_lstm(n, 3, 0.15, seed)
    system = lstm_constants(*weights, input_bound=0.5)
    return bounded_inputs(60, 3, 0.5, seed), weights, readout, target, system, squared_loss(readout, target, system)


@statement(
    "miller-hardt-lstm-lemmas",
    paper=PAPERS["stability"],
    where="6.3 with Lemmas 1-4",
    status="holds",
    claim="the lemmas apply to the LSTM itself in the infinity norm of (c, h): no factor log n is lost to iterating it",
)
def lstm_lemmas() -> Iterator[Row]:
    for n, k in ((4, 6), (8, 12)):
        x, weights, C, y, system, loss = _instance(n, seed=k)
        whole, cut = (torch.stack(lstm_states(part, weights))[:, -1] for part in (x, x[-k:]))
        apart = float((whole - cut).abs().max())
        yield Row(f"n={n}, lambda={system.lam:.2f}, k={k}: Lemma 1", state_gap(system, k), apart)
        moved = float((_gradient(x, weights, C, y) - _gradient(x[-k:], weights, C, y)).norm())
        yield Row(f"n={n}, k={k}: Lemma 2", gradient_gap(system, loss, k), moved)
        other = shrunk_lstm(weights, 0.9)
        distance = float((flatten(weights) - flatten(other)).norm())
        turned = float((_gradient(x, weights, C, y) - _gradient(x, other, C, y)).norm())
        yield Row(f"n={n}: Lemma 3", loss_smoothness(system, loss) * distance, turned)
        here, there = (torch.stack(lstm_states(x, w)) for w in (weights, other))
        yield Row(f"n={n}: Lemma 4", trajectory_gap(system, distance), float((here - there).abs().max()))


def _largest_norm(matrices: Tensor) -> float:
    """The largest spectral norm; infinite if an entry is not finite, as LAPACK would print an error for each."""
    return float(torch.linalg.matrix_norm(matrices, ord=2).max()) if bool(matrices.isfinite().all()) else math.inf
