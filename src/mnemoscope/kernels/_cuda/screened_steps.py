"""Relevancy screening on CUDA for layers that are too wide for one cluster: RelRNN and RelLSTM step by step.

A step is one matrix product of the whole batch and one kernel (screened_step_forward.cu, screened_step_backward.cu).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mnemoscope.kernels import _operators as op
from mnemoscope.kernels._cuda import compiler, layout
from mnemoscope.kernels._cuda.arguments import PHI, to_device
from mnemoscope.kernels._cuda.products import carried_gradients, project_memory, project_query, stack_matrices
from mnemoscope.kernels._cuda.screened import rows_per_unit
from mnemoscope.kernels._final_memory import final_memory, final_origin

_MAX_SLOTS = 256  # the loops over slots are unrolled: with so many, a kernel takes half a minute to compile
_MOST_THREADS = 1024  # of a block
_LEAST_UNITS = 128  # of a block of a cluster: with fewer, its barriers take longer than what it saves
# The products of the states in the slots and their gradients, together: up to this size they stay in the L2 cache of an
# H200, and adding there makes a step 6 to 15 % faster than to read and write them; above it, 8 to 17 % slower.
_CACHED_BYTES = 48 << 20


@dataclass(frozen=True)
class StepLayout:
    """One step of a sequence over a cluster of blocks: the host's side of screened_step.cuh."""

    n: int
    cluster_blocks: int
    slots: int

    @property
    def threads(self) -> int:
        """Of a block: one for each of its units, as far as they go."""
        units = -(-self.n // self.cluster_blocks)
        return min(_MOST_THREADS, max(128, 32 * -(-units // 32)))

    @property
    def shared_floats(self) -> int:
        row = layout.slot_row(self.slots)
        return row * (3 * 2 + self.threads // 32 + self.cluster_blocks + 2) + 2

    def defines(self, options: op.AttentionOptions) -> dict[str, int | str]:
        return {
            "UNITS": self.n,
            "CLUSTER_BLOCKS": self.cluster_blocks,
            "ROWS": rows_per_unit(options.cell == "lstm"),
            "PHI": PHI[options.phi],
            "BUFFER": options.buffer,
            "RELEVANT": options.relevant,
            "MIX_MEAN": options.mix == "mean",
        }


def supports(slots: int) -> bool:
    """True if there are not too many slots."""
    return slots <= _MAX_SLOTS


def kernel_width(n: int, options: op.AttentionOptions) -> int:
    """Return how many numbers of a step are saved before an LSTM's gates: its products [V; W_a; U_a] h and W_a s.

    They are not computed again in the backward pass: that would be a quarter of its products.
    """
    return (rows_per_unit(options.cell == "lstm") + 1) * n


def choose_layout(n: int, batch: int, slots: int, device: torch.device) -> StepLayout:
    """Return the layout with the most blocks per sequence that run at once."""
    limits = layout.limits(device)
    fitting = [
        blocks for blocks in limits.clusters if batch <= limits.clusters_at_once(blocks) and n >= _LEAST_UNITS * blocks
    ]
    return StepLayout(n, max(fitting, default=1), slots)


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
    clusters = choose_layout(n, B, options.buffer + options.relevant, xp.device)
    carried = memory.values0.numel() > 0
    matrices = stack_matrices(weights)
    width = matrices.shape[0]
    activations = run.activations if save else xp.new_empty(T, B, width)

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

    states, results, transposed = run.h.unbind(0), activations[..., :width].unbind(0), matrices.T

    def multiply(t: int) -> None:
        if t >= 0:
            torch.mm(states[t], transposed, out=results[t])

    compiler.launch_steps(
        "screened_step_forward",
        {
            **clusters.defines(options),
            "REFRESH": options.refresh,
            "SAVE": save,
            "HAS_BIAS": weights.b is not None,
            "HAS_LENGTHS": lengths is not None,
        },
        blocks=B * clusters.cluster_blocks,
        threads=clusters.threads,
        shared_floats=clusters.shared_floats,
        args={
            "xp": xp,
            "v": weights.v,
            "b": weights.b,
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
            "activations": activations,
            "slots": run.slots,
            "attention": run.attention,
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
    clusters = choose_layout(n, B, options.buffer + options.relevant, saved.h.device)
    has_ds = grads.ds is not None
    matrices = stack_matrices(weights)
    projected0 = project_memory(matrices, memory)
    width, slots = matrices.shape[0], options.buffer + options.relevant
    found = op.attentive_backward.allocate(grads, weights, state, memory, options, saved, lengths)

    # The gradients of the products, which are summed over steps, and what the launches carry from step to step.
    dproducts = saved.h.new_zeros(T, B, width + has_ds * n)
    gathered0 = None
    if projected0 is not None:
        gathered0 = saved.h.new_zeros(B, slots, width + has_ds * n)
    dv_rows = saved.h.new_zeros(B, n)
    dh_products = saved.h.new_empty(B, n)
    if grads.dc_T is None:
        found.dc0.zero_()
    else:
        found.dc0.copy_(grads.dc_T)

    by_step = dproducts[..., :width].unbind(0)

    def multiply(t: int) -> None:
        if t < T:
            torch.mm(by_step[t], matrices, out=dh_products)

    compiler.launch_steps(
        "screened_step_backward",
        {
            **clusters.defines(options),
            "HAS_DH": grads.dh is not None,
            "HAS_DS": has_ds,
            "ADDS_IN_CACHE": 2 * 4 * B * slots * width <= _CACHED_BYTES,
            "HAS_LENGTHS": lengths is not None,
        },
        blocks=B * clusters.cluster_blocks,
        threads=clusters.threads,
        shared_floats=clusters.shared_floats,
        args={
            "dh": grads.dh,
            "ds": grads.ds,
            "v": weights.v,
            "projected0": projected0,
            "query0": project_query(weights, state),
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
            "T": T,
            "B": B,
        },
        steps=range(T, -1, -1),
        before=multiply,
    )
    return carried_gradients(found._replace(dv=dv_rows.sum(0)), weights, state, matrices, gathered0)
