"""The operators of self-attentive recurrences.

The cell ("rnn": G = 1, "lstm": G = 4) reads s_{t-1}; the query is W_a s_{t-1}, the keys are U_a h_i, the scores
v . tanh(query + key), h_t itself included; s_t = h_t + c_t (mix "sum") or their mean ("mean").
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mnemoscope.kernels._operator import operator
from mnemoscope.kernels._operators.cells import input_gradient
from mnemoscope.kernels._operators.memory import CarriedMemory


class AttentionWeights(NamedTuple):
    """V (Gn, n), W_a and U_a (n, n), v (n), b (n) modReLU's bias."""

    V: Tensor
    W_a: Tensor
    U_a: Tensor
    v: Tensor
    b: Tensor | None


class AttentionState(NamedTuple):
    """s0 (B, n), c0 (B, n) of an LSTM."""

    s0: Tensor
    c0: Tensor | None


class AttentionOptions(NamedTuple):
    """How a sequence attends.

    buffer nu >= 0 with relevant rho: m = nu + rho slots. Slots 0 .. nu-1 are S, a ring in which h_t takes slot
    clock % nu; slots nu .. nu+rho-1 are R, filled in order. buffer -1: full attention, over everything carried in and
    everything new. decay and refresh say how relevance is counted.
    """

    cell: str
    phi: str
    buffer: int
    relevant: int
    mix: str
    decay: float
    refresh: bool


class StepResults(NamedTuple):
    """What one step writes: h, s and an LSTM's c (B, n), and the memory after it.

    That may be the memory before it, which is then updated in place. Under full attention it is, and has an empty slot
    behind those that are held.
    """

    h: Tensor
    s: Tensor
    c: Tensor | None
    values: Tensor
    keys: Tensor
    origin: Tensor
    relevance: Tensor
    clock: Tensor


class AttentiveRun(NamedTuple):
    """What a self-attentive run returns, and from `activations` on what it saves.

    h and s (T, B, n), c_T (B, n) (rnn: (0,)). The memory after the last step: values_T and keys_T (B, m, n), where an
    empty slot keeps what it held (full attention: (B, m + T, n), zeros past a row's length); slots_T (B, m) int64, the
    index of the state in each slot, origin_T (B, m) int64, the step at which it was made, -1 for an empty slot, and
    relevance_T (B, m) (full attention: (B, 0)).

    activations (T, B, W): first what a backend's kernels want (`kernel_widths`), on the CPU e^{2q} and e^{2k} of the
    step's query and key; then an LSTM's i, f, g, o and c_t. slots (T, B, m) int32 as attended at each step (full
    attention: (0,)). attention (T, B, m), the weights, zero in empty slots (full attention: (T, B), the logarithm of
    the softmax's sum). overflowed (1,) bool on the CPU, else (0,): the run left the range of e^{2q} and was made by
    `_portable.py`, and so must be its backward pass.
    """

    h: Tensor
    s: Tensor
    c_T: Tensor
    values_T: Tensor
    keys_T: Tensor
    slots_T: Tensor
    origin_T: Tensor
    relevance_T: Tensor
    activations: Tensor
    slots: Tensor
    attention: Tensor
    overflowed: Tensor


class AttentiveSaved(NamedTuple):
    """What the backward pass reads of an `AttentiveRun`."""

    h: Tensor
    s: Tensor
    activations: Tensor
    slots: Tensor
    attention: Tensor
    overflowed: Tensor


class AttentiveOutputGradients(NamedTuple):
    """dh and ds (T, B, n), dc_T (B, n); None is zero."""

    dh: Tensor | None
    ds: Tensor | None
    dc_T: Tensor | None


class AttentiveGradients(NamedTuple):
    """dxp (T, B, Gn); dq (T, B, n) of the queries; dk (T, B, n) of the new states' keys; dv (n); of what came in.

    That is ds0 (B, n), dc0 (B, n) (rnn: (0,)), dvalues0 and dkeys0 (B, m, n); of what was absent, (0,).
    """

    dxp: Tensor
    dq: Tensor
    dk: Tensor
    dv: Tensor
    ds0: Tensor
    dc0: Tensor
    dvalues0: Tensor
    dkeys0: Tensor


class AttentiveInputGradients(NamedTuple):
    """dx (T, B, E) of [x, 1], dV (Gn, n + E) of [V, U, b], dW_a and dU_a (n, n); else as `AttentiveGradients`."""

    dx: Tensor
    dV: Tensor
    dW_a: Tensor
    dU_a: Tensor
    dv: Tensor
    ds0: Tensor
    dc0: Tensor
    dvalues0: Tensor
    dkeys0: Tensor


# By the type of a device: how many numbers of a step its kernels save before an LSTM's gates, from the shape (T, B, n)
# of the run, its options, its device and its dtype.
kernel_widths: dict[str, Callable[[tuple[int, int, int], AttentionOptions, torch.device, torch.dtype], int]] = {
    "cpu": lambda shape, options, device, dtype: 2 * shape[2]
}
# By the type of a device whose kernels save products with V: from the activations of a run, its states and its options
# to the activations of the same states with V = 0, for another cell without gates (`_state_gradients.py`).
saved_without_V: dict[str, Callable[[Tensor, Tensor, AttentionOptions], Tensor]] = {}


