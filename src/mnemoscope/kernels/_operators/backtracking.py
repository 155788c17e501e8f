"""The operators of sparse attentive backtracking.

An LSTM whose h_t is h^_t + attended_t, detached from its past where clock > 0 and clock % truncation == 0; h_t is
stored where (clock + 1) % store_every == 0. A stored m_i has the score w . tanh(m_i) (the part that reads h^ is the
same for all i and drops out), and the keys are tanh(m_i). Up to `top` stored states get their softmax; of more,
the `top` largest get relu(score_i - top-th largest - 1e-7), divided by its sum + 1e-7. With `detach_scores` the scores
pass no gradient on to the states, only to w.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from mnemoscope.kernels._operator import operator
from mnemoscope.kernels._operators.memory import CarriedMemory


class SabOptions(NamedTuple):
    """k_att, k_top and k_trunc of sparse attentive backtracking, and whether scores pass no gradient to states."""

    store_every: int
    top: int
    truncation: int
    detach_scores: bool


class SabRun(NamedTuple):
    """h and attended (T, B, n), c_T (B, n); saved: cells (T, B, n), gates (T, B, 4n), slots and attention (T, B, top).

    slots, int32, are the states attended at each step, -1 for none.
    """

    h: Tensor
    attended: Tensor
    c_T: Tensor
    cells: Tensor
    gates: Tensor
    slots: Tensor
    attention: Tensor


class SabSaved(NamedTuple):
    """What the backward pass reads of a `SabRun`."""

    h: Tensor
    cells: Tensor
    gates: Tensor
    slots: Tensor
    attention: Tensor


class SabGradients(NamedTuple):
    """dxp (T, B, 4n), dh0 and dc0 (B, n), dvalues0 (B, m, n); of the scores of new (T, B) and carried (B, m) states."""

    dxp: Tensor
    dh0: Tensor
    dc0: Tensor
    dvalues0: Tensor
    dscores: Tensor
    dscores0: Tensor


@operator
def sab_forward(
    xp: Tensor,
    V: Tensor,
    w: Tensor,
    h0: Tensor,
    c0: Tensor,
    memory: CarriedMemory,
    options: SabOptions,
    lengths: Tensor | None,
    save: bool,
) -> SabRun:
    """xp (T, B, 4n), V (4n, n), w (n), h0 and c0 (B, n)."""
    steps, (batch, n) = xp.shape[0], h0.shape
    saved = steps if save else 0
    return SabRun(
        h=xp.new_empty(steps, batch, n),
        attended=xp.new_empty(steps, batch, n),
        c_T=torch.empty_like(c0),
        cells=xp.new_empty(saved, batch, n),
        gates=xp.new_empty(saved, batch, 4 * n),
        slots=xp.new_empty(saved, batch, options.top, dtype=torch.int32),
        attention=xp.new_empty(saved, batch, options.top),
    )


@operator
def sab_backward(
    dh: Tensor | None,
    dattended: Tensor | None,
    dc_T: Tensor | None,
    V: Tensor,
    w: Tensor,
    c0: Tensor,
    memory: CarriedMemory,
    options: SabOptions,
    saved: SabSaved,
    lengths: Tensor | None,
) -> SabGradients:
    steps, batch, _ = saved.h.shape
    return SabGradients(
        dxp=torch.empty_like(saved.gates),
        dh0=torch.empty_like(c0),
        dc0=torch.empty_like(c0),
        dvalues0=torch.empty_like(memory.values0),
        dscores=saved.h.new_zeros(steps, batch),
        dscores0=saved.h.new_zeros(memory.origin0.shape),
    )
