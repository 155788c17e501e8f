"""A whole sequence by one operator: what the layers call where `fused_dtype` gives them a dtype to run in.

Shapes are those of `_operators`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mnemoscope.kernels import _derivatives as _derivatives  # registers the operators' derivatives
from mnemoscope.kernels import _operators as op
from mnemoscope.kernels import _portable as _portable
from mnemoscope.kernels import _state_gradients
from mnemoscope.kernels._absent import shared_absent
from mnemoscope.kernels._operator import Projection
from mnemoscope.torch_internals import dispatches_plainly


def contiguous(dtype: torch.dtype, *tensors: Tensor | None) -> list[Any]:
    """Return the tensors contiguous and in the one dtype in which the loop runs; None stays None."""
    ready: list[Tensor | None] = []
    for tensor in tensors:
        if tensor is None or (tensor.dtype is dtype and tensor.is_contiguous()):
            ready.append(tensor)
        else:
            ready.append(tensor.to(dtype).contiguous())
    return ready


def _contiguous_memory(dtype: torch.dtype, memory: op.CarriedMemory) -> op.CarriedMemory:
    """The same for a memory. Its relevance is counted and never differentiated; origin and clock are integers."""
    counted = memory.relevance0
    if counted.requires_grad:
        counted = counted.detach()
    values, keys, relevance = contiguous(dtype, memory.values0, memory.keys0, counted)
    return op.CarriedMemory(values, keys, memory.origin0.contiguous(), relevance, memory.clock0.contiguous())


def _inputs(dtype: torch.dtype, xp: Tensor | Projection) -> tuple[Any, Sequence[Any]]:
    """Return xp as its operator takes it, and the tensors of it.

    A tensor comes contiguous and in the dtype of the loop, in which a projection is anyway. The first tensor is
    (T, B, ...); while runs are recorded it is xp itself.
    """
    if isinstance(xp, Projection):
        return xp, xp
    ready = contiguous(dtype, xp)
    return ready[0], ready


def _starts_from_zero(xp: Tensor) -> bool:
    """True if this device's loops of cells and of screened attention take a state without elements for zeros."""
    return xp.is_cuda


def _first_state(state: Tensor | None, xp: Tensor, n: int, *, absent: bool, plainly: bool = False) -> Tensor:
    """Return the state before the first step. None is zeros (B, n); if `absent`, a tensor without elements."""
    if state is not None:
        return state
    return _absent(xp, xp.dtype, plainly) if absent else xp.new_zeros(xp.shape[1], n)


def _absent(xp: Tensor, dtype: torch.dtype, plainly: bool = False) -> Tensor:
    """Return a tensor without elements on the device of xp. Where nothing is traced, all calls share it.

    `plainly` says that nothing is; else it is asked.
    """
    if plainly or (not torch.compiler.is_compiling() and dispatches_plainly()):
        return shared_absent(dtype, xp.device)
    return xp.new_empty(0, dtype=dtype)


def needs_grad(*tensors: Tensor | None) -> bool:
    """True if a backward pass may come: some tensor requires a gradient and gradients are enabled."""
    if torch.jit.is_tracing():  # the traced graph may be differentiated, and torch.jit checks it without gradients
        return True
    if torch.is_grad_enabled():
        for tensor in tensors:
            if tensor is not None and tensor.requires_grad:
                return True
    return False


def last_valid_state(states: Tensor, first: Tensor | None, lengths: Tensor | None) -> Tensor:
    """Return the last state of each row (B, n); states (T, B, n), `first` (B, n) is the one before them, None is 0.

    It is a copy: writing to the outputs does not change it, nor does writing to it change what a backward pass reads.
    After a single step without gradients, it is the one output itself.
    """
    if lengths is None:
        if states.requires_grad or torch.jit.is_tracing():  # a trace is for sequences of any length
            return states[-1].clone()
        return states[0] if states.shape[0] == 1 else states[-1].clone()
    last = (lengths.clamp(1, len(states)) - 1).view(1, -1, 1).expand(1, *states.shape[1:])
    before = states.new_zeros(()) if first is None else first
    return torch.where((lengths > 0)[:, None], states.gather(0, last).squeeze(0), before)


