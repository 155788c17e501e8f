"""The self-attentive recurrences on CUDA: which kernel runs which."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mnemoscope.kernels import _operators as op
from mnemoscope.kernels._absent import shared_absent
from mnemoscope.kernels._cuda import full_attention, screened, screened_steps
from mnemoscope.kernels._cuda.arguments import as_float32, group_as_float32, group_to_dtype
from mnemoscope.kernels._cuda.products import Factors
from mnemoscope.kernels._final_memory import final_memory
from mnemoscope.kernels._operator import ProjectedRun, Projection

# Up to this size a short run keeps its products for the backward pass: a GPU waits there for its host, which would have
# three more launches to make. A long run makes them again: their memory is then free between the two passes.
_KEPT_BYTES = 64 << 20


@op.attentive_forward.implement("cuda", projects=True)
def attentive_forward(
    xp: Tensor | Projection,
    weights: op.AttentionWeights,
    state: op.AttentionState,
    memory: op.CarriedMemory,
    options: op.AttentionOptions,
    lengths: Tensor | None,
    save: bool,
) -> Any:  # an AttentiveRun; of a projection, a ProjectedRun
    inputs = xp.x if isinstance(xp, Projection) else xp
    shape = inputs.shape[0], inputs.shape[1], weights.v.shape[0]
    bfloat16 = _runs_on_tensor_cores(shape, options, inputs.device, inputs.dtype)
    by_cluster = bfloat16 or _runs_by_cluster(shape, options, inputs.device)
    if isinstance(xp, Projection) and by_cluster:
        return _project_and_run(xp, weights, state, memory, options, lengths, save, bfloat16)
    if isinstance(xp, Projection):
        xp = xp.project()
    wide_xp = as_float32(xp)
    dtype = xp.dtype
    wide = group_as_float32(weights, dtype), group_as_float32(state, dtype), group_as_float32(memory, dtype)
    width = _kernel_width(shape, options, inputs.device, dtype)
    run = op.allocate_run(wide_xp, shape[2], wide[2], options, save, width)
    if by_cluster:
        return group_to_dtype(screened.forward(run, wide_xp, *wide, options, lengths, save, bfloat16=bfloat16), dtype)
    if options.buffer >= 0:
        return group_to_dtype(screened_steps.forward(run, wide_xp, *wide, options, lengths, save), dtype)

    # Full attention's final memory is made behind the kernel: until then, its tensors need no room.
    run = run._replace(values_T=wide_xp.new_empty(0), keys_T=wide_xp.new_empty(0))
    full_attention.forward(run, wide_xp, *wide, options, lengths, save)
    run = group_to_dtype(run, dtype)
    values_T, keys_T = final_memory(run.h, weights.U_a, memory.values0, memory.keys0, None)
    return run._replace(values_T=values_T, keys_T=keys_T)


def _runs_on_tensor_cores(
    shape: tuple[int, int, int], options: op.AttentionOptions, device: torch.device, dtype: torch.dtype
) -> bool:
    """True if screened attention over states of shape (T, B, n) multiplies in bfloat16, by clusters.

    That pays where sequences share a cluster, or where no cluster holds the weights in float32.
    """
    if dtype is not torch.bfloat16 or options.buffer < 0:
        return False
    _, B, n = shape
    if not screened.fits_tensor_cores(options, n, device):
        return False
    return not _runs_by_cluster(shape, options, device) or screened.shares_clusters(options, n, B, device)


def _project_and_run(
    projection: Projection,
    weights: op.AttentionWeights,
    state: op.AttentionState,
    memory: op.CarriedMemory,
    options: op.AttentionOptions,
    lengths: Tensor | None,
    save: bool,
    bfloat16: bool,
) -> ProjectedRun:
    """Run by clusters, whose kernel adds the biases and writes what would else be copied or made again.

    One on the tensor cores keeps no products: its runs are not short.
    """
    product = projection.product()
    dtype = product.dtype
    xp = as_float32(product)
    weights = group_as_float32(weights, dtype)
    state = group_as_float32(state, dtype)
    memory = group_as_float32(memory, dtype)
    T, B, _ = xp.shape
    n = weights.v.shape[0]
    size = T * B * n * (screened.rows_per_unit(options.cell == "lstm") + 1)
    run = op.allocate_run(xp, n, memory, options, save, absent=shared_absent(xp.dtype, xp.device))
    beside = screened.Beside(
        b_ih=as_float32(projection.b_ih),
        b_hh=as_float32(projection.b_hh),
        h_T=xp.new_empty(B, n) if T > 1 and lengths is None else None,  # one step's state is its output
        products=xp.new_empty(size) if save and 4 * size <= _KEPT_BYTES and not bfloat16 else None,
    )
    arguments = (run, xp, weights, state, memory, options, lengths, save, beside)
    run = group_to_dtype(screened.forward(*arguments, bfloat16=bfloat16), dtype)
    h_T = beside.h_T
    return ProjectedRun(run, h_T if h_T is None or dtype is torch.float32 else h_T.to(dtype), beside.products)


def _runs_by_cluster(shape: tuple[int, int, int], options: op.AttentionOptions, device: torch.device) -> bool:
    """True if screened attention over states of shape (T, B, n) runs by clusters, False if step by step.

    Clusters of wide layers in large batches wait for each other. Step by step, the host's launches take 80 to 130 us a
    step of both passes: by the times of clusters' steps on an H200, these take longer from the batches below.
    """
    if options.buffer < 0:
        return False
    _, B, n = shape
    lstm = options.cell == "lstm"
    waits = n > 128 and B > 384 if lstm else n > 256 and B > 256
    return not waits and screened.supports(lstm, n, options.buffer + options.relevant, device)


def _kernel_width(
    shape: tuple[int, int, int], options: op.AttentionOptions, device: torch.device, dtype: torch.dtype
) -> int:
    """Return how many numbers of a step are saved before an LSTM's gates."""
    if options.buffer < 0 or _runs_by_cluster(shape, options, device):
        return 0
    if _runs_on_tensor_cores(shape, options, device, dtype):
        return 0
    return screened_steps.kernel_width(shape[2], options)


