"""The self-attentive recurrences on CUDA: which kernel walks which."""

from __future__ import annotations

from torch import Tensor

from mnemoscope.kernels._cuda import full_attention, screened
from mnemoscope.kernels._final_memory import remembered
from mnemoscope.kernels._operators import implement


@implement("attentive_forward", "cuda")
def attentive_forward(
    xp: Tensor, V: Tensor, W_a: Tensor, U_a: Tensor, v: Tensor, b: Tensor | None, s0: Tensor, c0: Tensor | None,
    values0: Tensor, keys0: Tensor, origin0: Tensor, relevance0: Tensor, clock0: Tensor, cell: str, phi: str,
    buffer: int, relevant: int, mix: str, decay: float, refresh: bool, lengths: Tensor | None, save: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    if buffer < 0:
        h, s, c_T, *rest = full_attention.forward(
            xp, V, W_a, U_a, v, b, s0, c0, values0, keys0, origin0, cell, phi, mix, lengths, save
        )
        return h, s, c_T, *remembered(h, U_a, values0, keys0, None), *rest
    h, s, c_T, slots, *rest = screened.forward(
        xp, V, W_a, U_a, v, b, s0, c0, values0, keys0, origin0, relevance0, clock0, cell, phi, buffer, relevant, mix,
        decay, refresh, lengths, save,
    )  # fmt: skip
    return h, s, c_T, *remembered(h, U_a, values0, keys0, slots), slots, *rest


@implement("attentive_backward", "cuda")
def attentive_backward(
    dh: Tensor | None, ds: Tensor | None, dc_T: Tensor | None, V: Tensor, W_a: Tensor, U_a: Tensor, v: Tensor,
    s0: Tensor, c0: Tensor | None, values0: Tensor, keys0: Tensor, origin0: Tensor, h: Tensor, s: Tensor,
    activations: Tensor, slots: Tensor, attention: Tensor, cell: str, phi: str, buffer: int, relevant: int, mix: str,
    lengths: Tensor | None,
) -> tuple[Tensor, ...]:  # fmt: skip
    if buffer < 0:
        return full_attention.backward(
            dh, ds, dc_T, V, W_a, U_a, v, s0, c0, values0, keys0, origin0, h, s, activations, attention, cell, phi,
            mix, lengths,
        )  # fmt: skip
    return screened.backward(
        dh, ds, dc_T, V, W_a, U_a, v, s0, c0, values0, keys0, h, s, activations, origin0, slots, attention, cell, phi,
        buffer, relevant, mix, lengths,
    )  # fmt: skip
