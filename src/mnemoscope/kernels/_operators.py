"""The fused recurrences as operators that torch knows: schemas, shapes and gradients; the backends bring the loops.

Every family is a pair in the `mnemoscope::` namespace. `*_forward` walks a whole sequence; `*_backward` walks it back
and returns the gradients of what was added before each non-linearity. Gradients of weights are one matrix product after
the loop, written once in `gradients.py` for all devices. A backend is a module `kernels/<device>/` that calls
`implement(name, device)(function)` for what it can do.

Common to all: time-major contiguous tensors; T steps, B rows, n units; `xp` holds the input projections with all
biases; `lengths` (B,) int64 or None: a row past its length has zeros in every output (anything in `slots`) and its
state stays as it was at its length; `save=False` (nothing will be differentiated) leaves every tensor after the `|`
below with no steps (0 in the place of T).

On the CPU the loops of rnn, lstm and attentive also make the projection themselves, and then their weights' gradients:
V is given as [V, U, b] (Gn, n + E) and xp as the inputs with a one behind them, [x, 1] (T, B, E). Such a walk is walked
back by `*_backward_joined`, whose `dx` says whether the gradient of those inputs is wanted (it has no steps otherwise).
modReLU, whose bias needs each step's gradient, is not among them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

NAMESPACE = "mnemoscope"

# The outputs after "|" are kept for the backward pass only and are never differentiated.
SCHEMAS = {
    # h_t = phi(xp_t + V h_{t-1}); xp (T,B,n), V (n,n), h0 (B,n), b (n) modReLU's bias -> h (T,B,n)
    # The derivative of each phi is a function of h alone, so h is all that is kept.
    "rnn_forward": "(Tensor xp, Tensor V, Tensor h0, Tensor? b, str phi, Tensor? lengths) -> Tensor",
    # -> dz (T,B,n), the gradient of xp; dh0 (B,n)
    "rnn_backward": "(Tensor dh, Tensor V, Tensor h, Tensor? lengths, str phi) -> (Tensor, Tensor)",
    # -> d[x, 1] (T,B,E), d[V, U, b] (n,n+E), dh0 (B,n)
    "rnn_backward_joined": "(Tensor dh, Tensor x, Tensor V, Tensor h0, Tensor h, Tensor? lengths, str phi, bool dx)"
    " -> (Tensor, Tensor, Tensor)",
    # Gates in torch's order i, f, g, o; xp (T,B,4n), V (4n,n)
    # -> h (T,B,n), c_T (B,n) | cells c_t (T,B,n), gates after their non-linearities (T,B,4n)
    "lstm_forward": "(Tensor xp, Tensor V, Tensor h0, Tensor c0, Tensor? lengths, bool save)"
    " -> (Tensor, Tensor, Tensor, Tensor)",
    # -> dxp (T,B,4n), dh0 (B,n), dc0 (B,n)
    "lstm_backward": "(Tensor? dh, Tensor? dc_T, Tensor V, Tensor c0, Tensor cells, Tensor gates, Tensor? lengths)"
    " -> (Tensor, Tensor, Tensor)",
    # -> d[x, 1] (T,B,E), d[V, U, b] (4n,n+E), dh0 (B,n), dc0 (B,n)
    "lstm_backward_joined": "(Tensor? dh, Tensor? dc_T, Tensor x, Tensor V, Tensor h0, Tensor c0, Tensor h,"
    " Tensor cells, Tensor gates, Tensor? lengths, bool dx) -> (Tensor, Tensor, Tensor, Tensor)",
    # h_t = (V h_{t-1} + b) * xp_t -> h (T,B,n)
    "rac_forward": "(Tensor xp, Tensor V, Tensor h0, Tensor? b, Tensor? lengths) -> Tensor",
    # u_t = V h_{t-1} + b (T,B,n) is made outside -> dxp (T,B,n), du (T,B,n), dh0 (B,n)
    "rac_backward": "(Tensor dh, Tensor xp, Tensor V, Tensor u, Tensor? lengths) -> (Tensor, Tensor, Tensor)",
    # xp (T,B,3n) in the order r, g, c; W (3n,n) = [W_r; W_g; Q]; b (n) modReLU's
    # -> h (T,B,n) | gates (T,B,4n) = r, g, candidate c, rotated state Q h_{t-1}
    "goru_forward": "(Tensor xp, Tensor W, Tensor h0, Tensor b, Tensor? lengths, bool save) -> (Tensor, Tensor)",
    # -> dxp (T,B,3n), du (T,B,n) the gradient of Q h_{t-1}, dh0 (B,n)
    "goru_backward": "(Tensor dh, Tensor W, Tensor h0, Tensor h, Tensor gates, Tensor? lengths)"
    " -> (Tensor, Tensor, Tensor)",
    # The cell ("rnn": G=1, "lstm": G=4) reads s_{t-1}: xp (T,B,Gn), V (Gn,n); query W_a s_{t-1}, keys U_a h_i,
    # logits v . tanh(query + key), h_t itself included; s_t = h_t + c_t (mix "sum") or their mean ("mean").
    # buffer nu >= 0 with relevant rho: slots 0..nu-1 are S, a ring in which h_t takes slot clock % nu; nu..nu+rho-1 are
    # R, filled in order; m0 = nu + rho. buffer -1: attention over everything carried (m0 of them) and everything new.
    # values0, keys0 (B,m0,n); origin0 (B,m0) int64, -1 an empty slot; relevance0 (B,m0); clock0 (B,) int64.
    # An index into memory counts the carried m0 first, then the T new states; -1 is an empty slot.
    # -> h (T,B,n), s (T,B,n), c_T (B,n) (rnn: (0,)); the memory at the end: values, keys (B,nu+rho,n), in an empty slot
    #    what stood there (full attention: (B,m0+T,n), zeros past a row's length), slots (B,nu+rho) int64 (full: (B,0)),
    #    relevance (B,nu+rho) (full: (B,0))
    #    | activations (T,B,W): on the CPU alone e^{2q} and e^{2k} of the step's query and key; then an LSTM's i, f, g,
    #    o and c_t; slots (T,B,nu+rho) int32 as attended at each step (full: (0,)), attention (T,B,nu+rho) the weights,
    #    zero in empty slots; full attention: (T,B) the log of the softmax's sum
    "attentive_forward": "(Tensor xp, Tensor V, Tensor W_a, Tensor U_a, Tensor v, Tensor? b, Tensor s0, Tensor? c0,"
    " Tensor values0, Tensor keys0, Tensor origin0, Tensor relevance0, Tensor clock0, str cell, str phi, int buffer,"
    " int relevant, str mix, float decay, bool refresh, Tensor? lengths, bool save)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    # -> dxp (T,B,Gn), dq (T,B,n) of the queries, dk (T,B,n) of the new states' keys, dv (n), ds0 (B,n), dc0 (B,n)
    #    (rnn: (0,)), dvalues0 (B,m0,n), dkeys0 (B,m0,n)
    "attentive_backward": "(Tensor? dh, Tensor? ds, Tensor? dc_T, Tensor V, Tensor W_a, Tensor U_a, Tensor v,"
    " Tensor s0, Tensor? c0, Tensor values0, Tensor keys0, Tensor origin0, Tensor h, Tensor s,"
    " Tensor activations, Tensor slots, Tensor attention, str cell, str phi, int buffer, int relevant, str mix,"
    " Tensor? lengths) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    # -> d[x, 1] (T,B,E), d[V, U, b] (Gn,n+E), dW_a, dU_a (n,n), then dv .. dkeys0 as above
    "attentive_backward_joined": "(Tensor? dh, Tensor? ds, Tensor? dc_T, Tensor x, Tensor V, Tensor W_a, Tensor U_a,"
    " Tensor v, Tensor s0, Tensor? c0, Tensor values0, Tensor keys0, Tensor origin0, Tensor h, Tensor s,"
    " Tensor activations, Tensor slots, Tensor attention, str cell, str phi, int buffer, int relevant, str mix,"
    " Tensor? lengths, bool dx)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    # Sparse attentive backtracking: an LSTM whose h_t is h^_t + attended_t, cut from its past where clock > 0 and
    # clock % truncation == 0; h_t is stored where (clock + 1) % store_every == 0. A stored m_i has the score
    # w . tanh(m_i) (the part that reads h^ is the same for all i and drops out). Up to `top` stored states have their
    # softmax; of more, the `top` largest have relu(score_i - top-th largest - 1e-7), divided by its sum + 1e-7.
    # Carried in are values0, keys0 = tanh of them (B,m0,n), origin0 (B,m0), -1 empty, clock0 (B,); indices as above.
    # -> h (T,B,n), attended (T,B,n), c_T (B,n)
    #    | cells (T,B,n), gates (T,B,4n), slots (T,B,top) int32 as attended at each step, -1 for none, attention
    #    (T,B,top)
    "sab_forward": "(Tensor xp, Tensor V, Tensor w, Tensor h0, Tensor c0, Tensor values0, Tensor keys0, Tensor origin0,"
    " Tensor clock0, int store_every, int top, int truncation, Tensor? lengths, bool save)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    # -> dxp (T,B,4n), dh0, dc0 (B,n), dvalues0 (B,m0,n), and the gradients of the scores of new (T,B) and of carried
    #    (B,m0) states
    "sab_backward": "(Tensor? dh, Tensor? dattended, Tensor? dc_T, Tensor V, Tensor w, Tensor c0, Tensor values0,"
    " Tensor keys0, Tensor origin0, Tensor clock0, Tensor h, Tensor cells, Tensor gates, Tensor slots,"
    " Tensor attention, int store_every, int top, int truncation, Tensor? lengths)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
}

# The same in torch's own operations, for any device: see `portable.py`.
SCHEMAS |= {f"portable_{way}": SCHEMAS[f"attentive_{way}"] for way in ("forward", "backward")}

for _name, _schema in SCHEMAS.items():
    torch.library.define(f"{NAMESPACE}::{_name}", _schema)


def implement(name: str, device: str) -> Callable[[Callable], Callable]:
    """Register a backend's function for one operator: `@implement("rnn_forward", "cpu")`."""

    def register(function: Callable) -> Callable:
        torch.library.impl(f"{NAMESPACE}::{name}", device, function)
        return function

    return register