def rnn(
    dtype: torch.dtype,
    xp: Tensor | Projection,
    V: Tensor,
    h0: Tensor | None,
    b: Tensor | None,
    phi: str,
    lengths: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Return h (T, B, n), h_t = phi(xp_t + V h_{t-1}), and the last state (B, n)."""
    before = h0
    xp, (x, *_) = _inputs(dtype, xp)
    plainly = isinstance(xp, Projection)
    h0 = _first_state(h0, x, V.shape[0], absent=_starts_from_zero(x), plainly=plainly)
    V, h0, b = contiguous(dtype, V, h0, b)
    h, h_T = op.rnn_forward.of(xp, V, h0, b, phi, lengths)
    if _state_gradients.is_recording(lengths):
        _state_gradients.record(h, (x, h), _state_gradients.through_matrix(V))
    return h, last_valid_state(h, before, lengths) if h_T is None else h_T


def lstm(
    dtype: torch.dtype,
    xp: Tensor | Projection,
    V: Tensor,
    h0: Tensor | None,
    c0: Tensor | None,
    lengths: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return h (T, B, n) and the last state, h_T and c_T (B, n)."""
    before = h0
    xp, (x, *rest) = _inputs(dtype, xp)
    if h0 is None or c0 is None:  # both are given, or neither
        plainly = isinstance(xp, Projection)
        h0 = c0 = _first_state(None, x, V.shape[0] // 4, absent=_starts_from_zero(x), plainly=plainly)
    V, h0, c0 = contiguous(dtype, V, h0, c0)
    run, h_T = op.lstm_forward.of(xp, V, h0, c0, lengths, needs_grad(x, *rest, V, h0, c0))
    if _state_gradients.is_recording(lengths):
        _state_gradients.record(run.h, (x, run.h), _state_gradients.through_matrix(V))
    return run.h, last_valid_state(run.h, before, lengths) if h_T is None else h_T, run.c_T


def rac(
    dtype: torch.dtype, xp: Tensor, V: Tensor, h0: Tensor | None, b: Tensor | None, lengths: Tensor | None
) -> Tensor:
    """Return h (T, B, n), h_t = (V h_{t-1} + b) * xp_t."""
    h0 = _first_state(h0, xp, V.shape[0], absent=False)
    xp, V, h0, b = contiguous(dtype, xp, V, h0, b)
    h = op.rac_forward(xp, V, h0, b, lengths)
    if _state_gradients.is_recording(lengths):
        _state_gradients.record(h, (h,), _state_gradients.through_product(xp, V, h0, b, h))
    return h


def goru(dtype: torch.dtype, xp: Tensor, W: Tensor, h0: Tensor | None, b: Tensor, lengths: Tensor | None) -> Tensor:
    """Return h (T, B, n); W = [W_r; W_g; Q]."""
    h0 = _first_state(h0, xp, W.shape[1], absent=_starts_from_zero(xp))
    xp, W, h0, b = contiguous(dtype, xp, W, h0, b)
    run = op.goru_forward(xp, W, h0, b, lengths, needs_grad(xp, W, h0, b))
    if _state_gradients.is_recording(lengths):
        _state_gradients.record(run.h, (xp, run.h), _state_gradients.through_gates(W, run.gates))
    return run.h


def gru(
    dtype: torch.dtype,
    xp: Tensor | Projection,
    V: Tensor,
    b_hn: Tensor | None,
    h0: Tensor | None,
    lengths: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Return h (T, B, n) and the last state (B, n); xp has b_ih and the part of b_hh that belongs to r and z."""
    before = h0
    xp, (x, *rest) = _inputs(dtype, xp)
    plainly = isinstance(xp, Projection)
    h0 = _first_state(h0, x, V.shape[1], absent=_starts_from_zero(x), plainly=plainly)
    V, b_hn, h0 = contiguous(dtype, V, b_hn, h0)
    run, h_T = op.gru_forward.of(xp, V, b_hn, h0, lengths, needs_grad(x, *rest, V, b_hn, h0))
    if _state_gradients.is_recording(lengths):
        _state_gradients.record(run.h, (x, run.h), _state_gradients.through_gates(V, run.gates))
    return run.h, last_valid_state(run.h, before, lengths) if h_T is None else h_T


class Attended(NamedTuple):
    """h, s (T, B, n), c_T (B, n) of an LSTM, h_T (B, n) if the kernel gave it, and the memory after the last step.

    That is values, keys (B, m, n), origin and relevance (B, m). Under full attention every state stays where it is, and
    `origin` is None.
    """

    h: Tensor
    h_T: Tensor | None
    s: Tensor
    c: Tensor
    values: Tensor
    keys: Tensor
    origin: Tensor | None
    relevance: Tensor


def _empty_start(
    dtype: torch.dtype, xp: Tensor, n: int, options: op.AttentionOptions, compiled: bool, plainly: bool
) -> tuple[op.AttentionState, op.CarriedMemory]:
    """Return a state of zeros and an empty memory, by tensors without elements where the loop takes them for that."""
    absent_memory = compiled and options.buffer >= 0
    absent_state = absent_memory and _starts_from_zero(xp)
    s0 = _absent(xp, dtype, plainly) if absent_state else xp.new_zeros(xp.shape[1], n, dtype=dtype)
    state = op.AttentionState(s0, s0 if options.cell == "lstm" else None)
    if absent_memory:
        none = s0 if absent_state else _absent(xp, dtype, plainly)
        steps = _absent(xp, torch.int64, plainly)
        return state, op.CarriedMemory(values0=none, keys0=none, origin0=steps, relevance0=none, clock0=steps)
    slots = 0 if options.buffer < 0 else options.buffer + options.relevant
    return state, op.empty_memory(s0, xp.shape[1], slots)


def attentive(
    dtype: torch.dtype,
    options: op.AttentionOptions,
    xp: Tensor | Projection,
    weights: op.AttentionWeights,
    carried: tuple[op.AttentionState, op.CarriedMemory] | None,
    lengths: Tensor | None,
    *,
    compiled: bool = True,
) -> Attended:
    """Run a cell that reads s_{t-1}, with s_t = h_t + the attention of s_{t-1} over past states.

    Args:
        carried: the state and the memory before the first step; None for zeros and an empty memory.
        compiled: by the device's compiled kernels; else by torch's operations (`_portable.py`).
    """
    xp, (x, *rest) = _inputs(dtype, xp)
    weights = op.AttentionWeights(*contiguous(dtype, *weights))
    if carried is None:
        state, memory = _empty_start(dtype, x, weights.v.shape[0], options, compiled, isinstance(xp, Projection))
    else:
        state = op.AttentionState(*contiguous(dtype, *carried[0]))
        memory = _contiguous_memory(dtype, carried[1])
    save = needs_grad(x, *rest, *weights, *state, memory.values0, memory.keys0)
    forward = op.attentive_forward if compiled else op.portable_forward
    run, h_T = forward.of(xp, weights, state, memory, options, lengths, save)
    if _state_gradients.is_recording(lengths):
        backward = op.attentive_backward if compiled else op.portable_backward
        total_gradient = _state_gradients.through_attention(backward, weights, state, memory, options, run)
        _state_gradients.record(run.h, (x, run.h, run.s, run.values_T, run.keys_T), total_gradient)
    return Attended(
        h=run.h,
        h_T=h_T,
        s=run.s,
        c=run.c_T,
        values=run.values_T,
        keys=run.keys_T,
        origin=None if options.buffer < 0 else run.origin_T,
        relevance=run.relevance_T,
    )


def sab(
    dtype: torch.dtype,
    options: op.SabOptions,
    xp: Tensor,
    V: Tensor,
    w: Tensor,
    h0: Tensor,
    c0: Tensor,
    memory: op.CarriedMemory,
    lengths: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return h and attended (T, B, n) and c_T (B, n)."""
    xp, V, w, h0, c0 = contiguous(dtype, xp, V, w, h0, c0)
    memory = _contiguous_memory(dtype, memory)
    save = needs_grad(xp, V, w, h0, c0, memory.values0, memory.keys0)
    run = op.sab_forward(xp, V, w, h0, c0, memory, options, lengths, save)
    if _state_gradients.is_recording(lengths):
        total_gradient = _state_gradients.through_backtracking(V, w, memory, options, run)
        _state_gradients.record(run.h, (xp, run.h, run.attended), total_gradient)
    return run.h, run.attended, run.c_T
