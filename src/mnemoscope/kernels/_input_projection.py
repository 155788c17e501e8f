"""Who computes the projection U x + b: on the CPU the kernel, step by step; on a GPU the operator that reads it."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from mnemoscope.kernels import _state_gradients
from mnemoscope.kernels._dispatch import calls_plainly

# Up to so many bytes [V, U, b] stays in a core's own cache: a step reads it from there, for however few rows.
_IN_CACHE = 1 << 20
# Larger weights of one thread. Every thread sums their gradient for itself, and one thread adds these sums up: what a
# projection in the loop saves shrinks with their number, and what it costs grows.
_MOST_BYTES = 64 << 20
_FEW_ROWS = 4  # for fewer rows, one product over all steps reads a wide U less often


def should_fuse_projection(x: Tensor, V: Tensor, lengths: Tensor | None) -> bool:
    """True if the kernel should project x (T, B, D) itself: on the CPU, where that saves two long tensors.

    Not while runs are recorded: the gradients of the projections are what is recorded. Nor in a trace of torch.jit,
    where sizes are not numbers.
    """
    if not x.is_cpu or _state_gradients.is_recording(lengths) or torch.jit.is_tracing():
        return False
    rows, n = V.shape
    _, batch, n_inputs = x.shape
    size = rows * (n + n_inputs + 1) * x.element_size()
    if size <= _IN_CACHE:
        return True
    threads = 1 if torch.compiler.is_compiling() else torch.get_num_threads()
    return size * threads**2 <= _MOST_BYTES and (n_inputs <= n or batch >= _FEW_ROWS * threads)


def loop_may_project(x: Tensor, V: Tensor) -> bool:
    """True if the kernel that projects x should be given a `Projection`, and not [x, 1] and [V, U, b].

    Not under autocast, nor where torch's dispatcher must see the operator, whose arguments are the latter.
    """
    if x.dtype is not V.dtype or torch.is_autocast_enabled("cpu"):
        return False
    return calls_plainly()


def pack_projection(x: Tensor, U: Tensor, bias: Tensor | None, V: Tensor) -> tuple[Tensor, Tensor]:
    """Return [x, 1] (T, B, D + 1) and [V, U, b] (G, n + D + 1); without a bias the one and b are left out."""
    if bias is None:
        return x, torch.cat([V, U], 1)
    return F.pad(x, (0, 1), value=1.0), torch.cat([V, U, bias[:, None]], 1)


def operator_may_project(x: Tensor, lengths: Tensor | None) -> bool:
    """True if the operator should be given a `Projection` of x instead of U x + b: on a GPU, where host time counts.

    Not while runs are recorded, as above; nor under autocast, which rounds a projection by rules of its own; nor where
    torch's dispatcher must see the operator.
    """
    if not x.is_cuda or _state_gradients.is_recording(lengths) or torch.is_autocast_enabled("cuda"):
        return False
    return calls_plainly()
