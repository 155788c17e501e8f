"""The self-attentive recurrences on the CPU, and what happens where their exponentials overflow."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from mnemoscope.kernels import _operators as op
from mnemoscope.kernels import _portable
from mnemoscope.kernels._cpu import exponent_range
from mnemoscope.kernels._cpu.run import Loop
from mnemoscope.kernels._derivatives import attentive_weight_gradients
from mnemoscope.kernels._final_memory import final_origin
from mnemoscope.kernels._naive import split_projection

_forward = Loop(op.attentive_forward, scratch=["largest_magnitude"])
_backward = Loop(op.attentive_backward, scratch=["dv_rows"])
_backward_with_inputs = Loop(op.attentive_backward_with_inputs, scratch=["dv_rows"])


@op.attentive_forward.implement("cpu")
def attentive_forward(
    xp: Tensor,
    weights: op.AttentionWeights,
    state: op.AttentionState,
    memory: op.CarriedMemory,
    options: op.AttentionOptions,
    lengths: Tensor | None,
    save: bool,
) -> op.AttentiveRun:
    s0 = state.s0
    largest_magnitude = xp.new_empty(len(s0))
    found: op.AttentiveRun = _forward(
        xp, weights, state, memory, options, lengths, save, largest_magnitude=largest_magnitude
    )
    if not exponent_range.overflowed(largest_magnitude, found.h, found.s, s0, memory.keys0, weights.W_a, weights.U_a):
        if options.buffer < 0:
            return found
        return found._replace(origin_T=final_origin(found.slots_T, memory.origin0, memory.clock0))

    # Once more in torch's operations, with the activations in the layout of the compiled loop.
    xp, V = split_projection(xp, weights.V, s0.shape[1])
    found = _portable.attentive_forward(xp, weights._replace(V=V), state, memory, options, lengths, save)
    activations = F.pad(found.activations, (2 * s0.shape[1], 0))
    return found._replace(activations=activations, overflowed=torch.ones(1, dtype=torch.bool))


@op.attentive_backward.implement("cpu")
def attentive_backward(
    grads: op.AttentiveOutputGradients,
    weights: op.AttentionWeights,
    state: op.AttentionState,
    memory: op.CarriedMemory,
    options: op.AttentionOptions,
    saved: op.AttentiveSaved,
    lengths: Tensor | None,
) -> op.AttentiveGradients:
    arguments = grads, weights, state, memory, options, saved, lengths
    if saved.overflowed:
        return _portable.attentive_backward(*arguments)
    dv_rows = torch.empty_like(state.s0)
    found: op.AttentiveGradients = _backward(*arguments, dv_rows=dv_rows)
    return found._replace(dv=dv_rows.sum(0))


@op.attentive_backward_with_inputs.implement("cpu")
def attentive_backward_with_inputs(
    grads: op.AttentiveOutputGradients,
    x: Tensor,
    weights: op.AttentionWeights,
    state: op.AttentionState,
    memory: op.CarriedMemory,
    options: op.AttentionOptions,
    saved: op.AttentiveSaved,
    lengths: Tensor | None,
    needs_dx: bool,
) -> op.AttentiveInputGradients:
    arguments = grads, x, weights, state, memory, options, saved, lengths, needs_dx
    if saved.overflowed:
        return _portable_backward_with_inputs(*arguments)
    dv_rows = torch.empty_like(state.s0)
    found: op.AttentiveInputGradients = _backward_with_inputs(*arguments, dv_rows=dv_rows)
    return found._replace(dv=dv_rows.sum(0))


def _portable_backward_with_inputs(
    grads: op.AttentiveOutputGradients,
    x: Tensor,
    weights: op.AttentionWeights,
    state: op.AttentionState,
    memory: op.CarriedMemory,
    options: op.AttentionOptions,
    saved: op.AttentiveSaved,
    lengths: Tensor | None,
    needs_dx: bool,
) -> op.AttentiveInputGradients:
    """`attentive_backward_with_inputs` by `_portable.py`."""
    n = state.s0.shape[1]
    V, U = weights.V[:, :n].contiguous(), weights.V[:, n:]
    found = _portable.attentive_backward(grads, weights._replace(V=V), state, memory, options, saved, lengths)
    dV, dW_a, dU_a = attentive_weight_gradients(found.dxp, found.dq, found.dk, state.s0, saved.s, saved.h)
    dU = found.dxp.flatten(0, 1).T @ x.flatten(0, 1)
    return op.AttentiveInputGradients(
        dx=found.dxp @ U if needs_dx else x.new_empty(0, *x.shape[1:]),
        dV=torch.cat([dV, dU], 1),
        dW_a=dW_a.contiguous(),
        dU_a=dU_a,
        dv=found.dv,
        ds0=found.ds0,
        dc0=found.dc0,
        dvalues0=found.dvalues0,
        dkeys0=found.dkeys0,
    )
