"""The derivative of every fused operator: the backend's backward loop, then one matrix product per weight.

Everything here is plain torch and the same on every device. When the gradient must itself be differentiable
(`create_graph=True`), it is taken through the loops of `_naive.py` instead.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from mnemoscope.kernels import _naive
from mnemoscope.kernels import _operators as op
from mnemoscope.kernels._autograd import Gradients, SavedRun, register_derivative
from mnemoscope.kernels._final_memory import final_memory_backward
from mnemoscope.kernels._operator import Operator
from mnemoscope.kernels._weight_gradients import rows, weight_gradient


def _contiguous(grad: Tensor | None) -> Tensor | None:
    return None if grad is None else grad.contiguous()


def attentive_weight_gradients(
    dxp: Tensor, dq: Tensor, dk: Tensor, s0: Tensor, s: Tensor, h: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of V and W_a, which read s_{t-1}, and of U_a, which reads h_t."""
    return weight_gradient(dxp, s0, s), weight_gradient(dq, s0, s), torch.mm(rows(dk).t(), rows(h))


def _modrelu_gradient(dz: Tensor, h: Tensor) -> Tensor:
    """Return the gradient of modReLU's bias. Where it is open, dh/db = sign(z) = sign(h); where not, dz is zero."""
    return (dz * h.sign()).sum(0).sum(0)  # one after the other: on a GPU many columns are summed at once, not n


def _makes_projection(V: Tensor, n: int) -> bool:
    """True if V is [V, U, b]: the kernel made the projection of the inputs."""
    return V.shape[1] > n


def _rnn(run: SavedRun, dh: Tensor | None) -> Gradients:
    if dh is None:
        return run.gradients()
    if torch.is_grad_enabled():
        return run.gradients_of_naive(_naive.rnn, (dh,))
    xp, V, h0, _, phi, lengths = run.arguments
    h = run.results.h
    dh = dh.contiguous()
    if _makes_projection(V, h.shape[2]):
        needs_dx = run.needs("xp")
        by_inputs = op.rnn_backward_with_inputs(dh, xp, V, h0, h, lengths, phi, needs_dx)
        return run.gradients(xp=by_inputs.dx if needs_dx else None, V=by_inputs.dV, h0=by_inputs.dh0)
    if phi != "modrelu":  # whose bias has a gradient of its own, made from dxp
        by_loop = run.call_with_projection(op.rnn_backward_with_inputs, lambda x: (dh, x, V, h0, h, lengths, phi))
        if by_loop is not None:
            return run.gradients(V=by_loop.dV, h0=by_loop.dh0)
    found = run.call(op.rnn_backward, dh, V, h, lengths, phi)
    return run.gradients(
        xp=found.dxp,
        V=run.weight_gradient(found.dxp, h0, h) if run.needs("V") else None,
        h0=found.dh0,
        b=_modrelu_gradient(found.dxp, h) if run.needs("b") else None,
    )


def _lstm(run: SavedRun, dh: Tensor | None, dc_T: Tensor | None) -> Gradients:
    if torch.is_grad_enabled():
        return run.gradients_of_naive(_naive.lstm, (dh, dc_T))
    xp, V, h0, c0, lengths, _ = run.arguments
    h, cells, gates = run.results
    dh, dc_T = _contiguous(dh), _contiguous(dc_T)
    if _makes_projection(V, h.shape[2]):
        needs_dx = run.needs("xp")
        by_inputs = op.lstm_backward_with_inputs(dh, dc_T, xp, V, h0, c0, h, cells, gates, lengths, needs_dx)
        dx = by_inputs.dx if needs_dx else None
        return run.gradients(xp=dx, V=by_inputs.dV, h0=by_inputs.dh0, c0=by_inputs.dc0)
    by_loop = run.call_with_projection(
        op.lstm_backward_with_inputs, lambda x: (dh, dc_T, x, V, h0, c0, h, cells, gates, lengths)
    )
    if by_loop is not None:
        return run.gradients(V=by_loop.dV, h0=by_loop.dh0, c0=by_loop.dc0)
    found = run.call(op.lstm_backward, dh, dc_T, V, c0, cells, gates, lengths)
    dV = run.weight_gradient(found.dxp, h0, h) if run.needs("V") else None
    return run.gradients(xp=found.dxp, V=dV, h0=found.dh0, c0=found.dc0)


def _rac(run: SavedRun, dh: Tensor) -> Gradients:
    if torch.is_grad_enabled():
        return run.gradients_of_naive(_naive.rac, (dh,))
    xp, V, h0, b, lengths = run.arguments
    h = run.results.h
    u = F.linear(torch.cat([h0.unsqueeze(0), h[:-1]]), V, b)  # (T, B, n)
    found = run.call(op.rac_backward, dh.contiguous(), xp, V, u, lengths)
    return run.gradients(
        xp=found.dxp,
        V=weight_gradient(found.du, h0, h) if run.needs("V") else None,
        h0=found.dh0,
        b=found.du.sum((0, 1)) if run.needs("b") else None,
    )


