"""RNN, LSTM and GRU by cuDNN, with torch's weights as they are: for widths at which it is faster than our kernels.

cuDNN's backward pass is not differentiable. When the gradient of a gradient is asked for, it is taken through the
loops of `_naive.py`, as everywhere in this package.
"""

from __future__ import annotations

import math
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from mnemoscope.kernels import _naive
from mnemoscope.kernels._dispatch import is_traced_or_transformed
from mnemoscope.kernels._fused import contiguous
from mnemoscope.kernels._operator import without_autocast
from mnemoscope.kernels._settings import settings
from mnemoscope.torch_internals import (
    apply_function,
    cudnn_pack_weights,
    cudnn_rnn,
    cudnn_rnn_backward,
    flatten_tensors,
)

_MODES = {"relu": 0, "tanh": 1, "lstm": 2, "gru": 3}  # cuDNN's numbers of the four cells
# Up to so many units, the largest batch for which our kernel is faster.
_OURS_UP_TO: dict[str, dict[int, float]] = {
    "relu": {256: math.inf, 512: 384},
    "tanh": {256: math.inf, 512: 384},
    "gru": {128: math.inf, 256: 1024, 512: 96},
    "lstm": {128: math.inf, 256: 256},
}
_NARROW = min(min(units) for units in _OURS_UP_TO.values())
_ROWS = {"relu": 1, "tanh": 1, "gru": 3, "lstm": 4}  # of weights, per unit
_DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


class CudnnWeights(NamedTuple):
    """W (Gn, E) of the input, V (Gn, n) of the state, and torch's two biases (Gn), or None for both."""

    W: Tensor
    V: Tensor
    b_ih: Tensor | None
    b_hh: Tensor | None


class CudnnRun(NamedTuple):
    """h (T, B, n); h_T and c_T (1, B, n), the last state; c_T is None without a cell state."""

    h: Tensor
    h_T: Tensor
    c_T: Tensor | None


@cache
def _layout() -> Any:
    return import_module("mnemoscope.kernels._cuda.layout")


def ours_up_to(device: torch.device) -> int:
    """Return up to how many units our kernels are faster than cuDNN, whatever the cell and the batch; 0: of none.

    That is as far as they hold every cell: 64 units where a sequence has but one block (Ampere, Ada).
    """
    for units in (_NARROW, 64):
        if _layout().tile(max(_ROWS.values()), units, device) is not None:
            return units
    return 0


def cudnn_is_faster(cell: str, n: int, batch: int, device: torch.device) -> bool:
    """True at the sizes at which cuDNN was measured to be faster than our kernels (H200), or where they do not fit.

    Our kernels run each sequence on some multiprocessors of its own: wide layers in large batches wait for each other.
    """
    if _layout().tile(_ROWS[cell], n, device) is None:  # ours would run step by step
        return True
    for units, most_rows in _OURS_UP_TO[cell].items():
        if n <= units:
            return batch > most_rows
    return True


@cache
def _has_cudnn() -> bool:
    return torch.backends.cudnn.is_available() and torch.version.hip is None


def cudnn_dtype(x: Tensor, lengths: Tensor | None) -> torch.dtype | None:
    """Return the dtype in which cuDNN would run x (T, B, E); None if it cannot: padded rows, a tracer, no GPU."""
    if settings.backend != "auto" or settings.recorded is not None or lengths is not None or not x.is_cuda:
        return None
    if is_traced_or_transformed() or not _has_cudnn() or not torch.backends.cudnn.enabled:
        return None
    if x.shape[0] == 0 or x.shape[1] == 0:
        return None
    dtype = x.dtype
    if torch.is_autocast_enabled("cuda") and dtype is not torch.float64:  # which autocast leaves alone
        dtype = torch.get_autocast_dtype("cuda")
    return dtype if dtype in _DTYPES else None


def cudnn(
    dtype: torch.dtype, cell: str, x: Tensor, weights: CudnnWeights, h0: Tensor | None, c0: Tensor | None
) -> CudnnRun:
    """Run a cell ("tanh", "relu", "lstm" or "gru") over x (T, B, E) from h0 and c0 (1, B, n); None is zero."""
    if h0 is None:  # both are given, or neither
        h0 = x.new_zeros(1, x.shape[1], weights.V.shape[1])
        c0 = h0 if cell == "lstm" else None
    return CudnnRun(*_apply(cell, *contiguous(dtype, x, *weights, h0, c0)))


def _options(cell: str, n: int, train: bool) -> tuple[Any, ...]:
    """Return cuDNN's arguments behind the states: one layer in one direction, without projection and dropout."""
    return _MODES[cell], n, 0, 1, False, 0.0, train, False, [], None


_lie_in_order: dict[tuple[Any, ...], bool] = {}
"""For cells, sizes and types that were packed once: whether the weights lie one behind the other in cuDNN's buffer."""


