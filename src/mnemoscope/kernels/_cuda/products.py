"""What the backward pass of a screened recurrence multiplies, before its kernel and after it.

The kernels add up products [V; W_a; U_a] h_i, each of which is made once for its state, and the
gradients of these products are gathered over all steps that attend to it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from mnemoscope.kernels import _operators as op


class Products(NamedTuple):
    """The products of all states; those of a state or a memory that was not carried in are None.

    matrices ((G + 2)n, n) = [V; W_a; U_a]; projected (T, B, (G + 2)n) of the states h; projected0 (B, m, (G + 2)n),
    [V; W_a] values0 followed by keys0; queries (T - 1, B, n) = W_a s_t, which step t + 1 reads; query0 (B, n) = W_a s0.
    Where the forward pass kept its products, queries lie behind projected and are None, and so are matrices if nothing
    was carried in.
    """

    matrices: Tensor | None
    projected: Tensor
    projected0: Tensor | None
    queries: Tensor | None
    query0: Tensor | None


class Factors(NamedTuple):
    """States h and s (T, B, n) and weights in bfloat16, as a run on the tensor cores multiplied them."""

    h: Tensor
    s: Tensor
    weights: op.AttentionWeights


def stack_matrices(weights: op.AttentionWeights) -> Tensor:
    """Return [V; W_a; U_a], ((G + 2)n, n)."""
    return torch.cat([weights.V, weights.W_a, weights.U_a])


def project_memory(matrices: Tensor, memory: op.CarriedMemory) -> Tensor | None:
    """Return [V; W_a] values0 followed by keys0, (B, m, (G + 2)n); None if nothing was carried in."""
    if not memory.values0.numel():
        return None
    VW_a = matrices[: -matrices.shape[1]]
    return torch.cat([memory.values0 @ VW_a.T, memory.keys0], -1)


def project_query(weights: op.AttentionWeights, state: op.AttentionState) -> Tensor | None:
    """Return W_a s0, (B, n); None if no state was carried in."""
    return state.s0 @ weights.W_a.T if state.s0.numel() else None


def products_of(
    weights: op.AttentionWeights,
    state: op.AttentionState,
    memory: op.CarriedMemory,
    saved: op.AttentiveSaved,
    kept: Tensor | None,
    factors: Factors | None,
) -> Products:
    """Return the products that a backward pass reads, in float32.

    `kept` are those that its forward pass kept. Those of all states are made from `factors`, if there are any.
    """
    if kept is not None and not memory.values0.numel():
        return Products(None, kept, None, None, project_query(weights, state))
    matrices = stack_matrices(weights)
    if kept is not None:
        return Products(matrices, kept, project_memory(matrices, memory), None, project_query(weights, state))
    narrow = factors or Factors(saved.h, saved.s, weights)
    return Products(
        matrices=matrices,
        projected=_product(narrow.h, stack_matrices(factors.weights) if factors else matrices),
        projected0=project_memory(matrices, memory),
        queries=_product(narrow.s[:-1], narrow.weights.W_a),
        query0=project_query(weights, state),
    )


def _product(states: Tensor, matrix: Tensor) -> Tensor:
    """Return states (T, B, n) times the transposed matrix, in float32.

    Where both are bfloat16, the factors are multiplied on a GPU's tensor cores and summed in float32.
    """
    if states.dtype is not torch.bfloat16:
        return states @ matrix.T
    if not states.is_cuda:
        return states.float() @ matrix.float().T
    T, B, n = states.shape
    return torch.mm(states.reshape(T * B, n), matrix.T, out_dtype=torch.float32).view(T, B, matrix.shape[0])


def carried_gradients(
    found: op.AttentiveGradients,
    weights: op.AttentionWeights,
    state: op.AttentionState,
    matrices: Tensor | None,
    gathered0: Tensor | None,
) -> op.AttentiveGradients:
    """Return the gradients with those of the state and the memory that were carried in.

    matrices = [V; W_a; U_a]. gathered0 (B, m, fields n) has the gradients of [V; W_a] values0, of keys0 and, if there
    is a third, of values0.
    """
    n = weights.v.shape[0]
    if state.s0.numel():
        found = found._replace(ds0=found.dxp[0] @ weights.V + found.dq[0] @ weights.W_a)
    if gathered0 is None or matrices is None:
        return found
    before_keys = weights.V.shape[0] + n
    dvalues0 = gathered0[..., :before_keys] @ matrices[:before_keys]
    if gathered0.shape[2] > before_keys + n:
        dvalues0 = dvalues0 + gathered0[..., before_keys + n :]
    dkeys0 = gathered0[..., before_keys : before_keys + n].contiguous()
    return found._replace(dvalues0=dvalues0, dkeys0=dkeys0)
