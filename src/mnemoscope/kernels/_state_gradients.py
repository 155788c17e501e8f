"""The total gradient of every state, from the one backward pass that all other gradients come from.

What autograd gives for the states h (T, B, n) of a fused run is the direct gradient, of whatever reads them outside of
it; what comes back through the recurrence stays inside the loop. But the loop returns the gradients of what was added
before each nonlinearity, and h_t enters those of step t + 1 by a matrix: one more product, with no division by a slope
that may be zero.

    with recording() as runs:
        y, _ = layer(x)
    (run,) = runs  # one per layer and direction
    found = torch.autograd.grad(loss(y), run.inputs, allow_unused=True, materialize_grads=True)
    run.total_gradient(*found)  # d loss / d h_t, (T, B, n)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from mnemoscope.kernels import _operators as op
from mnemoscope.kernels._final_memory import final_memory_backward
from mnemoscope.kernels._operator import Operator
from mnemoscope.kernels._settings import settings


@dataclass(frozen=True)
class RecordedRun:
    """A layer's run over T steps without padding.

    Attributes:
        states: h (T, B, n).
        inputs: the tensors whose gradients autograd must be asked for.
        total_gradient: from those gradients, in that order, to the total gradient of every state (T, B, n).
    """

    states: Tensor
    inputs: tuple[Tensor, ...]
    total_gradient: Callable[..., Tensor]


@contextmanager
def recording() -> Iterator[list[RecordedRun]]:
    """Record every layer's run inside a ``with``, in the order in which they are made, in this thread."""
    before = settings.recorded
    runs: list[RecordedRun] = []
    settings.recorded = runs
    try:
        yield runs
    finally:
        settings.recorded = before


def is_recording(lengths: Tensor | None = None) -> bool:
    """True if a run is to be recorded; never one of padded rows."""
    return settings.recorded is not None and lengths is None


def record(states: Tensor, inputs: tuple[Tensor, ...], total_gradient: Callable[..., Tensor]) -> None:
    """Add a `RecordedRun` to what the innermost `recording()` holds."""
    if settings.recorded is not None:
        settings.recorded.append(RecordedRun(states, inputs, total_gradient))


_SCALE = 2.0**40  # lifts products out of the subnormal range, in which a CPU is ten times slower


def _add_from_next_step(direct: Tensor, later: Tensor, V: Tensor) -> Tensor:
    """Return direct_t + V^T later_{t+1}: direct (T, B, n), later (T, B, G), V (G, n) -> (T, B, n).

    Backwards in time gradients often vanish: some steps have them at the edge of underflow, and all those before have
    none. The product leaves those out and is made on a larger scale.
    """
    total = direct.clone(memory_format=torch.contiguous_format)
    largest = torch.maximum(later.flatten(1).amax(1), -later.flatten(1).amin(1))  # (T,); torch.aminmax is slower
    begin = max(1, int((largest != 0).int().argmax()))
    scale = _SCALE if V.device.type == "cpu" and bool(largest.max() < 1e15) else 1.0
    total[begin - 1 : -1].add_(later[begin:] @ (V * scale), alpha=1 / scale)  # addmm_ might scale the factors first
    return total


def through_matrix(V: Tensor) -> Callable[..., Tensor]:
    """States that only V reads: dh_t + V^T dxp_{t+1}. An LSTM's too, whose c_t is another state."""

    @torch.no_grad()
    def total_gradient(dxp: Tensor, dh: Tensor) -> Tensor:
        return _add_from_next_step(dh, dxp, V)

    return total_gradient


def through_product(xp: Tensor, V: Tensor, h0: Tensor, b: Tensor | None, h: Tensor) -> Callable[..., Tensor]:
    """h_t = u_t * xp_t with u_t = V h_{t-1} + b: dh_t + V^T du_{t+1}. A second backward pass gives du."""

    @torch.no_grad()
    def total_gradient(dh: Tensor) -> Tensor:
        u = F.linear(torch.cat([h0.unsqueeze(0), h[:-1]]), V, b)
        du = op.rac_backward(dh.contiguous(), xp, V, u, None).du
        return _add_from_next_step(dh, du, V)

    return total_gradient


