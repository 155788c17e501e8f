"""The total gradient of every state, from the one backward pass that all other gradients come from.

What autograd gives for the states h (T, B, n) of a fused walk is the direct gradient, of whatever reads them outside of
it; what comes back through the recurrence stays within the loop. But the loop returns the gradients of what was added
before each non-linearity, and h_t enters those of step t + 1 by a matrix: one more product, with no division by a slope
that may be zero.

    with noted() as walks:
        y, _ = layer(x)
    (walk,) = walks  # one a layer
    found = torch.autograd.grad(loss(y), walk.by, allow_unused=True, materialize_grads=True)
    walk.total(*found)  # d loss / d h_t, (T, B, n)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from mnemoscope.kernels._final_memory import through_memory

_ops = torch.ops.mnemoscope


@dataclass(frozen=True)
class Walk:
    """A layer's run over T steps without padding.

    Attributes:
        states: h (T, B, n).
        by: the tensors whose gradients autograd must be asked for.
        total: those gradients, in that order -> the total one of every state (T, B, n).
    """

    states: Tensor
    by: tuple[Tensor, ...]
    total: Callable[..., Tensor]


_noted: list[Walk] | None = None  # a plain global, for torch.compile's sake


@contextmanager
def noted() -> Iterator[list[Walk]]:
    """While open, notes every layer's walk, in the order in which they are made."""
    global _noted
    before, _noted = _noted, []
    try:
        yield _noted
    finally:
        _noted = before


@contextmanager
def unnoted() -> Iterator[None]:
    """While open, notes nothing, whatever is open around it."""
    global _noted
    before, _noted = _noted, None
    try:
        yield
    finally:
        _noted = before


def noting(lengths: Tensor | None = None) -> bool:
    """Whether a walk is to be noted: never one of padded rows."""
    return _noted is not None and lengths is None


def note(states: Tensor, by: tuple[Tensor, ...], total: Callable[..., Tensor]) -> None:
    if _noted is not None:
        _noted.append(Walk(states, by, total))


LIFT = 2.0**40  # out of the smallest numbers, at which a CPU's product is ten times slower


def _and_from_next(direct: Tensor, later: Tensor, V: Tensor) -> Tensor:
    """direct_t + V^T later_{t+1}: direct (T, B, n), later (T, B, G), V (G, n) -> (T, B, n).

    Going back, gradients often vanish: some steps have them at the edge of underflow, and all those before have none.
    """
    total = direct.clone(memory_format=torch.contiguous_format)
    size = torch.maximum(later.flatten(1).amax(1), -later.flatten(1).amin(1))  # (T,); torch.aminmax is slower than both
    begin = max(1, int((size != 0).int().argmax()))
    lift = LIFT if V.device.type == "cpu" and bool(size.max() < 1e15) else 1.0
    total[begin - 1 : -1].add_(later[begin:] @ (V * lift), alpha=1 / lift)  # addmm_ might scale the factors first
    return total


def through_matrix(V: Tensor) -> Callable[..., Tensor]:
    """States that are read by V alone: dh_t + V^T dxp_{t+1}. Of an LSTM too, whose c_t is another state."""

    @torch.no_grad()
    def total(dxp: Tensor, dh: Tensor) -> Tensor:
        return _and_from_next(dh, dxp, V)

    return total


def through_product(xp: Tensor, V: Tensor, h0: Tensor, b: Tensor | None, h: Tensor) -> Callable[..., Tensor]:
    """h_t = u_t * xp_t with u_t = V h_{t-1} + b: dh_t + V^T du_{t+1}, for which the loop is walked back again."""

    @torch.no_grad()
    def total(dh: Tensor) -> Tensor:
        u = torch.nn.functional.linear(torch.cat([h0.unsqueeze(0), h[:-1]]), V, b)
        du = _ops.rac_backward(dh.contiguous(), xp, V, u, None)[1]
        return _and_from_next(dh, du, V)

    return total


def through_rotation(W: Tensor, gates: Tensor) -> Callable[..., Tensor]:
    """GORU: h_t is read by W_r, W_g and Q, whose product is multiplied by r, and is kept in h_{t+1} by the share g."""
    n = W.shape[1]

    @torch.no_grad()
    def total(dxp: Tensor, dh: Tensor) -> Tensor:
        r, g = gates[..., :n], gates[..., n : 2 * n]
        found = _and_from_next(dh, torch.cat([dxp[..., : 2 * n], r * dxp[..., 2 * n :]], -1), W)
        for t in reversed(range(len(found) - 1)):
            found[t].addcmul_(g[t + 1], found[t + 1])
        return found

    return total


def through_attention(
    backward: Callable[..., tuple[Tensor, ...]], V: Tensor, W_a: Tensor, U_a: Tensor, v: Tensor, s0: Tensor,
    values0: Tensor, keys0: Tensor, origin0: Tensor, held: Tensor | None, h: Tensor, s: Tensor, activations: Tensor,
    slots: Tensor, attention: Tensor, buffer: int, relevant: int, mix: str,
) -> Callable[..., Tensor]:  # fmt: skip
    """h_t is read by s_t, by every later step that attends to it, and by whoever reads the memory that is left.

    What comes to s_t through V is known from the first way back. Given from outside, it needs no cell within: a second
    way back, of a cell that does nothing (V = 0, phi the identity), returns as its dz what arrives at h_t.
    """

    @torch.no_grad()
    def total(dxp: Tensor, dh: Tensor, ds: Tensor, dvalues: Tensor, dkeys: Tensor) -> Tensor:
        ds = _and_from_next(ds, dxp, V)
        dh = dh + through_memory(dvalues, dkeys, h, U_a, values0, keys0, held, None)[0]
        return backward(
            dh.contiguous(), ds, None, torch.zeros_like(W_a), W_a, U_a, v, s0, None, values0, keys0, origin0, h, s,
            activations, slots, attention, "rnn", "identity", buffer, relevant, mix, None,
        )[0]  # fmt: skip

    return total


def through_backtracking(
    V: Tensor, w: Tensor, values0: Tensor, keys0: Tensor, origin0: Tensor, clock0: Tensor, h: Tensor, slots: Tensor,
    attention: Tensor, store_every: int, top: int, truncation: int,
) -> Callable[..., Tensor]:  # fmt: skip
    """The same for SAB, whose walk knows one cell only: an LSTM with nothing but an output gate o = 1/2 over c = 1.

    Its dz of that gate is dh * tanh(c) o (1 - o).
    """

    @torch.no_grad()
    def total(dxp: Tensor, dh: Tensor, dattended: Tensor) -> Tensor:
        clock = clock0 + torch.arange(len(h), device=h.device)[:, None]  # (T, B)
        cut = (clock > 0) & (clock % truncation == 0)
        dh = _and_from_next(dh, dxp.masked_fill(cut[..., None], 0), V)
        gates = torch.cat([h.new_zeros(*h.shape[:2], 3 * h.shape[2]), torch.full_like(h, 0.5)], -1)
        dz = _ops.sab_backward(
            dh, dattended.contiguous(), None, torch.zeros_like(V), w, torch.zeros_like(h[0]), values0, keys0, origin0,
            clock0, h, torch.ones_like(h), gates, slots, attention, store_every, top, truncation, None,
        )[0]  # fmt: skip
        return dz[..., -h.shape[2] :] * (4 / math.tanh(1))

    return total