def _gated_weight_gradient(run: SavedRun, found: op.StateProductGradients, h0: Tensor, h: Tensor) -> Tensor:
    """Return the gradient of [V_1; V_2; V_u]: two gates read the state, and u is its product with V_u."""
    n = h.shape[-1]
    dV = run.all_at_once(found.dxp, h0, h, found.du, 2 * n)
    if dV is not None:
        return dV
    gates = found.dxp[..., : 2 * n]
    return torch.cat([weight_gradient(gates, h0, h), weight_gradient(found.du, h0, h)])


def _goru(run: SavedRun, dh: Tensor | None) -> Gradients:
    if dh is None:
        return run.gradients()
    if torch.is_grad_enabled():
        return run.gradients_of_naive(_naive.goru, (dh,))
    _, W, h0, _, lengths, _ = run.arguments
    h, gates = run.results
    n = h.shape[-1]
    found = run.call(op.goru_backward, dh.contiguous(), W, h0, h, gates, lengths)
    candidate = gates[..., 2 * n : 3 * n]
    return run.gradients(
        xp=found.dxp,
        W=_gated_weight_gradient(run, found, h0, h) if run.needs("W") else None,
        h0=found.dh0,
        b=_modrelu_gradient(found.dxp[..., 2 * n :], candidate) if run.needs("b") else None,
    )


def _gru(run: SavedRun, dh: Tensor | None) -> Gradients:
    if dh is None:
        return run.gradients()
    if torch.is_grad_enabled():
        return run.gradients_of_naive(_naive.gru, (dh,))
    _, V, _, h0, lengths, _ = run.arguments
    h, gates = run.results
    found = run.call(op.gru_backward, dh.contiguous(), V, h0, h, gates, lengths)
    dV = _gated_weight_gradient(run, found, h0, h) if run.needs("V") else None
    db_hn = None
    if run.needs("b_hn"):
        db_hh = None if run.made is None else run.made.db_hh
        db_hn = found.du.sum(0).sum(0) if db_hh is None else db_hh[2 * h.shape[-1] :]
    return run.gradients(xp=found.dxp, V=dV, b_hn=db_hn, h0=found.dh0)


def _attentive_with(backward: Operator) -> Callable[..., Gradients]:
    """Return the derivative of `attentive_forward` or `portable_forward` by its own backward operator."""

    def derivative(
        run: SavedRun,
        dh: Tensor | None,
        ds: Tensor | None,
        dc_T: Tensor | None,
        dvalues_T: Tensor | None,
        dkeys_T: Tensor | None,
    ) -> Gradients:
        if dvalues_T is None and dkeys_T is None:
            return run.gradients(**_attentive(run, dh, ds, dc_T, backward))

        # Through the memory that the run leaves, to the states in it and to what was carried in.
        _, weights, _, memory, options, lengths, _ = run.arguments
        slots_T = run.results.slots_T if options.buffer >= 0 else None
        by_memory = final_memory_backward(
            dvalues_T, dkeys_T, run.results.h, weights.U_a, memory.values0, slots_T, lengths
        )
        dh = by_memory.dh if dh is None else dh + by_memory.dh
        found = _attentive(run, dh, ds, dc_T, backward)
        more = {"U_a": by_memory.dU_a, "values0": by_memory.dvalues0, "keys0": by_memory.dkeys0}
        for name, gradient in more.items():
            already = found.get(name)
            found[name] = gradient if already is None else already + gradient
        return run.gradients(**found)

    return derivative


