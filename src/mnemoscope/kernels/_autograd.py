"""How torch differentiates the fused operators: the backend's loop back through time, then one product a weight.

Everything here is plain torch and the same on every device. When the gradient must itself be differentiable
(`create_graph=True`), it is taken through the loops of `reference.py` instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from mnemoscope.kernels import _naive, _operators
from mnemoscope.kernels._final_memory import through_memory

Gradients = tuple[Tensor | None, ...]
_ops = torch.ops.mnemoscope


_library = torch.library.Library(_operators.NAMESPACE, "FRAGMENT")  # what it registers lasts as long as it does


def _register(family: str, save: Callable, backward: Callable) -> None:
    """What torch.library.register_autograd does, less its search for default values, of which there are none.

    That one asks for the operator's arguments twice an argument: 0.2 ms a call for attention's.
    """
    name = f"{family}_forward"
    operator = getattr(_ops, name).default

    class Walk(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Any:
            with torch._C._AutoDispatchBelowAutograd():
                output = operator(*inputs)
            save(ctx, inputs, output)
            return output

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            return backward(ctx, *grads)

    Walk.__name__ = f"{family.capitalize()}Walk"  # of which torch names the node in a graph
    _library.impl(name, Walk.apply, "Autograd")


def _dense(grad: Tensor | None) -> Tensor | None:
    return None if grad is None else grad.contiguous()


def _rows(t: Tensor) -> Tensor:
    """All rows under each other; torch cannot batch a flatten (`is_grads_batched`)."""
    return t.reshape(-1, t.shape[-1])


def _weight_gradient(dz: Tensor, first: Tensor, states: Tensor) -> Tensor:
    """sum_t dz_t^T state_{t-1}, without a copy of the shifted states; dz (T, B, G), first (B, n), states (T, B, n).

    The product is made as its transpose, which BLAS does faster for tall matrices.
    """
    grad = first.T @ dz[0]
    if dz.shape[0] > 1:
        grad = torch.addmm(grad, _rows(states[:-1]).T, _rows(dz[1:]))
    return grad.T


def attentive_weight_gradients(
    dxp: Tensor, dq: Tensor, dk: Tensor, s0: Tensor, s: Tensor, h: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Of V and W_a, which read s_{t-1}, and of U_a, which reads h_t."""
    return _weight_gradient(dxp, s0, s), _weight_gradient(dq, s0, s), _rows(dk).T @ _rows(h)


def _modrelu_gradient(dz: Tensor, h: Tensor) -> Tensor:
    """Where modReLU is open, dh/db = sign(z) = sign(h); where it is shut, dz is already zero."""
    return (dz * h.sign()).sum(0).sum(0)  # one after the other: on a GPU many columns are summed at once, not n


def _through(loop: Callable[..., Sequence[Tensor]], inputs: Sequence[Any], grads: Sequence[Tensor | None]) -> Gradients:
    """Gradients of `loop` with a graph of their own.

    The loop runs on views: an input may depend on another one through its history (a carried state on the weights), and
    that path belongs to the caller, not to this operator.
    """
    views = [x.view_as(x) if isinstance(x, Tensor) and x.requires_grad else x for x in inputs]
    wanted = [x for x in views if isinstance(x, Tensor) and x.requires_grad]
    pairs = [(out, g) for out, g in zip(loop(*views), grads, strict=True) if g is not None and out.requires_grad]
    outs, outer = [p[0] for p in pairs], [p[1] for p in pairs]
    found = iter(torch.autograd.grad(outs, wanted, outer, create_graph=True, allow_unused=True))
    return tuple(next(found) if isinstance(x, Tensor) and x.requires_grad else None for x in views)


def _save_rnn(ctx: Any, inputs: tuple, output: Tensor) -> None:
    xp, V, h0, b, ctx.phi, lengths = inputs
    ctx.save_for_backward(xp, V, h0, b, lengths, output)


def _rnn(ctx: Any, dh: Tensor) -> Gradients:
    xp, V, h0, b, lengths, h = ctx.saved_tensors
    if torch.is_grad_enabled():
        return _through(_naive.rnn, (xp, V, h0, b, ctx.phi, lengths), (dh,))
    if V.shape[1] > h0.shape[1]:
        needs = ctx.needs_input_grad[0]
        dx, dV, dh0 = _ops.rnn_backward_joined(dh.contiguous(), xp, V, h0, h, lengths, ctx.phi, needs)
        return dx if needs else None, dV, dh0, None, None, None
    dz, dh0 = _ops.rnn_backward(dh.contiguous(), V, h, lengths, ctx.phi)
    dV = _weight_gradient(dz, h0, h) if ctx.needs_input_grad[1] else None
    db = _modrelu_gradient(dz, h) if ctx.needs_input_grad[3] else None
    return dz, dV, dh0, db, None, None


