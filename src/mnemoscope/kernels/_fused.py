"""A whole sequence in one operator: what the layers call where `supported` says that they may.

Shapes are those of `ops.py`; gradients are torch's to ask for.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from mnemoscope.kernels import _autograd as _registered  # noqa: F401  (the operators' derivatives)
from mnemoscope.kernels import _portable as _portable
from mnemoscope.kernels import _state_gradients

_ops = torch.ops.mnemoscope


def _ready(dtype: torch.dtype, *tensors: Tensor | None) -> list[Any]:
    """Contiguous, and of the one type in which the loop runs; None stays None."""
    return [None if t is None else t.to(dtype).contiguous() for t in tensors]


def _recorded(*tensors: Tensor | None) -> bool:
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


def final(states: Tensor, first: Tensor, lengths: Tensor | None) -> Tensor:
    """The last state of each row: states (T, B, n), the state before them (B, n) -> (B, n)."""
    if lengths is None:
        return states[-1].clone()  # whoever writes to the outputs leaves the state as it is
    last = (lengths - 1).clamp(min=0).view(1, -1, 1).expand(1, *first.shape)
    return torch.where((lengths > 0)[:, None], states.gather(0, last).squeeze(0), first)


def rnn(
    dtype: torch.dtype, xp: Tensor, V: Tensor, h0: Tensor, b: Tensor | None, phi: str, lengths: Tensor | None
) -> Tensor:
    """h_t = phi(xp_t + V h_{t-1}) -> h (T, B, n)."""
    xp, V, h0, b = _ready(dtype, xp, V, h0, b)
    h = _ops.rnn_forward(xp, V, h0, b, phi, lengths)
    if _state_gradients.noting(lengths):
        _state_gradients.note(h, (xp, h), _state_gradients.through_matrix(V))
    return h


def lstm(
    dtype: torch.dtype, xp: Tensor, V: Tensor, h0: Tensor, c0: Tensor, lengths: Tensor | None
) -> tuple[Tensor, Tensor]:
    """-> h (T, B, n), c_T (B, n)."""
    xp, V, h0, c0 = tensors = _ready(dtype, xp, V, h0, c0)
    h, c, *_ = _ops.lstm_forward(*tensors, lengths, _recorded(*tensors))
    if _state_gradients.noting(lengths):
        _state_gradients.note(h, (xp, h), _state_gradients.through_matrix(V))
    return h, c


def rac(dtype: torch.dtype, xp: Tensor, V: Tensor, h0: Tensor, b: Tensor | None, lengths: Tensor | None) -> Tensor:
    """h_t = (V h_{t-1} + b) * xp_t -> h (T, B, n)."""
    xp, V, h0, b = _ready(dtype, xp, V, h0, b)
    h = _ops.rac_forward(xp, V, h0, b, lengths)
    if _state_gradients.noting(lengths):
        _state_gradients.note(h, (h,), _state_gradients.through_product(xp, V, h0, b, h))
    return h


def goru(dtype: torch.dtype, xp: Tensor, W: Tensor, h0: Tensor, b: Tensor, lengths: Tensor | None) -> Tensor:
    """W = [W_r; W_g; Q] -> h (T, B, n)."""
    xp, W, h0, b = tensors = _ready(dtype, xp, W, h0, b)
    h, gates = _ops.goru_forward(*tensors, lengths, _recorded(*tensors))
    if _state_gradients.noting(lengths):
        _state_gradients.note(h, (xp, h), _state_gradients.through_rotation(W, gates))
    return h


class Attention(NamedTuple):
    """How a sequence attends: "rnn" or "lstm", its non-linearity, nu (-1 for everything), rho, and how s is mixed."""

    cell: str
    phi: str
    buffer: int
    relevant: int
    mix: str
    decay: float
    refresh: bool


class Bank(NamedTuple):
    """The memory that a sequence starts with: values, keys (B, m, n), origin, relevance (B, m), clock (B,)."""

    values: Tensor
    keys: Tensor
    origin: Tensor
    relevance: Tensor
    clock: Tensor


class Attended(NamedTuple):
    """h, s (T, B, n), c_T (B, n), and what the slots hold at the end.

    That is values, keys (B, m, n), indices into [carried | new] and relevance (B, m). Under full attention every state
    keeps its place, and `slots` is None.
    """

    h: Tensor
    s: Tensor
    c: Tensor
    values: Tensor
    keys: Tensor
    slots: Tensor | None
    relevance: Tensor


def attentive(
    dtype: torch.dtype, how: Attention, xp: Tensor, V: Tensor, W_a: Tensor, U_a: Tensor, v: Tensor, b: Tensor | None,
    s0: Tensor, c0: Tensor | None, bank: Bank, lengths: Tensor | None, *, compiled: bool = True,
) -> Attended:  # fmt: skip
    """A cell that reads s_{t-1}, and s_t = h_t + the attention of s_{t-1} over past states."""
    tensors = _ready(dtype, xp, V, W_a, U_a, v, b, s0, c0, bank.values, bank.keys)
    relevance = bank.relevance.detach().to(dtype).contiguous()
    rest = bank.origin.contiguous(), relevance, bank.clock.contiguous()
    walk = _ops.attentive_forward if compiled else _ops.portable_forward
    *outputs, activations, slots, attention = walk(*tensors, *rest, *how, lengths, _recorded(*tensors))
    done = Attended(*outputs)
    done = done._replace(slots=None) if how.buffer < 0 else done
    if _state_gradients.noting(lengths):
        backward = _ops.attentive_backward if compiled else _ops.portable_backward
        xp, V, W_a, U_a, v, _, s0, _, values0, keys0 = tensors
        begun, run = (s0, values0, keys0, rest[0], done.slots), (done.h, done.s, activations, slots, attention)
        total = _state_gradients.through_attention(
            backward, V, W_a, U_a, v, *begun, *run, how.buffer, how.relevant, how.mix
        )
        _state_gradients.note(done.h, (xp, done.h, done.s, done.values, done.keys), total)
    return done


class Backtracking(NamedTuple):
    """k_att, k_top and k_trunc of sparse attentive backtracking."""

    store_every: int
    top: int
    truncation: int


def sab(
    dtype: torch.dtype, how: Backtracking, xp: Tensor, V: Tensor, w: Tensor, h0: Tensor, c0: Tensor, bank: Bank,
    lengths: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """-> h, attended (T, B, n), c_T (B, n)."""
    tensors = _ready(dtype, xp, V, w, h0, c0, bank.values, bank.keys)
    rest = bank.origin.contiguous(), bank.clock.contiguous()
    h, attended, c, _, _, slots, attention = _ops.sab_forward(*tensors, *rest, *how, lengths, _recorded(*tensors))
    if _state_gradients.noting(lengths):
        xp, V, w, _, _, values0, keys0 = tensors
        total = _state_gradients.through_backtracking(V, w, values0, keys0, *rest, h, slots, attention, *how)
        _state_gradients.note(h, (xp, h, attended), total)
    return h, attended, c
