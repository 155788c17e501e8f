"""The self-attentive recurrences on CUDA: which kernel runs which."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from mnemoscope.kernels import _operators as op
from mnemoscope.kernels._cuda import full_attention, screened, screened_steps
from mnemoscope.kernels._cuda.arguments import as_float32, group_as_float32, group_to_dtype
from mnemoscope.kernels._final_memory import final_memory


@op.attentive_forward.implement("cuda")
def attentive_forward(
    xp: Tensor,
    weights: op.AttentionWeights,
    state: op.AttentionState,
    memory: op.CarriedMemory,
    options: op.AttentionOptions,
    lengths: Tensor | None,
    save: bool,
) -> op.AttentiveRun:
    wide_xp = as_float32(xp)
    dtype = xp.dtype
    wide = group_as_float32(weights, dtype), group_as_float32(state, dtype), group_as_float32(memory, dtype)
    # The results have the portable operator's shapes: e^{2q} is never saved, and cannot overflow.
    run = op.portable_forward.allocate(wide_xp, *wide, options, lengths, save)
    if options.buffer >= 0:
        screening = _screening(options, run.h)
        return group_to_dtype(screening.forward(run, wide_xp, *wide, options, lengths, save), dtype)

    # Full attention's final memory is made behind the kernel: until then, its tensors need no room.
    run = run._replace(values_T=xp.new_empty(0), keys_T=xp.new_empty(0))
    full_attention.forward(run, wide_xp, *wide, options, lengths, save)
    run = group_to_dtype(run, dtype)
    values_T, keys_T = final_memory(run.h, weights.U_a, memory.values0, memory.keys0, None)
    return run._replace(values_T=values_T, keys_T=keys_T)


def _screening(options: op.AttentionOptions, h: Tensor) -> Any:
    """Return the module that runs screened attention over states h (T, B, n): by clusters, or step by step.

    A cluster runs one sequence: wide layers in large batches wait for each other. The limits were measured on an H200.
    """
    _, B, n = h.shape
    lstm = options.cell == "lstm"
    waits = n > 128 and B > 192 if lstm else n > 256 and B > 80
    if waits or not screened.supports(lstm, n, options.buffer + options.relevant, h.device):
        return screened_steps
    return screened


@op.attentive_backward.implement("cuda")
def attentive_backward(
    grads: op.AttentiveOutputGradients,
    weights: op.AttentionWeights,
    state: op.AttentionState,
    memory: op.CarriedMemory,
    options: op.AttentionOptions,
    saved: op.AttentiveSaved,
    lengths: Tensor | None,
) -> op.AttentiveGradients:
    backward = full_attention.backward if options.buffer < 0 else _screening(options, saved.h).backward
    dtype = saved.h.dtype
    found = backward(
        group_as_float32(grads, dtype),
        group_as_float32(weights, dtype),
        group_as_float32(state, dtype),
        group_as_float32(memory, dtype),
        options,
        group_as_float32(saved, dtype),
        lengths,
    )
    return group_to_dtype(found, dtype)