def _pack_weights(cell: str, weights: list[Tensor]) -> Tensor:
    """Return one buffer with all weights, W (Gn, E), V (Gn, n) and the biases, as cuDNN reads it.

    torch asks cuDNN where each of them belongs and copies them one by one. If they lie one behind the other, which is
    known after the first time, one operation does.
    """
    W, V = weights[:2]
    kind = (cell, *W.shape, V.shape[1], len(weights), W.dtype, W.device)
    if _lie_in_order.get(kind, False):
        return flatten_tensors(weights)
    parts = [t.detach() for t in weights]  # given these, cuDNN leaves the parameters where they are
    packed = cudnn_pack_weights(parts, len(parts), W.shape[1], _MODES[cell], V.shape[1], 0, 1, False, False)
    end = packed.storage_offset()
    in_order = True
    for part in parts:
        in_order = in_order and part.storage_offset() == end and part.is_contiguous()
        end += part.numel()
    _lie_in_order[kind] = in_order and end == packed.storage_offset() + packed.numel()
    return packed


class _Cudnn(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        cell: str,
        x: Tensor,
        W: Tensor,
        V: Tensor,
        b_ih: Tensor | None,
        b_hh: Tensor | None,
        h0: Tensor,
        c0: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        weights = [W, V] if b_ih is None or b_hh is None else [W, V, b_ih, b_hh]
        options = _options(cell, V.shape[1], train=any(ctx.needs_input_grad))
        with without_autocast(x):  # which would compute in half precision, whatever its type is
            packed = _pack_weights(cell, weights)
            h, h_T, c_T, reserve, _ = cudnn_rnn(x, weights, len(weights), packed, h0, c0, *options)
        ctx.cell = cell
        ctx.save_for_backward(x, W, V, b_ih, b_hh, h0, c0, h, reserve, packed)
        ctx.set_materialize_grads(False)
        return h, h_T, None if c0 is None else c_T

    @staticmethod
    def backward(ctx: Any, dh: Tensor | None, dh_T: Tensor | None, dc_T: Tensor | None) -> Any:
        *arguments, h, reserve, packed = ctx.saved_tensors
        if torch.is_grad_enabled():
            return None, *_naive_gradients(ctx.cell, arguments, (dh, dh_T, dc_T))
        x, W, V, b_ih, b_hh, h0, c0 = arguments
        weights = [W, V] if b_ih is None else [W, V, b_ih, b_hh]
        lasts = [None if g is None else g.contiguous() for g in (dh_T, dc_T)]
        if dh is None:
            dh = torch.zeros_like(h)
        wanted = ctx.needs_input_grad
        mask = [wanted[1], wanted[6], wanted[7], any(wanted[2:6])]
        options = _options(ctx.cell, V.shape[1], True)
        dx, dh0, dc0, dweights = cudnn_rnn_backward(
            x, weights, len(weights), packed, h0, c0, h, dh.contiguous(), *lasts, *options, reserve, mask
        )
        if not mask[3]:
            dweights = []
        by_weight = [*dweights, *[None] * (4 - len(dweights))]
        return (
            None,
            dx if mask[0] else None,
            *by_weight,
            dh0 if mask[1] else None,
            dc0 if mask[2] else None,
        )


_apply = apply_function(_Cudnn)  # `cudnn_dtype` lets no transform of torch.func come here


def _naive_gradients(
    cell: str, arguments: list[Tensor | None], grads: tuple[Tensor | None, ...]
) -> list[Tensor | None]:
    """Return the gradients of the arguments with a graph of their own, through the naive loop."""
    views = [t.view_as(t) if t is not None and t.requires_grad else t for t in arguments]
    x, W, V, b_ih, b_hh, h0, c0 = views
    assert x is not None
    assert W is not None
    assert V is not None
    assert h0 is not None
    first = h0.squeeze(0)
    c_T = None
    if cell == "gru":
        n = V.shape[1]
        bias = None
        b_hn = None
        if b_ih is not None and b_hh is not None:
            bias = b_ih + F.pad(b_hh[: 2 * n], (0, n))
            b_hn = b_hh[2 * n :]
        (h,) = _naive.gru(F.linear(x, W, bias), V, b_hn, first, None)
    else:
        bias = None if b_ih is None or b_hh is None else b_ih + b_hh
        xp = F.linear(x, W, bias)
        if cell == "lstm":
            assert c0 is not None
            h, c_T = _naive.lstm(xp, V, first, c0.squeeze(0), None)
            c_T = c_T.unsqueeze(0)
        else:
            (h,) = _naive.rnn(xp, V, first, None, cell, None)
    pairs = [(y, g) for y, g in zip((h, h[-1:], c_T), grads, strict=True) if y is not None and g is not None]
    wanted = [t for t in views if t is not None and t.requires_grad]
    found = iter(
        torch.autograd.grad([y for y, _ in pairs], wanted, [g for _, g in pairs], create_graph=True, allow_unused=True)
    )
    return [next(found) if t is not None and t.requires_grad else None for t in views]