def _attentive(
    run: SavedRun, dh: Tensor | None, ds: Tensor | None, dc_T: Tensor | None, backward: Operator
) -> dict[str, Tensor | None]:
    """Return the gradients by name, of a run whose final memory has no gradient."""
    if torch.is_grad_enabled():
        flat = run.gradients_of_naive(_naive.attentive, (dh, ds, dc_T), slots=run.results.slots)
        return dict(zip(run.derivative.operator.arguments, flat, strict=True))
    xp, weights, state, memory, options, lengths, _ = run.arguments
    *first, _ = run.results  # all but slots_T
    saved = op.AttentiveSaved(*first)
    grads = op.AttentiveOutputGradients(_contiguous(dh), _contiguous(ds), _contiguous(dc_T))

    # The kernel made the projection: it makes all gradients.
    if _makes_projection(weights.V, weights.v.shape[0]):
        needs_dx = run.needs("xp")
        found = op.attentive_backward_with_inputs(grads, xp, weights, state, memory, options, saved, lengths, needs_dx)
        return {"xp": found.dx if needs_dx else None, **_of_state(found, state), **_of_weights(found)}

    # So does it where it read the projection's own weights; modReLU's bias has a gradient that is made from dxp.
    if backward is op.attentive_backward and options.phi != "modrelu":
        by_loop = run.call_with_projection(
            op.attentive_backward_with_inputs, lambda x: (grads, x, weights, state, memory, options, saved, lengths)
        )
        if by_loop is not None:
            return {**_of_state(by_loop, state), **_of_weights(by_loop)}

    # Else those of the weights are made here.
    found = run.call(backward, grads, weights, state, memory, options, saved, lengths)
    gradients = {"xp": found.dxp, "v": found.dv, **_of_state(found, state)}
    if any(run.needs(name) for name in ("V", "W_a", "U_a")):
        G = found.dxp.shape[2]
        dv_rows = found.dv if found.dv.dim() == 2 else None
        both = run.all_at_once(found.dxp, state.s0, saved.s, found.dq, G, found.dk, saved.h, dv_rows)
        if both is None or run.made is None:
            by_weights = attentive_weight_gradients(found.dxp, found.dq, found.dk, state.s0, saved.s, saved.h)
            gradients.update(zip(("V", "W_a", "U_a"), by_weights, strict=True))
        else:
            gradients.update(V=both[:G], W_a=both[G:], U_a=run.made.dU_a)
            if run.made.dv is not None:
                gradients["v"] = run.made.dv
    dv = gradients["v"]
    if dv is not None and dv.dim() == 2:  # of each sequence
        gradients["v"] = dv.sum(0)
    if run.needs("b"):
        gradients["b"] = _modrelu_gradient(found.dxp, saved.h)
    return gradients


def _of_state(
    found: op.AttentiveGradients | op.AttentiveInputGradients, state: op.AttentionState
) -> dict[str, Tensor | None]:
    """Return the gradients of the state and the memory before the first step, by name."""
    dc0 = None if state.c0 is None else found.dc0
    return {"s0": found.ds0, "c0": dc0, "values0": found.dvalues0, "keys0": found.dkeys0}


def _of_weights(found: op.AttentiveInputGradients) -> dict[str, Tensor | None]:
    return {"V": found.dV, "W_a": found.dW_a, "U_a": found.dU_a, "v": found.dv}


def _sab(run: SavedRun, dh: Tensor | None, dattended: Tensor | None, dc_T: Tensor | None) -> Gradients:
    if torch.is_grad_enabled():
        return run.gradients_of_naive(_naive.sab, (dh, dattended, dc_T))
    _, V, w, h0, c0, memory, options, lengths, _ = run.arguments
    saved = op.SabSaved(*run.results)
    h = saved.h
    grads = _contiguous(dh), _contiguous(dattended), _contiguous(dc_T)
    found = run.call(op.sab_backward, *grads, V, w, c0, memory, options, saved, lengths)
    return run.gradients(
        xp=found.dxp,
        V=weight_gradient(found.dxp, h0, h) if run.needs("V") else None,
        w=found.dscores.reshape(-1) @ rows(h.tanh()) + found.dscores0.reshape(-1) @ rows(memory.keys0),
        h0=found.dh0,
        c0=found.dc0,
        values0=found.dvalues0,
        keys0=None if options.detach_scores else found.dscores0[..., None] * w,
    )


_ATTENTIVE_SAVES = (*op.AttentiveSaved._fields, "slots_T")
_ATTENTIVE_OUTPUTS = ("h", "s", "c_T", "values_T", "keys_T")
_ATTENTIVE_RECORDS = ("origin_T", "relevance_T")

register_derivative(op.rnn_forward, _rnn, saves=("h",), differentiable=("h",))
register_derivative(op.lstm_forward, _lstm, saves=("h", "cells", "gates"), differentiable=("h", "c_T"))
register_derivative(op.rac_forward, _rac, saves=("h",), differentiable=("h",))
register_derivative(op.goru_forward, _goru, saves=("h", "gates"), differentiable=("h",))
register_derivative(op.gru_forward, _gru, saves=("h", "gates"), differentiable=("h",))
register_derivative(op.sab_forward, _sab, saves=op.SabSaved._fields, differentiable=("h", "attended", "c_T"))
register_derivative(
    op.attentive_forward,
    _attentive_with(op.attentive_backward),
    saves=_ATTENTIVE_SAVES,
    differentiable=_ATTENTIVE_OUTPUTS,
    also=_ATTENTIVE_RECORDS,
)
register_derivative(
    op.portable_forward,
    _attentive_with(op.portable_backward),
    saves=_ATTENTIVE_SAVES,
    differentiable=_ATTENTIVE_OUTPUTS,
    also=_ATTENTIVE_RECORDS,
)