def _save_lstm(ctx: Any, inputs: tuple, output: tuple[Tensor, ...]) -> None:
    xp, V, h0, c0, lengths, _ = inputs
    h, _, cells, gates = output
    ctx.mark_non_differentiable(cells, gates)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(xp, V, h0, c0, lengths, h, cells, gates)


def _lstm(ctx: Any, dh: Tensor | None, dc_T: Tensor | None, *_: None) -> Gradients:
    xp, V, h0, c0, lengths, h, cells, gates = ctx.saved_tensors
    if torch.is_grad_enabled():
        return (*_through(_naive.lstm, (xp, V, h0, c0, lengths), (dh, dc_T)), None)
    outer = _dense(dh), _dense(dc_T)
    if V.shape[1] > h0.shape[1]:
        needs = ctx.needs_input_grad[0]
        dx, dV, dh0, dc0 = _ops.lstm_backward_joined(*outer, xp, V, h0, c0, h, cells, gates, lengths, needs)
        return dx if needs else None, dV, dh0, dc0, None, None
    dxp, dh0, dc0 = _ops.lstm_backward(*outer, V, c0, cells, gates, lengths)
    dV = _weight_gradient(dxp, h0, h) if ctx.needs_input_grad[1] else None
    return dxp, dV, dh0, dc0, None, None


def _save_rac(ctx: Any, inputs: tuple, output: Tensor) -> None:
    ctx.save_for_backward(*inputs, output)


def _rac(ctx: Any, dh: Tensor) -> Gradients:
    xp, V, h0, b, lengths, h = ctx.saved_tensors
    if torch.is_grad_enabled():
        return _through(_naive.rac, (xp, V, h0, b, lengths), (dh,))
    u = torch.nn.functional.linear(torch.cat([h0.unsqueeze(0), h[:-1]]), V, b)  # (T, B, n)
    dxp, du, dh0 = _ops.rac_backward(dh.contiguous(), xp, V, u, lengths)
    dV = _weight_gradient(du, h0, h) if ctx.needs_input_grad[1] else None
    db = du.sum((0, 1)) if ctx.needs_input_grad[3] else None
    return dxp, dV, dh0, db, None


def _save_goru(ctx: Any, inputs: tuple, output: tuple[Tensor, Tensor]) -> None:
    xp, W, h0, b, lengths, _ = inputs
    h, gates = output
    ctx.mark_non_differentiable(gates)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(xp, W, h0, b, lengths, h, gates)


def _goru(ctx: Any, dh: Tensor | None, *_: None) -> Gradients:
    xp, W, h0, b, lengths, h, gates = ctx.saved_tensors
    if dh is None:
        return (None,) * 6
    if torch.is_grad_enabled():
        return (*_through(_naive.goru, (xp, W, h0, b, lengths), (dh,)), None)
    dxp, du, dh0 = _ops.goru_backward(dh.contiguous(), W, h0, h, gates, lengths)
    n = h.shape[-1]
    dW = db = None
    if ctx.needs_input_grad[1]:
        dW = torch.cat([_weight_gradient(dxp[..., : 2 * n], h0, h), _weight_gradient(du, h0, h)])
    if ctx.needs_input_grad[3]:
        db = _modrelu_gradient(dxp[..., 2 * n :], gates[..., 2 * n : 3 * n])
    return dxp, dW, dh0, db, None, None


def _save_attentive(ctx: Any, inputs: tuple, output: tuple[Tensor, ...]) -> None:
    tensors, ctx.options, lengths = inputs[:11], inputs[13:18], inputs[20]  # xp .. origin0; cell .. mix
    h, s, _, _, _, final_slots, relevance, *kept = output
    ctx.mark_non_differentiable(final_slots, relevance, *kept)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*tensors, lengths, final_slots, h, s, *kept)


