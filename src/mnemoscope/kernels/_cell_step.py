"""One step of RNN, LSTM or GRU on a GPU, past all that a sequence with gradients needs."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from mnemoscope.kernels import _dispatch
from mnemoscope.kernels._cudnn import ours_up_to
from mnemoscope.kernels._operator import Projection
from mnemoscope.kernels._settings import settings
from mnemoscope.torch_internals import are_plain, dispatches_plainly, in_forward_ad


def cell_step(
    family: str,
    projection: Projection,
    V: Tensor,
    h0: Tensor,
    c0: Tensor | None,
    b: Tensor | None = None,
    phi: str = "tanh",
) -> tuple[Tensor, Tensor | None] | None:
    """Return h and c (1, B, n) after one step of x (B, E) from h0 and c0 (1, B, n); None where a sequence must be run.

    That is where something is differentiated, traced, recorded or cast, or where our kernels are not the fastest.
    """
    if torch.is_grad_enabled() or torch.compiler.is_compiling() or not dispatches_plainly() or in_forward_ad():
        return None
    x, n = projection.x, V.shape[1]
    if settings.backend != "auto" or settings.recorded is not None or _dispatch.in_autocast(x):
        return None
    if n > ours_up_to(x.device) or x.dtype is not torch.float32 or not x.shape[0]:
        return None
    tensors = (*projection, V, h0, c0, b)
    if not _dispatch.backend_supports(x.device, x.dtype, family, n, "rnn", -1, 0) or not are_plain(tensors, x.is_cuda):
        return None
    for tensor in tensors[1:]:
        if tensor is not None and (tensor.dtype is not torch.float32 or not tensor.is_contiguous()):
            return None
    return _backend_step()(family, projection, V, h0, c0, b, phi)


@cache
def _backend_step() -> Callable[..., Any]:
    return import_module("mnemoscope.kernels._cuda.cells").step
