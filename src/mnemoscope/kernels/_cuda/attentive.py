"""The self-attentive recurrences on CUDA: which kernel runs which."""

from __future__ import annotations

import torch
from torch import Tensor

from mnemoscope.kernels import _operators as op
from mnemoscope.kernels._cuda import full_attention, screened
from mnemoscope.kernels._final_memory import final_memory
from mnemoscope.kernels._operators import implement


@implement("attentive_forward", "cuda")
def attentive_forward(
    xp: Tensor,
    weights: op.AttentionWeights,
    state: op.AttentionState,
    memory: op.CarriedMemory,
    options: op.AttentionOptions,
    lengths: Tensor | None,
    save: bool,
) -> op.AttentiveRun:
    values0, keys0, origin0 = memory.values0, memory.keys0, memory.origin0
    if options.buffer < 0:
        h, s, c_T, slots, *rest = full_attention.forward(
            xp, *weights, *state, values0, keys0, origin0, options.cell, options.phi, options.mix, lengths, save
        )
        slots_T = None
    else:
        cell, phi, buffer, relevant, mix, decay, refresh = options
        h, s, c_T, slots, *rest = screened.forward(
            xp, *weights, *state, *memory, cell, phi, buffer, relevant, mix, decay, refresh, lengths, save
        )
        slots_T = slots
    values_T, keys_T = final_memory(h, weights.U_a, values0, keys0, slots_T)
    relevance_T, activations, attended_slots, attention = rest
    overflowed = xp.new_empty(0, dtype=torch.bool)  # these kernels add q + k first
    return op.AttentiveRun(
        h, s, c_T, values_T, keys_T, slots, relevance_T, activations, attended_slots, attention, overflowed
    )


@implement("attentive_backward", "cuda")
def attentive_backward(
    grads: op.AttentiveOutputGradients,
    weights: op.AttentionWeights,
    state: op.AttentionState,
    memory: op.CarriedMemory,
    options: op.AttentionOptions,
    saved: op.AttentiveSaved,
    lengths: Tensor | None,
) -> tuple[Tensor, ...]:
    V, W_a, U_a, v, _ = weights
    values0, keys0, origin0, _, _ = memory
    cell, phi, buffer, relevant, mix, _, _ = options
    h, s, activations, slots, attention, _ = saved
    if buffer < 0:
        return full_attention.backward(
            *grads, V, W_a, U_a, v, *state, values0, keys0, origin0, h, s, activations, attention, cell, phi, mix,
            lengths,
        )  # fmt: skip
    return screened.backward(
        *grads, V, W_a, U_a, v, *state, values0, keys0, h, s, activations, origin0, slots, attention, cell, phi,
        buffer, relevant, mix, lengths,
    )  # fmt: skip
