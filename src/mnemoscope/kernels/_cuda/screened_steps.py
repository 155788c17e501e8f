"""Relevancy screening on CUDA for layers that are too wide for one cluster: RelRNN and RelLSTM step by step.

A step is one matrix product of the whole batch and one kernel (screened_step_forward.cu, screened_step_backward.cu).
"""

from __future__ import annotations

import torch
from torch import Tensor

from mnemoscope.kernels import _operators as op
from mnemoscope.kernels._cuda import compiler
from mnemoscope.kernels._cuda.arguments import PHI, to_device
from mnemoscope.kernels._cuda.products import carried_gradients, products_of, project_memory, stack_matrices
from mnemoscope.kernels._cuda.screened import MAX_SLOTS, rows_per_unit
from mnemoscope.kernels._final_memory import final_memory, final_origin

_MOST_THREADS = 1024  # of a block


def supports(slots: int) -> bool:
    """True if every slot has its lane of a warp."""
    return slots <= MAX_SLOTS


def _threads(n: int) -> int:
    """Return the threads of a block: one for each unit, as far as they go."""
    return min(_MOST_THREADS, max(128, 32 * -(-n // 32)))


def shared_floats(threads: int) -> int:
    """Return the shared memory of a block: SharedLayout of screened_step.cuh."""
    return 32 * (threads // 32) + 3 * 32


def _defines(options: op.AttentionOptions) -> dict[str, int | str]:
    return {
        "ROWS": rows_per_unit(options.cell == "lstm"),
        "CLUSTER_BLOCKS": 1,
        "PHI": PHI[options.phi],
        "BUFFER": options.buffer,
        "RELEVANT": options.relevant,
        "MIX_MEAN": options.mix == "mean",
    }


def forward(
    run: op.AttentiveRun,
    xp: Tensor,
    weights: op.AttentionWeights,
    state: op.AttentionState,
    memory: op.CarriedMemory,
    options: op.AttentionOptions,
    lengths: Tensor | None,
    save: bool,
) -> op.AttentiveRun:
    """Fill `run` and return it; all tensors float32."""
    T, B, n = run.h.shape
    carried = memory.values0.numel() > 0
    matrices = stack_matrices(weights)
    products = xp.new_empty(T, B, matrices.shape[0])

    # What the launches carry from step to step: [V; W_a] s, c, and which state is in which slot.
    VW_a = matrices[:-n]
    u = state.s0 @ VW_a.T if state.s0.numel() else xp.new_zeros(B, VW_a.shape[0])
    if state.c0 is not None and state.c0.numel():
        run.c_T.copy_(state.c0)
    else:
        run.c_T.zero_()
    run.slots_T.fill_(-1)
    run.relevance_T.zero_()
    if carried:
        indices = torch.arange(run.slots_T.shape[1], device=xp.device)
        run.slots_T.copy_(torch.where(memory.origin0 >= 0, indices, -1))
        run.relevance_T.copy_(memory.relevance0)

    states, results, transposed = run.h.unbind(0), products.unbind(0), matrices.T

    def multiply(t: int) -> None:
        if t >= 0:
            torch.mm(states[t], transposed, out=results[t])

    compiler.launch_steps(
        "screened_step_forward",
        {
            **_defines(options),
            "REFRESH": options.refresh,
            "SAVE": save,
            "HAS_BIAS": weights.b is not None,
            "HAS_LENGTHS": lengths is not None,
        },
        blocks=B,
        threads=_threads(n),
        shared_floats=shared_floats(_threads(n)),
        args={
            "xp": xp,
            "v": weights.v,
            "b": weights.b,
            "products": products,
            "products0": project_memory(matrices, memory),
            "values0": memory.values0,
            "clock0": memory.clock0,
            "lengths": to_device(lengths, xp.device),
            "u": u,
            "h": run.h,
            "s": run.s,
            "c_T": run.c_T,
            "slots_T": run.slots_T,
            "relevance_T": run.relevance_T,
            "activations": run.activations,
            "slots": run.slots,
            "attention": run.attention,
            "n": n,
            "T": T,
            "B": B,
            "decay": float(options.decay),
        },
        steps=range(-1, T),
        before=multiply,
    )

    # The final memory.
    start = memory if carried else op.empty_memory(run.h, B, run.slots_T.shape[1])
    values_T, keys_T = final_memory(run.h, weights.U_a, start.values0, start.keys0, run.slots_T)
    origin_T = final_origin(run.slots_T, start.origin0, start.clock0)
    return run._replace(values_T=values_T, keys_T=keys_T, origin_T=origin_T)


def backward(
    grads: op.AttentiveOutputGradients,
    weights: op.AttentionWeights,
    state: op.AttentionState,
    memory: op.CarriedMemory,
    options: op.AttentionOptions,
    saved: op.AttentiveSaved,
    lengths: Tensor | None,
) -> op.AttentiveGradients:
    """Return the gradients; all tensors float32."""
    T, B, n = saved.h.shape
    has_ds = grads.ds is not None
    products = products_of(weights, state, memory, saved)
    width = products.matrices.shape[0]
    found = op.attentive_backward.allocate(grads, weights, state, memory, options, saved, lengths)

    # The gradients of the products, which are summed over steps, and what the launches carry from step to step.
    dproducts = saved.h.new_zeros(T, B, width + has_ds * n)
    gathered0 = None
    if products.projected0 is not None:
        gathered0 = saved.h.new_zeros(B, options.buffer + options.relevant, width + has_ds * n)
    dv_rows = saved.h.new_zeros(B, n)
    dh_products = saved.h.new_empty(B, n)
    if grads.dc_T is None:
        found.dc0.zero_()
    else:
        found.dc0.copy_(grads.dc_T)

    by_step = dproducts[..., :width].unbind(0)

    def multiply(t: int) -> None:
        if t < T:
            torch.mm(by_step[t], products.matrices, out=dh_products)

    compiler.launch_steps(
        "screened_step_backward",
        {
            **_defines(options),
            "HAS_DH": grads.dh is not None,
            "HAS_DS": has_ds,
            "HAS_LENGTHS": lengths is not None,
        },
        blocks=B,
        threads=_threads(n),
        shared_floats=shared_floats(_threads(n)),
        args={
            "dh": grads.dh,
            "ds": grads.ds,
            "v": weights.v,
            "projected": products.projected,
            "projected0": products.projected0,
            "queries": products.queries,
            "query0": products.query0,
            "dh_products": dh_products,
            "c0": state.c0,
            "values0": memory.values0,
            "h": saved.h,
            "activations": saved.activations,
            "slots": saved.slots,
            "attention": saved.attention,
            "lengths": to_device(lengths, saved.h.device),
            "dproducts": dproducts,
            "gathered0": gathered0,
            "dxp": found.dxp,
            "dq": found.dq,
            "dk": found.dk,
            "dv_rows": dv_rows,
            "dc0": found.dc0,
            "n": n,
            "T": T,
            "B": B,
        },
        steps=range(T, -1, -1),
        before=multiply,
    )
    return carried_gradients(found._replace(dv=dv_rows.sum(0)), weights, products, gathered0)
