"""A linear recurrence h_t = V h_{t-1} + xp_t of few rows as one of many: its chunks of time run side by side.

A chunk that starts from zero ends in e_c; from its true start h_c it ends in e_c + V^L h_c, with L steps a chunk. The
true starts are then a recurrence over chunks, solved by doubling in log2(chunks) products, and a second run from them
gives every state. That is twice the arithmetic, spread over rows that would otherwise be missing.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from mnemoscope.kernels import _state_gradients
from mnemoscope.kernels._dispatch import is_traced_or_transformed
from mnemoscope.kernels._fused import last_valid_state, rnn
from mnemoscope.kernels._operators import rnn_forward

SHORTEST_CHUNK = 16  # steps that a chunk must have to be worth its two runs
FEWEST_CHUNKS = 4  # two chunks make as many steps as none, after one another; three hardly fewer


def linear(
    dtype: torch.dtype, xp: Tensor, V: Tensor, h0: Tensor | None, lengths: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return h (T, B, n) and the last state (B, n); xp (T, B, n), V (n, n), h0 (B, n), None for zeros."""
    h0 = xp.new_zeros(xp.shape[1:]) if h0 is None else h0
    xp, V, h0 = (t.to(dtype) for t in (xp, V, h0))
    chunks = _number_of_chunks(xp) if lengths is None else 1
    powers = [] if chunks == 1 else _powers(V, -(-xp.shape[0] // chunks), chunks)
    if not powers or not bool(powers[-1].isfinite().all()):  # of an explosive V, step by step goes further
        return rnn(dtype, xp, V, h0, None, "identity", lengths)
    h = _by_chunks(xp, V.contiguous(), h0, powers, chunks)
    if _state_gradients.is_recording():
        _state_gradients.record(h, (xp,), lambda dxp: dxp)  # what is added to a linear state is a part of it
    return h, last_valid_state(h, h0, None)


def _number_of_chunks(xp: Tensor) -> int:
    """Return as many chunks as make rows for every thread or multiprocessor."""
    T, B, _ = xp.shape
    if is_traced_or_transformed():  # whether V explodes cannot be asked of a traced tensor
        return 1
    if xp.is_cuda:
        if torch.cuda.is_current_stream_capturing():  # nor inside a CUDA graph
            return 1
        rows = torch.cuda.get_device_properties(xp.device).multi_processor_count
    else:
        rows = 8 * torch.get_num_threads()  # rows that use each weight once it is in a register
    chunks = min(rows // B, T // SHORTEST_CHUNK)
    return chunks if chunks >= FEWEST_CHUNKS else 1


def _powers(V: Tensor, L: int, chunks: int) -> list[Tensor]:
    """Return V^L, V^2L, V^4L ..., one for each doubling of the chunks whose starts are known. One of an infinite power
    is not finite either.
    """
    powers = [torch.linalg.matrix_power(V, L)]
    while 2 ** len(powers) < chunks:
        powers.append(powers[-1] @ powers[-1])
    return powers


def _by_chunks(xp: Tensor, V: Tensor, h0: Tensor, powers: list[Tensor], chunks: int) -> Tensor:
    T, B, n = xp.shape
    L = -(-T // chunks)

    # (T, B, n) -> (L, chunks * B, n): every chunk of a row becomes a row.
    side_by_side = F.pad(xp, (0, 0, 0, 0, 0, chunks * L - T)).view(chunks, L, B, n).transpose(0, 1)
    side_by_side = side_by_side.reshape(L, chunks * B, n)

    # Every chunk from zero, then from its true start.
    zeros = xp.new_zeros(chunks * B, n)
    ends = _run(side_by_side, V, zeros)[-1].view(chunks, B, n)
    starts = _starts(ends, powers, h0).view(chunks * B, n)
    h = _run(side_by_side, V, starts)  # (L, chunks * B, n)
    return h.view(L, chunks, B, n).transpose(0, 1).reshape(chunks * L, B, n)[:T]


def _run(xp: Tensor, V: Tensor, h0: Tensor) -> Tensor:
    return rnn_forward(xp.contiguous(), V, h0.contiguous(), None, "identity", None)


def _starts(ends: Tensor, powers: list[Tensor], h0: Tensor) -> Tensor:
    """Return the state before each chunk (chunks, B, n): s_0 = h0, s_{c+1} = ends_c + V^L s_c, by doubling."""
    states = torch.cat([h0.unsqueeze(0), ends[:-1]])
    for doublings, power in enumerate(powers):
        distance = 2**doublings
        states = torch.cat([states[:distance], states[distance:] + states[:-distance] @ power.T])
    return states