def _attentive(
    ctx: Any, dh: Tensor | None, ds: Tensor | None, dc_T: Tensor | None, dvalues_T: Tensor | None,
    dkeys_T: Tensor | None, *_: None, backward: str = "attentive_backward",
) -> Gradients:  # fmt: skip
    saved = ctx.saved_tensors  # once: a checkpoint gives them once
    if dvalues_T is None and dkeys_T is None:
        return _attentive_walk(ctx, saved, dh, ds, dc_T, backward)
    _, _, _, U_a, *_, values0, keys0, _, lengths, slots, h = saved[:14]
    held = slots if ctx.options[2] >= 0 else None
    by_h, by_U, *carried = through_memory(dvalues_T, dkeys_T, h, U_a, values0, keys0, held, lengths)
    found = list(_attentive_walk(ctx, saved, by_h if dh is None else dh + by_h, ds, dc_T, backward))
    for place, more in zip((3, 8, 9), (by_U, *carried), strict=True):  # U_a, values0, keys0
        already = found[place]
        found[place] = more if already is None else already + more
    return tuple(found)


def _attentive_walk(
    ctx: Any, saved: tuple, dh: Tensor | None, ds: Tensor | None, dc_T: Tensor | None, backward: str
) -> Gradients:
    xp, V, W_a, U_a, v, b, s0, c0, values0, keys0, origin0, lengths, _, h, s, *kept = saved
    cell, phi, buffer, relevant, mix = ctx.options
    undifferentiated = (None,) * 12
    if torch.is_grad_enabled():
        slots = kept[1]
        inputs = (xp, V, W_a, U_a, v, b, s0, c0, values0, keys0, origin0, slots, cell, phi, buffer < 0, mix, lengths)
        return (*_through(_naive.attentive, inputs, (dh, ds, dc_T))[:10], *undifferentiated)
    outer, needs = (_dense(dh), _dense(ds), _dense(dc_T)), ctx.needs_input_grad
    walk = W_a, U_a, v, s0, c0, values0, keys0, origin0, h, s, *kept, cell, phi, buffer, relevant, mix, lengths
    if V.shape[1] > s0.shape[1]:
        dx, dV, dW_a, dU_a, dv, ds0, dc0, *carried = _ops.attentive_backward_joined(*outer, xp, V, *walk, needs[0])
        dx, dc0 = dx if needs[0] else None, None if c0 is None else dc0
        return dx, dV, dW_a, dU_a, dv, None, ds0, dc0, *carried, *undifferentiated
    dxp, dq, dk, dv, ds0, dc0, dvalues0, dkeys0 = getattr(_ops, backward)(*outer, V, *walk)
    dV = dW_a = dU_a = None
    if any(needs[1:4]):
        dV, dW_a, dU_a = attentive_weight_gradients(dxp, dq, dk, s0, s, h)
    db = _modrelu_gradient(dxp, h) if needs[5] else None
    return (
        dxp, dV, dW_a, dU_a, dv, db, ds0, None if c0 is None else dc0, dvalues0, dkeys0, *undifferentiated
    )  # fmt: skip


def _save_sab(ctx: Any, inputs: tuple, output: tuple[Tensor, ...]) -> None:
    tensors, ctx.options, lengths = inputs[:9], inputs[9:12], inputs[12]  # xp .. clock0; store_every, top, truncation
    h, _, _, cells, gates, slots, attention = output
    ctx.mark_non_differentiable(cells, gates, slots, attention)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*tensors, lengths, h, cells, gates, slots, attention)


def _sab(ctx: Any, dh: Tensor | None, dattended: Tensor | None, dc_T: Tensor | None, *_: None) -> Gradients:
    *inputs, lengths, h, cells, gates, slots, attention = ctx.saved_tensors
    _, V, w, h0, c0, values0, keys0, origin0, clock0 = inputs
    if torch.is_grad_enabled():
        arguments = (*inputs, *ctx.options, lengths)
        return (*_through(_naive.sab, arguments, (dh, dattended, dc_T)), None)
    outer = _dense(dh), _dense(dattended), _dense(dc_T)
    dxp, dh0, dc0, dvalues0, dscores, dscores0 = _ops.sab_backward(
        *outer, V, w, c0, values0, keys0, origin0, clock0, h, cells, gates, slots, attention, *ctx.options, lengths
    )
    dV = _weight_gradient(dxp, h0, h) if ctx.needs_input_grad[1] else None
    dw = dscores.reshape(-1) @ _rows(h.tanh()) + dscores0.reshape(-1) @ _rows(keys0)
    return dxp, dV, dw, dh0, dc0, dvalues0, dscores0[..., None] * w, *(None,) * 7


_register("rnn", _save_rnn, _rnn)
_register("sab", _save_sab, _sab)
_register("lstm", _save_lstm, _lstm)
_register("rac", _save_rac, _rac)
_register("goru", _save_goru, _goru)
_register("attentive", _save_attentive, _attentive)
_register("portable", _save_attentive, partial(_attentive, backward="portable_backward"))
