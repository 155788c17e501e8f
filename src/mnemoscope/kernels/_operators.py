"""The fused recurrences: the arguments, results and shapes of every operator.

Each family is a pair. `*_forward` runs a whole sequence; `*_backward` runs it backwards in time and returns the
gradients of what was added before each nonlinearity. Gradients of weights are one matrix product after the loop,
written once in `_autograd.py` for all devices. A backend registers a loop with `@rnn_forward.implement("cpu")`.

Common to all: tensors are time-major and contiguous; T steps, B rows, n units. `xp` holds the input projections
with all biases. `lengths` (B,) int64 or None: past its length a row has zeros in every output (anything in
`slots`), and its state stays as it was at its length. `save=False` (nothing will be differentiated) gives every
tensor that only the backward pass reads 0 steps instead of T.

On the CPU the loops of rnn, lstm and attentive can also compute the projection, and in the backward pass the gradients
of the weights. Then V is [V, U, b] (Gn, n + E) and xp is the inputs followed by a one, [x, 1] (T, B, E). The backward
pass of such a run is `*_backward_with_inputs`; without `needs_dx` its dx has no steps. modReLU is not among them: its
bias needs each step's gradient.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from mnemoscope.kernels._operator import operator


def _input_gradient(x: Tensor, needs_dx: bool) -> Tensor:
    return torch.empty_like(x) if needs_dx else x.new_empty(0, *x.shape[1:])


# Plain recurrence: h_t = phi(xp_t + V h_{t-1}). Every phi' is a function of h alone, so nothing else is saved.


class RnnGradients(NamedTuple):
    """dxp (T, B, n), dh0 (B, n)."""

    dxp: Tensor
    dh0: Tensor


class RnnInputGradients(NamedTuple):
    """dx (T, B, E) of [x, 1], dV (n, n + E) of [V, U, b], dh0 (B, n)."""

    dx: Tensor
    dV: Tensor
    dh0: Tensor


@operator
def rnn_forward(xp: Tensor, V: Tensor, h0: Tensor, b: Tensor | None, phi: str, lengths: Tensor | None) -> Tensor:
    """Return h (T, B, n); xp (T, B, n), V (n, n), h0 (B, n), b (n) modReLU's bias."""
    return xp.new_empty(xp.shape[0], *h0.shape)


@operator
def rnn_backward(dh: Tensor, V: Tensor, h: Tensor, lengths: Tensor | None, phi: str) -> RnnGradients:
    return RnnGradients(dxp=torch.empty_like(h), dh0=torch.empty_like(h[0]))


@operator
def rnn_backward_with_inputs(
    dh: Tensor, x: Tensor, V: Tensor, h0: Tensor, h: Tensor, lengths: Tensor | None, phi: str, needs_dx: bool
) -> RnnInputGradients:
    return RnnInputGradients(dx=_input_gradient(x, needs_dx), dV=torch.zeros_like(V), dh0=torch.empty_like(h0))


# LSTM: gates in torch's order i, f, g, o.


class LstmRun(NamedTuple):
    """h (T, B, n), c_T (B, n); saved: cells c_t (T, B, n), gates after their nonlinearities (T, B, 4n)."""

    h: Tensor
    c_T: Tensor
    cells: Tensor
    gates: Tensor


class LstmGradients(NamedTuple):
    """dxp (T, B, 4n), dh0 and dc0 (B, n)."""

    dxp: Tensor
    dh0: Tensor
    dc0: Tensor


class LstmInputGradients(NamedTuple):
    """dx (T, B, E) of [x, 1], dV (4n, n + E) of [V, U, b], dh0 and dc0 (B, n)."""

    dx: Tensor
    dV: Tensor
    dh0: Tensor
    dc0: Tensor


@operator
def lstm_forward(xp: Tensor, V: Tensor, h0: Tensor, c0: Tensor, lengths: Tensor | None, save: bool) -> LstmRun:
    """xp (T, B, 4n), V (4n, n), h0 and c0 (B, n)."""
    steps, (batch, n) = xp.shape[0], h0.shape
    saved = steps if save else 0
    return LstmRun(
        h=xp.new_empty(steps, batch, n),
        c_T=torch.empty_like(c0),
        cells=xp.new_empty(saved, batch, n),
        gates=xp.new_empty(saved, batch, 4 * n),
    )


@operator
def lstm_backward(
    dh: Tensor | None, dc_T: Tensor | None, V: Tensor, c0: Tensor, cells: Tensor, gates: Tensor, lengths: Tensor | None
) -> LstmGradients:
    return LstmGradients(dxp=torch.empty_like(gates), dh0=torch.empty_like(c0), dc0=torch.empty_like(c0))