def _fake(name: str) -> Callable[[Callable], Callable]:
    return torch.library.register_fake(f"{NAMESPACE}::{name}")


def _empty(like: Tensor, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
    return like.new_empty(shape, dtype=dtype or like.dtype)


@_fake("rnn_forward")
def _(xp: Tensor, V: Tensor, h0: Tensor, b: Tensor | None, phi: str, lengths: Tensor | None) -> Tensor:
    return _empty(xp, xp.shape[0], *h0.shape)


@_fake("rnn_backward")
def _(dh: Tensor, V: Tensor, h: Tensor, lengths: Tensor | None, phi: str) -> tuple[Tensor, Tensor]:
    return torch.empty_like(h), torch.empty_like(h[0])


def _input_gradient(x: Tensor, wanted: bool) -> Tensor:
    return torch.empty_like(x) if wanted else _empty(x, 0, *x.shape[1:])


@_fake("rnn_backward_joined")
def _(
    dh: Tensor, x: Tensor, V: Tensor, h0: Tensor, h: Tensor, lengths: Tensor | None, phi: str, dx: bool
) -> tuple[Tensor, Tensor, Tensor]:
    return _input_gradient(x, dx), torch.empty_like(V), torch.empty_like(h0)


@_fake("lstm_forward")
def _(
    xp: Tensor, V: Tensor, h0: Tensor, c0: Tensor, lengths: Tensor | None, save: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    T, B, n = xp.shape[0], *h0.shape
    kept = T if save else 0
    return _empty(xp, T, B, n), torch.empty_like(c0), _empty(xp, kept, B, n), _empty(xp, kept, B, 4 * n)


@_fake("lstm_backward")
def _(
    dh: Tensor | None, dc_T: Tensor | None, V: Tensor, c0: Tensor, cells: Tensor, gates: Tensor, lengths: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(gates), torch.empty_like(c0), torch.empty_like(c0)


@_fake("lstm_backward_joined")
def _(
    dh: Tensor | None, dc_T: Tensor | None, x: Tensor, V: Tensor, h0: Tensor, c0: Tensor, h: Tensor, cells: Tensor,
    gates: Tensor, lengths: Tensor | None, dx: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    return _input_gradient(x, dx), torch.empty_like(V), torch.empty_like(c0), torch.empty_like(c0)


@_fake("rac_forward")
def _(xp: Tensor, V: Tensor, h0: Tensor, b: Tensor | None, lengths: Tensor | None) -> Tensor:
    return torch.empty_like(xp)


@_fake("rac_backward")
def _(dh: Tensor, xp: Tensor, V: Tensor, u: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(xp), torch.empty_like(xp), torch.empty_like(xp[0])


@_fake("goru_forward")
def _(xp: Tensor, W: Tensor, h0: Tensor, b: Tensor, lengths: Tensor | None, save: bool) -> tuple[Tensor, Tensor]:
    T, B, n = xp.shape[0], *h0.shape
    return _empty(xp, T, B, n), _empty(xp, T if save else 0, B, 4 * n)


@_fake("goru_backward")
def _(
    dh: Tensor, W: Tensor, h0: Tensor, h: Tensor, gates: Tensor, lengths: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    T, B, n = h.shape
    return _empty(h, T, B, 3 * n), torch.empty_like(h), torch.empty_like(h0)


@_fake("portable_forward")
def _attentive_forward(
    xp: Tensor, V: Tensor, W_a: Tensor, U_a: Tensor, v: Tensor, b: Tensor | None, s0: Tensor, c0: Tensor | None,
    values0: Tensor, keys0: Tensor, origin0: Tensor, relevance0: Tensor, clock0: Tensor, cell: str, phi: str,
    buffer: int, relevant: int, mix: str, decay: float, refresh: bool, lengths: Tensor | None, save: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    T, B, n = xp.shape[0], *s0.shape
    kept, lstm, full = T if save else 0, cell == "lstm", buffer < 0
    slots = 0 if full else buffer + relevant
    held = values0.shape[1] + T if full else slots
    return (
        _empty(xp, T, B, n),
        _empty(xp, T, B, n),
        _empty(xp, B, n) if lstm else _empty(xp, 0),
        _empty(xp, B, held, n),
        _empty(xp, B, held, n),
        _empty(xp, B, slots, dtype=torch.int64),
        _empty(relevance0, B, slots),
        _empty(xp, kept, B, 5 * n if lstm else 0),
        _empty(xp, 0, dtype=torch.int32) if full else _empty(xp, kept, B, slots, dtype=torch.int32),
        _empty(xp, kept, B) if full else _empty(xp, kept, B, slots),
    )


@_fake("attentive_forward")
def _(*inputs: Any) -> tuple[Tensor, ...]:
    h, *between, activations, slots, attention = _attentive_forward(*inputs)
    T, B, width = activations.shape
    wider = _empty(h, T, B, width + 2 * h.shape[2]) if h.device.type == "cpu" else activations
    return h, *between, wider, slots, attention


@_fake("attentive_backward")
@_fake("portable_backward")
def _(
    dh: Tensor | None, ds: Tensor | None, dc_T: Tensor | None, V: Tensor, W_a: Tensor, U_a: Tensor, v: Tensor,
    s0: Tensor, c0: Tensor | None, values0: Tensor, keys0: Tensor, origin0: Tensor, h: Tensor, s: Tensor,
    activations: Tensor, slots: Tensor, attention: Tensor, cell: str, phi: str, buffer: int, relevant: int, mix: str,
    lengths: Tensor | None,
) -> tuple[Tensor, ...]:  # fmt: skip
    T, B, n = h.shape
    lstm = cell == "lstm"
    return (
        _empty(h, T, B, 4 * n if lstm else n),
        torch.empty_like(h),
        torch.empty_like(h),
        torch.empty_like(v),
        torch.empty_like(s0),
        torch.empty_like(s0) if lstm else _empty(h, 0),
        torch.empty_like(values0),
        torch.empty_like(keys0),
    )


@_fake("attentive_backward_joined")
def _(
    dh: Tensor | None, ds: Tensor | None, dc_T: Tensor | None, x: Tensor, V: Tensor, W_a: Tensor, U_a: Tensor,
    v: Tensor, s0: Tensor, c0: Tensor | None, values0: Tensor, keys0: Tensor, origin0: Tensor, h: Tensor, s: Tensor,
    activations: Tensor, slots: Tensor, attention: Tensor, cell: str, phi: str, buffer: int, relevant: int, mix: str,
    lengths: Tensor | None, dx: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    like = V, W_a, U_a, v, s0, s0 if cell == "lstm" else h.new_empty(0), values0, keys0
    return _input_gradient(x, dx), *(torch.empty_like(t) for t in like)


@_fake("sab_forward")
def _(
    xp: Tensor, V: Tensor, w: Tensor, h0: Tensor, c0: Tensor, values0: Tensor, keys0: Tensor, origin0: Tensor,
    clock0: Tensor, store_every: int, top: int, truncation: int, lengths: Tensor | None, save: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    T, B, n = xp.shape[0], *h0.shape
    kept = T if save else 0
    return (
        _empty(xp, T, B, n),
        _empty(xp, T, B, n),
        torch.empty_like(c0),
        _empty(xp, kept, B, n),
        _empty(xp, kept, B, 4 * n),
        _empty(xp, kept, B, top, dtype=torch.int32),
        _empty(xp, kept, B, top),
    )


@_fake("sab_backward")
def _(
    dh: Tensor | None, dattended: Tensor | None, dc_T: Tensor | None, V: Tensor, w: Tensor, c0: Tensor,
    values0: Tensor, keys0: Tensor, origin0: Tensor, clock0: Tensor, h: Tensor, cells: Tensor, gates: Tensor,
    slots: Tensor, attention: Tensor, store_every: int, top: int, truncation: int, lengths: Tensor | None,
) -> tuple[Tensor, ...]:  # fmt: skip
    scores = _empty(h, *h.shape[:2]), _empty(h, *origin0.shape)
    return torch.empty_like(gates), torch.empty_like(c0), torch.empty_like(c0), torch.empty_like(values0), *scores