def through_gates(V: Tensor, gates: Tensor) -> Callable[..., Tensor]:
    """GORU and GRU. gates (T, B, 4n) begin with the reset gate r and the update gate z.

    h_t is read by both gates and, times r, by the candidate; and h_{t+1} keeps z_{t+1} of it.
    """
    n = V.shape[1]

    @torch.no_grad()
    def total_gradient(dxp: Tensor, dh: Tensor) -> Tensor:
        r, z = gates[..., :n], gates[..., n : 2 * n]
        d_products = torch.cat([dxp[..., : 2 * n], r * dxp[..., 2 * n :]], -1)
        total = _add_from_next_step(dh, d_products, V)
        for t in reversed(range(len(total) - 1)):
            total[t].addcmul_(z[t + 1], total[t + 1])
        return total

    return total_gradient


def through_attention(
    backward: Operator,
    weights: op.AttentionWeights,
    state: op.AttentionState,
    memory: op.CarriedMemory,
    options: op.AttentionOptions,
    run: op.AttentiveRun,
) -> Callable[..., Tensor]:
    """The self-attentive recurrences. h_t is read by s_t, by all later steps that attend to it, and in the final
    memory.

    The backward pass computes the total gradient of h_t on its way to dxp_t, but returns only dxp_t = phi'(z_t) *
    total. So it is run a second time on the same states with another cell, through which dxp_t is the total itself:
    phi = the identity, whose slope is 1, and V = 0, so that nothing passes from step to step through the cell. What
    the true V carried back to s_t is known from the first backward pass, V^T dxp_{t+1}, and is given as a part of
    ds. Queries, keys and attention weights are as they were: their gradients pass as in the first.
    """
    saved = op.AttentiveSaved(*[getattr(run, name) for name in op.AttentiveSaved._fields])
    without_V = op.saved_without_V.get(run.h.device.type)
    if without_V is not None:
        saved = saved._replace(activations=without_V(saved.activations, run.h, options))
    identity_cell = options._replace(cell="rnn", phi="identity")
    without_cell = weights._replace(V=torch.zeros_like(weights.W_a), b=None)
    slots_T = None if options.buffer < 0 else run.slots_T

    @torch.no_grad()
    def total_gradient(dxp: Tensor, dh: Tensor, ds: Tensor, dvalues: Tensor, dkeys: Tensor) -> Tensor:
        ds = _add_from_next_step(ds, dxp, weights.V)
        by_memory = final_memory_backward(dvalues, dkeys, run.h, weights.U_a, memory.values0, slots_T, None)
        grads = op.AttentiveOutputGradients(dh=(dh + by_memory.dh).contiguous(), ds=ds, dc_T=None)
        initial = op.AttentionState(s0=state.s0, c0=None)
        return backward(grads, without_cell, initial, memory, identity_cell, saved, None).dxp

    return total_gradient


def through_backtracking(
    V: Tensor, w: Tensor, memory: op.CarriedMemory, options: op.SabOptions, run: op.SabRun
) -> Callable[..., Tensor]:
    """SAB, by the same second backward pass. Its loop knows only one cell, so the identity is built from an LSTM.

    With V = 0, c_t = 1 and gates i = f = g = 0, o = 1/2, the gradient of the output gate before its sigmoid is
    dz_o = dh_t tanh(c_t) o (1 - o) = dh_t tanh(1) / 4; so dh_t = dz_o * 4 / tanh(1).
    """
    h = run.h

    @torch.no_grad()
    def total_gradient(dxp: Tensor, dh: Tensor, dattended: Tensor) -> Tensor:
        # What V carried back to h_t, except where the gradient is cut.
        clock = memory.clock0 + torch.arange(len(h), device=h.device)[:, None]  # (T, B)
        cut = (clock > 0) & (clock % options.truncation == 0)
        dh = _add_from_next_step(dh, dxp.masked_fill(cut[..., None], 0), V)

        # The second backward pass, with the cell that passes gradients on as they are.
        closed_gates = h.new_zeros(*h.shape[:2], 3 * h.shape[2])
        gates = torch.cat([closed_gates, torch.full_like(h, 0.5)], -1)
        saved = op.SabSaved(h, torch.ones_like(h), gates, run.slots, run.attention)
        c0 = torch.zeros_like(h[0])
        found = op.sab_backward(
            dh, dattended.contiguous(), None, torch.zeros_like(V), w, c0, memory, options, saved, None
        )
        dz_o = found.dxp[..., -h.shape[2] :]
        return dz_o * (4 / math.tanh(1))

    return total_gradient
