"""The self-attentive recurrences on the CPU: tensors in, the compiled loops' structures out."""

from __future__ import annotations

import torch
from torch import Tensor

from mnemoscope.kernels import _portable
from mnemoscope.kernels._autograd import attentive_weight_gradients
from mnemoscope.kernels._cpu import exponent_range
from mnemoscope.kernels._cpu.library import call
from mnemoscope.kernels._cpu.plain import PHI, input_gradient, n_inputs
from mnemoscope.kernels._naive import projected
from mnemoscope.kernels._operators import implement

CELL = {"rnn": 0, "lstm": 1}  # enum class Cell
MIX = {"sum": 0, "mean": 1}  # enum class Mix
BEYOND = -1.0  # in the place of the exponentials of queries and keys, which would leave their type's range


def _beyond(activations: Tensor) -> bool:
    return bool(activations.numel()) and float(activations[0, 0, 0]) == BEYOND


@implement("attentive_forward", "cpu")
def attentive_forward(
    xp: Tensor, V: Tensor, W_a: Tensor, U_a: Tensor, v: Tensor, b: Tensor | None, s0: Tensor, c0: Tensor | None,
    values0: Tensor, keys0: Tensor, origin0: Tensor, relevance0: Tensor, clock0: Tensor, cell: str, phi: str,
    buffer: int, relevant: int, mix: str, decay: float, refresh: bool, lengths: Tensor | None, save: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    T, B, n = xp.shape[0], *s0.shape
    kept, lstm, slots = T if save else 0, cell == "lstm", 0 if buffer < 0 else buffer + relevant
    h, s, c_T = xp.new_empty(T, B, n), xp.new_empty(T, B, n), xp.new_empty((B, n) if lstm else 0)
    held = values0.shape[1] + T if buffer < 0 else slots
    values, keys = xp.new_empty(B, held, n), xp.new_empty(B, held, n)
    final = values, keys, xp.new_empty(B, slots, dtype=torch.int64), relevance0.new_empty(B, slots)
    activations, reached = xp.new_empty(kept, B, 7 * n if lstm else 2 * n), xp.new_empty(B)
    chosen = xp.new_empty(0 if buffer < 0 else (kept, B, slots), dtype=torch.int32)
    attention = xp.new_empty((kept, B) if buffer < 0 else (kept, B, slots))
    slots_T, relevance_T = final[2:]
    call(
        "attentive_forward", xp.dtype, steps=T, batch=B, n=n, n_inputs=n_inputs(V, n), carried=values0.shape[1],
        activation_width=activations.shape[2], xp=xp, V=V, W_a=W_a, U_a=U_a, v=v, b=b, s0=s0, c0=c0, values0=values0,
        keys0=keys0, origin0=origin0, relevance0=relevance0, clock0=clock0, cell=CELL[cell], phi=PHI[phi],
        buffer=buffer, relevant=relevant, mix=MIX[mix], decay=decay, refresh=refresh, lengths=lengths, save=save, h=h,
        s=s, c_T=c_T, values_T=values, keys_T=keys, slots_T=slots_T, relevance_T=relevance_T, activations=activations,
        slots=chosen, attention=attention, largest_magnitude=reached,
    )  # fmt: skip
    if exponent_range.lost(reached, h, s, s0, keys0, W_a, U_a):
        *found, gates, chosen, attention = _portable.attentive_forward(
            *projected(xp, V, n), W_a, U_a, v, b, s0, c0, values0, keys0, origin0, relevance0, clock0, cell, phi,
            buffer, relevant, mix, decay, refresh, lengths, save,
        )  # fmt: skip
        marked = torch.cat([gates.new_full((kept, B, 2 * n), BEYOND), gates], -1)
        return *found, marked, chosen, attention
    return h, s, c_T, *final, activations, chosen, attention


@implement("attentive_backward", "cpu")
def attentive_backward(
    dh: Tensor | None, ds: Tensor | None, dc_T: Tensor | None, V: Tensor, W_a: Tensor, U_a: Tensor, v: Tensor,
    s0: Tensor, c0: Tensor | None, values0: Tensor, keys0: Tensor, origin0: Tensor, h: Tensor, s: Tensor,
    activations: Tensor, slots: Tensor, attention: Tensor, cell: str, phi: str, buffer: int, relevant: int, mix: str,
    lengths: Tensor | None,
) -> tuple[Tensor, ...]:  # fmt: skip
    if _beyond(activations):
        return _portable.attentive_backward(
            dh, ds, dc_T, V, W_a, U_a, v, s0, c0, values0, keys0, origin0, h, s, activations, slots, attention,
            cell, phi, buffer, relevant, mix, lengths,
        )  # fmt: skip
    T, B, n = h.shape
    lstm = cell == "lstm"
    dxp, dq, dk, dv = h.new_empty(T, B, V.shape[0]), torch.empty_like(h), torch.empty_like(h), torch.empty_like(s0)
    ds0, dc0 = torch.empty_like(s0), torch.empty_like(s0) if lstm else h.new_empty(0)
    dvalues0, dkeys0 = torch.empty_like(values0), torch.empty_like(keys0)
    call(
        "attentive_backward", h.dtype, steps=T, batch=B, n=n, n_inputs=0, carried=values0.shape[1],
        activation_width=activations.shape[2], dh=dh, ds=ds, dc_T=dc_T, x=None, V=V, W_a=W_a, U_a=U_a, v=v, b=None,
        s0=s0, c0=c0, values0=values0, keys0=keys0, origin0=origin0, relevance0=None, clock0=None, cell=CELL[cell],
        phi=PHI[phi], buffer=buffer, relevant=relevant, mix=MIX[mix], decay=0.0, refresh=0, h=h, s=s,
        activations=activations, slots=slots, attention=attention, lengths=lengths, dxp=dxp, dq=dq, dk=dk, dx=None,
        dV=None, dW_a=None, dU_a=None, dv_rows=dv, ds0=ds0, dc0=dc0, dvalues0=dvalues0, dkeys0=dkeys0,
    )  # fmt: skip
    return dxp, dq, dk, dv.sum(0), ds0, dc0, dvalues0, dkeys0


@implement("attentive_backward_joined", "cpu")
def attentive_backward_joined(
    dh: Tensor | None, ds: Tensor | None, dc_T: Tensor | None, x: Tensor, V: Tensor, W_a: Tensor, U_a: Tensor,
    v: Tensor, s0: Tensor, c0: Tensor | None, values0: Tensor, keys0: Tensor, origin0: Tensor, h: Tensor, s: Tensor,
    activations: Tensor, slots: Tensor, attention: Tensor, cell: str, phi: str, buffer: int, relevant: int, mix: str,
    lengths: Tensor | None, dx: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    T, B, n = h.shape
    if _beyond(activations):
        dxp, dq, dk, *rest = _portable.attentive_backward(
            dh, ds, dc_T, V[:, :n].contiguous(), W_a, U_a, v, s0, c0, values0, keys0, origin0, h, s, activations,
            slots, attention, cell, phi, buffer, relevant, mix, lengths,
        )  # fmt: skip
        dV, dW_a, dU_a = attentive_weight_gradients(dxp, dq, dk, s0, s, h)
        dV, dW_a = torch.cat([dV, dxp.flatten(0, 1).T @ x.flatten(0, 1)], 1), dW_a.contiguous()
        return dxp @ V[:, n:] if dx else input_gradient(x, dx), dV, dW_a, dU_a, *rest
    by_x, dV, dW_a, dU_a = input_gradient(x, dx), torch.zeros_like(V), torch.zeros_like(W_a), torch.zeros_like(U_a)
    dv, ds0 = torch.empty_like(s0), torch.empty_like(s0)
    dc0 = torch.empty_like(s0) if cell == "lstm" else h.new_empty(0)
    dvalues0, dkeys0 = torch.empty_like(values0), torch.empty_like(keys0)
    call(
        "attentive_backward", h.dtype, steps=T, batch=B, n=n, n_inputs=n_inputs(V, n), carried=values0.shape[1],
        activation_width=activations.shape[2], dh=dh, ds=ds, dc_T=dc_T, x=x, V=V, W_a=W_a, U_a=U_a, v=v, b=None,
        s0=s0, c0=c0, values0=values0, keys0=keys0, origin0=origin0, relevance0=None, clock0=None, cell=CELL[cell],
        phi=PHI[phi], buffer=buffer, relevant=relevant, mix=MIX[mix], decay=0.0, refresh=0, h=h, s=s,
        activations=activations, slots=slots, attention=attention, lengths=lengths, dxp=None, dq=None, dk=None,
        dx=by_x if dx else None, dV=dV, dW_a=dW_a, dU_a=dU_a, dv_rows=dv, ds0=ds0, dc0=dc0, dvalues0=dvalues0,
        dkeys0=dkeys0,
    )  # fmt: skip
    return by_x, dV, dW_a, dU_a, dv.sum(0), ds0, dc0, dvalues0, dkeys0


@implement("sab_forward", "cpu")
def sab_forward(
    xp: Tensor, V: Tensor, w: Tensor, h0: Tensor, c0: Tensor, values0: Tensor, keys0: Tensor, origin0: Tensor,
    clock0: Tensor, store_every: int, top: int, truncation: int, lengths: Tensor | None, save: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    T, B, n = xp.shape[0], *h0.shape
    kept = T if save else 0
    h, attended, c_T = xp.new_empty(T, B, n), xp.new_empty(T, B, n), torch.empty_like(c0)
    cells, gates, attention = (xp.new_empty(kept, B, width) for width in (n, 4 * n, top))
    slots = xp.new_empty(kept, B, top, dtype=torch.int32)
    call(
        "sab_forward", xp.dtype, steps=T, batch=B, n=n, carried=values0.shape[1], xp=xp, V=V, w=w, h0=h0, c0=c0,
        values0=values0, keys0=keys0, origin0=origin0, relevance0=None, clock0=clock0, store_every=store_every, top=top,
        truncation=truncation, lengths=lengths, save=save, h=h, attended=attended, c_T=c_T, cells=cells, gates=gates,
        slots=slots, attention=attention,
    )  # fmt: skip
    return h, attended, c_T, cells, gates, slots, attention


@implement("sab_backward", "cpu")
def sab_backward(
    dh: Tensor | None, dattended: Tensor | None, dc_T: Tensor | None, V: Tensor, w: Tensor, c0: Tensor,
    values0: Tensor, keys0: Tensor, origin0: Tensor, clock0: Tensor, h: Tensor, cells: Tensor, gates: Tensor,
    slots: Tensor, attention: Tensor, store_every: int, top: int, truncation: int, lengths: Tensor | None,
) -> tuple[Tensor, ...]:  # fmt: skip
    T, B, n = h.shape
    dxp, dh0, dc0, dvalues0 = (torch.empty_like(t) for t in (gates, c0, c0, values0))
    dscores, dscores0 = h.new_zeros(T, B), h.new_zeros(origin0.shape)
    call(
        "sab_backward", h.dtype, steps=T, batch=B, n=n, carried=values0.shape[1], dh=dh, dattended=dattended, dc_T=dc_T,
        V=V, w=w, c0=c0, values0=values0, keys0=keys0, origin0=origin0, relevance0=None, clock0=clock0,
        store_every=store_every, top=top, truncation=truncation, h=h, cells=cells, gates=gates, slots=slots,
        attention=attention, lengths=lengths, dxp=dxp, dh0=dh0, dc0=dc0, dvalues0=dvalues0, dscores=dscores,
        dscores0=dscores0,
    )  # fmt: skip
    return dxp, dh0, dc0, dvalues0, dscores, dscores0