@operator
def lstm_backward_with_inputs(
    dh: Tensor | None,
    dc_T: Tensor | None,
    x: Tensor,
    V: Tensor,
    h0: Tensor,
    c0: Tensor,
    h: Tensor,
    cells: Tensor,
    gates: Tensor,
    lengths: Tensor | None,
    needs_dx: bool,
) -> LstmInputGradients:
    return LstmInputGradients(
        dx=_input_gradient(x, needs_dx),
        dV=torch.zeros_like(V),
        dh0=torch.empty_like(h0),
        dc0=torch.empty_like(c0),
    )


# Recurrent arithmetic circuit: h_t = (V h_{t-1} + b) * xp_t.


class StateProductGradients(NamedTuple):
    """dxp (T, B, Gn), du (T, B, n) of the product u_t with the state that a gate multiplies, dh0 (B, n)."""

    dxp: Tensor
    du: Tensor
    dh0: Tensor


@operator
def rac_forward(xp: Tensor, V: Tensor, h0: Tensor, b: Tensor | None, lengths: Tensor | None) -> Tensor:
    """Return h (T, B, n); xp (T, B, n), V (n, n), h0 (B, n), b (n)."""
    return torch.empty_like(xp)


@operator
def rac_backward(dh: Tensor, xp: Tensor, V: Tensor, u: Tensor, lengths: Tensor | None) -> StateProductGradients:
    """u_t = V h_{t-1} + b (T, B, n) is made by the caller."""
    return StateProductGradients(dxp=torch.empty_like(xp), du=torch.empty_like(xp), dh0=torch.empty_like(xp[0]))


# Gated units whose reset gate r multiplies a product u_t with the state: GORU and GRU.


class GatedRun(NamedTuple):
    """h (T, B, n); saved: gates (T, B, 4n)."""

    h: Tensor
    gates: Tensor


def _gated_run(xp: Tensor, h0: Tensor, save: bool) -> GatedRun:
    steps, (batch, n) = xp.shape[0], h0.shape
    return GatedRun(h=xp.new_empty(steps, batch, n), gates=xp.new_empty(steps if save else 0, batch, 4 * n))


def _gated_gradients(h: Tensor, h0: Tensor) -> StateProductGradients:
    steps, batch, n = h.shape
    return StateProductGradients(dxp=h.new_empty(steps, batch, 3 * n), du=torch.empty_like(h), dh0=torch.empty_like(h0))


@operator
def goru_forward(xp: Tensor, W: Tensor, h0: Tensor, b: Tensor, lengths: Tensor | None, save: bool) -> GatedRun:
    """h_t = g * h_{t-1} + (1 - g) * c with c = modReLU(r * u + xp_c, b) and u = Q h_{t-1}.

    xp (T, B, 3n) in the order r, g, c; W (3n, n) = [W_r; W_g; Q]; b (n). The saved gates are r, g, c, u.
    """
    return _gated_run(xp, h0, save)


@operator
def goru_backward(
    dh: Tensor, W: Tensor, h0: Tensor, h: Tensor, gates: Tensor, lengths: Tensor | None
) -> StateProductGradients:
    return _gated_gradients(h, h0)


@operator
def gru_forward(xp: Tensor, V: Tensor, b_hn: Tensor | None, h0: Tensor, lengths: Tensor | None, save: bool) -> GatedRun:
    """h_t = (1 - z) * n + z * h_{t-1} with n = tanh(xp_n + r * u) and u = V_n h_{t-1} + b_hn.

    xp (T, B, 3n) in torch's order r, z, n, with b_ih and with b_hh of r and z; V (3n, n); b_hn (n). The saved gates are
    r, z, n, u.
    """
    return _gated_run(xp, h0, save)


@operator
def gru_backward(
    dh: Tensor, V: Tensor, h0: Tensor, h: Tensor, gates: Tensor, lengths: Tensor | None
) -> StateProductGradients:
    return _gated_gradients(h, h0)


# Recurrences with a memory. An index into it counts the m slots that were carried in first, then the T new states;
# -1 is an empty slot.


class CarriedMemory(NamedTuple):
    """The memory that a sequence starts with.

    values0 and keys0 (B, m, n); origin0 (B, m) int64, the step at which a state was made, -1 for an empty slot;
    relevance0 (B, m); clock0 (B,) int64, the steps made so far.
    """

    values0: Tensor
    keys0: Tensor
    origin0: Tensor
    relevance0: Tensor
    clock0: Tensor


