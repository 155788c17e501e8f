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
) -> Products:
    """Return the products that a backward pass reads; `kept` are those that its forward pass kept."""
    if kept is not None and not memory.values0.numel():
        return Products(None, kept, None, None, project_query(weights, state))
    matrices = stack_matrices(weights)
    if kept is not None:
        return Products(matrices, kept, project_memory(matrices, memory), None, project_query(weights, state))
    return Products(
        matrices=matrices,
        projected=saved.h @ matrices.T,
        projected0=project_memory(matrices, memory),
        queries=saved.s[:-1] @ weights.W_a.T,
        query0=project_query(weights, state),
    )


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
