"""Sparse attentive backtracking on CUDA (sab.cu)."""

from __future__ import annotations

import torch
from torch import Tensor

from mnemoscope.kernels._cuda import compiler, layout
from mnemoscope.kernels._cuda.layout import Tile
from mnemoscope.kernels._cuda.plain import laid, on, single
from mnemoscope.kernels._operators import implement

MOST_KEPT = 32  # one lane of a warp keeps the books of one state


def supports(n: int, top: int, device: torch.device) -> bool:
    return top <= MOST_KEPT and layout.tile(4, n, device) is not None


def _defines(tile: Tile, top: int, **flags: bool) -> dict[str, int | str | bool]:
    absent = dict.fromkeys(("SAVE", "HAS_DH", "HAS_DS", "HAS_DC", "HAS_LENGTHS"), False)
    return {**tile.defines(), "RHO": top, "PHI": "TANH", **absent, **flags}


def _best(scores0: Tensor, origin0: Tensor, top: int) -> tuple[Tensor, Tensor]:
    """The carried states that count, by score: their indices (B, top), -1 for none, and how many are stored (B,)."""
    filled = origin0 >= 0
    many = min(top, origin0.shape[1])
    values, best = scores0.masked_fill(~filled, -torch.inf).topk(many, -1)
    best = torch.where(values > -torch.inf, best, -1)
    return torch.nn.functional.pad(best, (0, top - many), value=-1).int(), filled.sum(1).int()


@implement("sab_forward", "cuda")
def sab_forward(
    xp: Tensor, V: Tensor, w: Tensor, h0: Tensor, c0: Tensor, values0: Tensor, keys0: Tensor, origin0: Tensor,
    clock0: Tensor, store_every: int, top: int, truncation: int, lengths: Tensor | None, save: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    T, B, n = xp.shape[0], *h0.shape
    m0, kept, tile = values0.shape[1], T if save else 0, laid(4, n, xp.device)
    scores0 = keys0.float() @ w.float()
    best0, stored0 = _best(scores0, origin0, top)
    h = xp.new_empty(T, B, n, dtype=torch.float32)
    out = (
        h, torch.empty_like(h), h.new_empty(B, n), h.new_empty(kept, B, n), h.new_empty(kept, B, 4 * n),
        h.new_empty(kept, B, top, dtype=torch.int32), h.new_empty(kept, B, top),
    )  # fmt: skip
    args = [
        *single(xp, V, w, h0, c0, values0), best0, scores0, stored0, clock0.contiguous(), on(xp.device, lengths), *out,
        n, T, B, m0, store_every,
    ]  # fmt: skip
    floats = 2 * tile.N + 16 * tile.C + tile.bank(1, top)
    defines = _defines(tile, top, SAVE=save, HAS_LENGTHS=lengths is not None)
    compiler.launch("sab_forward", defines, B * tile.C, tile.threads, floats, args)
    return tuple(t.to(xp.dtype) if t.is_floating_point() else t for t in out)


@implement("sab_backward", "cuda")
def sab_backward(
    dh: Tensor | None, dattended: Tensor | None, dc_T: Tensor | None, V: Tensor, w: Tensor, c0: Tensor, values0: Tensor,
    keys0: Tensor, origin0: Tensor, clock0: Tensor, h: Tensor, cells: Tensor, gates: Tensor, slots: Tensor,
    attention: Tensor, store_every: int, top: int, truncation: int, lengths: Tensor | None,
) -> tuple[Tensor, ...]:  # fmt: skip
    T, B, n = h.shape
    m0, tile, dtype = values0.shape[1], laid(4, n, h.device), h.dtype
    scores, scores0 = torch.tanh(h.float()) @ w.float(), keys0.float() @ w.float()
    best0, stored0 = _best(scores0, origin0, top)
    dxp, dh0, dc0 = scores.new_empty(T, B, 4 * n), scores.new_empty(B, n), scores.new_empty(B, n)
    dvalues0, dscores, dscores0 = scores.new_zeros(B, m0, n), torch.zeros_like(scores), torch.zeros_like(scores0)
    given = {
        "HAS_DH": dh is not None, "HAS_DS": dattended is not None, "HAS_DC": dc_T is not None,
        "HAS_LENGTHS": lengths is not None,
    }  # fmt: skip
    args = [
        *single(dh, dattended, dc_T, V, w, c0, values0), best0, stored0, clock0.contiguous(), *single(h, cells, gates),
        slots, *single(attention), scores, scores0, on(h.device, lengths), dxp, dscores, dscores0, dvalues0, dh0, dc0,
        n, T, B, m0, store_every, truncation,
    ]  # fmt: skip
    floats = 8 * tile.N + 2 * tile.exchange() + 2 * tile.bank(1, top)
    compiler.launch("sab_backward", _defines(tile, top, **given), B * tile.C, tile.threads, floats, args)
    return tuple(t.to(dtype) for t in (dxp, dh0, dc0, dvalues0, dscores, dscores0))
