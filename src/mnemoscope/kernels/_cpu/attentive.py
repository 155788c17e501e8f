"""The self-attentive recurrences on the CPU, and what happens where their exponentials overflow."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from mnemoscope.kernels import _operators as op
from mnemoscope.kernels import _portable
from mnemoscope.kernels._cpu import exponent_range
from mnemoscope.kernels._cpu.projecting import NO_GRADIENTS, loop_inputs, making_projection_gradients
from mnemoscope.kernels._cpu.run import Loop
from mnemoscope.kernels._cpu.structures import PROJECTION, PROJECTION_BACKWARD
from mnemoscope.kernels._derivatives import attentive_weight_gradients
from mnemoscope.kernels._naive import split_projection
from mnemoscope.kernels._operator import ProjectedRun, Projection, ProjectionGradients

_forward = Loop(op.attentive_forward, scratch=["largest_magnitude", *PROJECTION])
_backward = Loop(op.attentive_backward, scratch=PROJECTION_BACKWARD)
_backward_with_inputs = Loop(op.attentive_backward_with_inputs, scratch=PROJECTION_BACKWARD)
_backward_with_projection = making_projection_gradients(_backward_with_inputs)
_SAVED = op.attentive_backward_with_inputs.parameters.index("saved")


@op.attentive_forward.implement("cpu", projects=True)
def attentive_forward(
    xp: Tensor | Projection,
    weights: op.AttentionWeights,
    state: op.AttentionState,
    memory: op.CarriedMemory,
    options: op.AttentionOptions,
    lengths: Tensor | None,
    save: bool,
) -> op.AttentiveRun | ProjectedRun:
    s0 = state.s0
    x, beside = loop_inputs(xp, s0.shape[1], lengths)
    largest_magnitude = x.new_empty(1)
    found: op.AttentiveRun = _forward(
        x, weights, state, memory, options, lengths, save, largest_magnitude=largest_magnitude, **beside
    )
    done = found if isinstance(xp, Tensor) else ProjectedRun(found, beside["h_T"])
    if largest_magnitude.item() < exponent_range.LARGEST[x.dtype]:
        return done
    memory = _with_all_slots(memory, s0, options)
    if not exponent_range.overflowed(found.h, found.s, s0, memory.keys0, weights.W_a, weights.U_a):
        return done

    # Once more in torch's operations, with the activations in the layout of the compiled loop.
    xp = xp if isinstance(xp, Tensor) else xp.project()
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
    if not saved.overflowed:
        return _backward(grads, weights, state, memory, options, saved, lengths, **NO_GRADIENTS)

    # A run that overflowed was made in torch's operations, and so is its backward pass.
    slots = _with_all_slots(memory, state.s0, options)
    found = _portable.attentive_backward(grads, weights, state, slots, options, saved, lengths)
    if slots is memory:
        return found
    return found._replace(dvalues0=torch.empty_like(memory.values0), dkeys0=torch.empty_like(memory.keys0))


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
    if not saved.overflowed:
        return _backward_with_inputs(
            grads, x, weights, state, memory, options, saved, lengths, needs_dx, **NO_GRADIENTS
        )

    # The same in torch's operations, and here also the gradients of the weights.
    n = state.s0.shape[1]
    V, U = weights.V[:, :n].contiguous(), weights.V[:, n:]
    found = attentive_backward(grads, weights._replace(V=V), state, memory, options, saved, lengths)
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


def _with_projection(
    projection: Projection, *arguments: Any
) -> tuple[op.AttentiveInputGradients, ProjectionGradients] | None:
    """`attentive_backward_with_inputs` from a projection that is not packed.

    None for a run that overflowed, whose gradients `attentive_backward` makes.
    """
    saved: op.AttentiveSaved = arguments[_SAVED]
    return None if saved.overflowed else _backward_with_projection(projection, *arguments)


op.attentive_backward_with_inputs.with_projection["cpu"] = _with_projection


def _with_all_slots(memory: op.CarriedMemory, s0: Tensor, options: op.AttentionOptions) -> op.CarriedMemory:
    """Return the memory as `_portable.py` reads it: one that is absent with all its slots, which are empty."""
    if memory.values0.dim() > 1:
        return memory
    return op.empty_memory(s0, s0.shape[0], options.buffer + options.relevant)