def allocate_run(
    xp: Tensor,
    n: int,
    memory: CarriedMemory,
    options: AttentionOptions,
    save: bool,
    kernel_width: int = 0,
    flags: int = 0,
    absent: Tensor | None = None,
) -> AttentiveRun:
    """Return the results of a run, new tensors with nothing in them.

    Where torch's dispatcher does not see them, `absent` stands for tensors without elements that a backward pass is
    given. None stands for the others: a c_T that the cell does not have, and without `save` what would be saved.
    """
    steps, batch, _ = xp.shape
    saved = steps if save else 0
    lstm = options.cell == "lstm"
    full = options.buffer < 0
    slots = 0 if full else options.buffer + options.relevant
    capacity = memory.values0.shape[1] + steps if full else slots
    width = kernel_width + (5 * n if lstm else 0)
    new = xp.new_empty
    c_T: Any = None
    if lstm or absent is None:
        c_T = new(batch, n) if lstm else new(0)
    activations: Any = absent
    kept_slots: Any = None
    attention: Any = None
    if save or absent is None:
        if absent is None or width:
            activations = new(saved, batch, width)
        kept_slots = new(0 if full else (saved, batch, slots), dtype=torch.int32)
        attention = new((saved, batch) if full else (saved, batch, slots))
    if flags:
        overflowed = xp.new_zeros(flags, dtype=torch.bool)
    else:
        overflowed = new(0, dtype=torch.bool) if absent is None else absent
    return AttentiveRun(
        h=new(steps, batch, n),
        s=new(steps, batch, n),
        c_T=c_T,
        values_T=new(batch, capacity, n),
        keys_T=new(batch, capacity, n),
        slots_T=new(batch, slots, dtype=torch.int64),
        origin_T=new(batch, slots, dtype=torch.int64),
        relevance_T=memory.relevance0.new_empty(batch, slots),
        activations=activations,
        slots=kept_slots,
        attention=attention,
        overflowed=overflowed,
    )


@operator
def attentive_forward(
    xp: Tensor,
    weights: AttentionWeights,
    state: AttentionState,
    memory: CarriedMemory,
    options: AttentionOptions,
    lengths: Tensor | None,
    save: bool,
) -> AttentiveRun:
    n = weights.v.shape[0]
    steps, batch, _ = xp.shape
    width_of = kernel_widths.get(xp.device.type)
    kernel_width = 0 if width_of is None else width_of((steps, batch, n), options, xp.device, xp.dtype)
    return allocate_run(xp, n, memory, options, save, kernel_width, flags=int(xp.device.type == "cpu"))


@operator
def portable_forward(
    xp: Tensor,
    weights: AttentionWeights,
    state: AttentionState,
    memory: CarriedMemory,
    options: AttentionOptions,
    lengths: Tensor | None,
    save: bool,
) -> AttentiveRun:
    """`attentive_forward` in torch's operations, for any device (`_portable.py`)."""
    return allocate_run(xp, weights.v.shape[0], memory, options, save)


@operator
def attentive_backward(
    grads: AttentiveOutputGradients,
    weights: AttentionWeights,
    state: AttentionState,
    memory: CarriedMemory,
    options: AttentionOptions,
    saved: AttentiveSaved,
    lengths: Tensor | None,
) -> AttentiveGradients:
    steps, batch, n = saved.h.shape
    lstm = options.cell == "lstm"
    return AttentiveGradients(
        dxp=saved.h.new_empty(steps, batch, 4 * n if lstm else n),
        dq=torch.empty_like(saved.h),
        dk=torch.empty_like(saved.h),
        dv=torch.empty_like(weights.v),
        ds0=torch.empty_like(state.s0),
        dc0=saved.h.new_empty(batch, n) if lstm else saved.h.new_empty(0),
        dvalues0=torch.empty_like(memory.values0),
        dkeys0=torch.empty_like(memory.keys0),
    )


@operator
def portable_backward(
    grads: AttentiveOutputGradients,
    weights: AttentionWeights,
    state: AttentionState,
    memory: CarriedMemory,
    options: AttentionOptions,
    saved: AttentiveSaved,
    lengths: Tensor | None,
) -> AttentiveGradients:
    """`attentive_backward` in torch's operations, for any device (`_portable.py`)."""
    return attentive_backward.allocate(grads, weights, state, memory, options, saved, lengths)


@operator
def attentive_backward_with_inputs(
    grads: AttentiveOutputGradients,
    x: Tensor,
    weights: AttentionWeights,
    state: AttentionState,
    memory: CarriedMemory,
    options: AttentionOptions,
    saved: AttentiveSaved,
    lengths: Tensor | None,
    needs_dx: bool,
) -> AttentiveInputGradients:
    return AttentiveInputGradients(
        dx=input_gradient(x, needs_dx),
        dV=torch.zeros_like(weights.V),
        dW_a=torch.zeros_like(weights.W_a),
        dU_a=torch.zeros_like(weights.U_a),
        dv=torch.empty_like(weights.v),
        ds0=torch.empty_like(state.s0),
        dc0=torch.empty_like(state.s0) if options.cell == "lstm" else saved.h.new_empty(0),
        dvalues0=torch.empty_like(memory.values0),
        dkeys0=torch.empty_like(memory.keys0),
    )