# Self-attentive recurrences. The cell ("rnn": G = 1, "lstm": G = 4) reads s_{t-1}; the query is W_a s_{t-1}, the
# keys are U_a h_i, the scores v . tanh(query + key), h_t itself included; s_t = h_t + c_t (mix "sum") or their mean
# ("mean").


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


class AttentiveRun(NamedTuple):
    """What a self-attentive run returns, and from `activations` on what it saves.

    h and s (T, B, n), c_T (B, n) (rnn: (0,)). The memory after the last step: values_T and keys_T (B, m, n), where an
    empty slot keeps what it held (full attention: (B, m + T, n), zeros past a row's length), slots_T (B, m) int64 and
    relevance_T (B, m) (full attention: (B, 0)).

    activations (T, B, W): on the CPU alone e^{2q} and e^{2k} of the step's query and key; then an LSTM's i, f, g, o and
    c_t. slots (T, B, m) int32 as attended at each step (full attention: (0,)). attention (T, B, m), the weights, zero
    in empty slots (full attention: (T, B), the logarithm of the softmax's sum). overflowed (1,) bool on the CPU, else
    (0,): the run left the range of e^{2q} and was made by `_portable.py`, and so must be its backward pass.
    """

    h: Tensor
    s: Tensor
    c_T: Tensor
    values_T: Tensor
    keys_T: Tensor
    slots_T: Tensor
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

    That is ds0 (B, n), dc0 (B, n) (rnn: (0,)), dvalues0 and dkeys0 (B, m, n).
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


def _attentive_run(
    xp: Tensor,
    state: AttentionState,
    memory: CarriedMemory,
    options: AttentionOptions,
    save: bool,
    kernel_width: int,
    flags: int,
) -> AttentiveRun:
    steps, (batch, n) = xp.shape[0], state.s0.shape
    saved = steps if save else 0
    lstm = options.cell == "lstm"
    full = options.buffer < 0
    slots = 0 if full else options.buffer + options.relevant
    capacity = memory.values0.shape[1] + steps if full else slots
    new = xp.new_empty
    return AttentiveRun(
        h=new(steps, batch, n),
        s=new(steps, batch, n),
        c_T=new(batch, n) if lstm else new(0),
        values_T=new(batch, capacity, n),
        keys_T=new(batch, capacity, n),
        slots_T=new(batch, slots, dtype=torch.int64),
        relevance_T=memory.relevance0.new_empty(batch, slots),
        activations=new(saved, batch, kernel_width + (5 * n if lstm else 0)),
        slots=new(0 if full else (saved, batch, slots), dtype=torch.int32),
        attention=new((saved, batch) if full else (saved, batch, slots)),
        overflowed=xp.new_zeros(flags, dtype=torch.bool),
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
    on_cpu = xp.device.type == "cpu"
    return _attentive_run(xp, state, memory, options, save, 2 * state.s0.shape[1] if on_cpu else 0, int(on_cpu))


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
    return _attentive_run(xp, state, memory, options, save, 0, 0)


def _attentive_gradients(
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
        dc0=torch.empty_like(state.s0) if lstm else saved.h.new_empty(0),
        dvalues0=torch.empty_like(memory.values0),
        dkeys0=torch.empty_like(memory.keys0),
    )


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
    return _attentive_gradients(grads, weights, state, memory, options, saved, lengths)


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
    return _attentive_gradients(grads, weights, state, memory, options, saved, lengths)


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
        dx=_input_gradient(x, needs_dx),
        dV=torch.zeros_like(weights.V),
        dW_a=torch.zeros_like(weights.W_a),
        dU_a=torch.zeros_like(weights.U_a),
        dv=torch.empty_like(weights.v),
        ds0=torch.empty_like(state.s0),
        dc0=torch.empty_like(state.s0) if options.cell == "lstm" else saved.h.new_empty(0),
        dvalues0=torch.empty_like(memory.values0),
        dkeys0=torch.empty_like(memory.keys0),
    )


# Sparse attentive backtracking: an LSTM whose h_t is h^_t + attended_t, detached from its past where clock > 0 and
# clock % truncation == 0; h_t is stored where (clock + 1) % store_every == 0. A stored m_i has the score w .
# tanh(m_i) (the part that reads h^ is the same for all i and drops out), and the keys are tanh(m_i). Up to `top`
# stored states get their softmax; of more, the `top` largest get relu(score_i - top-th largest - 1e-7), divided by
# its sum + 1e-7.


class SabOptions(NamedTuple):
    """k_att, k_top and k_trunc of sparse attentive backtracking."""

    store_every: int
    top: int
    truncation: int


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