op.kernel_widths["cuda"] = _kernel_width


def _saved_without_V(activations: Tensor, h: Tensor, options: op.AttentionOptions) -> Tensor:
    T, B, n = h.shape
    width = _kernel_width((T, B, n), options, h.device, h.dtype)
    if not width:
        return activations
    without = activations[..., width - 3 * n : width]  # W_a h, U_a h and W_a s, behind V h
    return torch.cat([torch.zeros_like(h), without], -1)


op.saved_without_V["cuda"] = _saved_without_V


@op.attentive_backward.implement("cuda")
def attentive_backward(
    grads: op.AttentiveOutputGradients,
    weights: op.AttentionWeights,
    state: op.AttentionState,
    memory: op.CarriedMemory,
    options: op.AttentionOptions,
    saved: op.AttentiveSaved,
    lengths: Tensor | None,
    kept: Tensor | None = None,
) -> op.AttentiveGradients:
    """`kept` are the products of a run by clusters, if it kept them.

    Such a run is short: dv comes by sequence, (B, n), and is summed where the gradients of all weights are made.
    """
    dtype = saved.h.dtype
    T, B, n = saved.h.shape
    shape = T, B, n
    factors = None
    if _runs_on_tensor_cores(shape, options, saved.h.device, dtype):
        factors = Factors(saved.h, saved.s, weights)
        saved = saved._replace(s=saved.s[:0])  # nobody reads it in float32
    arguments = (
        group_as_float32(grads, dtype),
        group_as_float32(weights, dtype),
        group_as_float32(state, dtype),
        group_as_float32(memory, dtype),
        options,
        group_as_float32(saved, dtype),
        lengths,
    )
    if options.buffer < 0:
        found = full_attention.backward(*arguments)
    elif factors is not None or _runs_by_cluster(shape, options, saved.h.device):
        sum_dv = kept is None or dtype is not torch.float32
        found = screened.backward(*arguments, kept, factors, sum_dv=sum_dv)
    else:
        found = screened_steps.backward(*arguments)
    return group_to_dtype(found, dtype)
