"""The self-attentive recurrences on CUDA: which kernel runs which."""

from __future__ import annotations

import torch
from torch import Tensor

from mnemoscope.kernels import _operators as op
from mnemoscope.kernels._cuda import full_attention, screened, screened_steps
from mnemoscope.kernels._cuda.arguments import as_float32, group_as_float32, group_to_dtype
from mnemoscope.kernels._cuda.layout import Tile
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
        tile = _tile(options, run.h, dtype)
        if tile is None:
            run = screened_steps.forward(run, wide_xp, *wide, options, lengths, save)
        else:
            run = screened.forward(tile, run, wide_xp, *wide, options, lengths, save)
        return group_to_dtype(run, dtype)

    # Full attention's final memory is made behind the kernel: until then, its tensors need no room.
    run = run._replace(values_T=xp.new_empty(0), keys_T=xp.new_empty(0))
    full_attention.forward(run, wide_xp, *wide, options, lengths, save)
    run = group_to_dtype(run, dtype)
    values_T, keys_T = final_memory(run.h, weights.U_a, memory.values0, memory.keys0, None)
    return run._replace(values_T=values_T, keys_T=keys_T)


def _tile(options: op.AttentionOptions, h: Tensor, dtype: torch.dtype) -> Tile | None:
    """Return how clusters run screened attention over states h (T, B, n); None if it runs step by step.

    A cluster runs few sequences: wide layers in large batches wait for each other. The limits were measured on an H200.
    """
    _, B, n = h.shape
    waits = n > 128 and B > 192 if options.cell == "lstm" else n > 256 and B > 80
    return None if waits else screened.choose_tile(options, h, dtype)


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
    dtype = saved.h.dtype
    arguments = (
        group_as_float32(grads, dtype),
        group_as_float32(weights, dtype),
        group_as_float32(state, dtype),
        group_as_float32(memory, dtype),
        options,
        group_as_float32(saved, dtype),
        lengths,
    )
    tile = _tile(options, saved.h, dtype) if options.buffer >= 0 else None
    if options.buffer < 0:
        found = full_attention.backward(*arguments)
    elif tile is None:
        found = screened_steps.backward(*arguments)
    else:
        found = screened.backward(tile, *arguments)
    return group_to_dtype(found, dtype)
