"""The equations of one time step, written once: layers, kernels and theory all call these.

Every function takes tensors and returns tensors, differentiable any number of times. B is the batch, n the units, m the
slots of a memory.
"""

from __future__ import annotations

import torch
from torch import Tensor

SPARSE_MARGIN = 1e-7
"""How far a score must exceed the k_top-th largest to keep a weight in `sparse_attention_weights`."""


def lstm_cell(z: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """Return h_t and c_t of an LSTM, both (B, n).

    c_t = sigmoid(f) * c_{t-1} + sigmoid(i) * tanh(g);  h_t = sigmoid(o) * tanh(c_t): nn.LSTM's equations, and
    Miller & Hardt 2018, section 4.4.

    Args:
        z: (B, 4n), the gates i, f, g, o in torch's order before their nonlinearities.
        c: c_{t-1}, (B, n).
    """
    i, f, g, o = z.chunk(4, -1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def gru_cell(u: Tensor, v: Tensor, h: Tensor) -> Tensor:
    """Return h_t of a GRU, (B, n): nn.GRU's equations.

    r = sigmoid(u_r + v_r);  z = sigmoid(u_z + v_z);  n = tanh(u_n + r * v_n);  h_t = n + z * (h_{t-1} - n).

    Args:
        u: (B, 3n), what the input contributes, W_i x_t + b_i, in torch's order r, z, n.
        v: (B, 3n), what the state contributes, W_h h_{t-1} + b_h. The reset gate multiplies v_n with its bias.
        h: h_{t-1}, (B, n).
    """
    u_r, u_z, u_n = u.chunk(3, -1)
    v_r, v_z, v_n = v.chunk(3, -1)
    r = torch.sigmoid(u_r + v_r)
    z = torch.sigmoid(u_z + v_z)
    n = torch.tanh(u_n + r * v_n)
    return n + z * (h - n)


def goru_cell(gates: Tensor, rotated: Tensor, u: Tensor, h: Tensor, b: Tensor | None) -> Tensor:
    """Return h_t of a gated orthogonal recurrent unit, (B, n) (Jing et al. 2017).

    r, g = sigmoid(gates);  c = modReLU(r * (Q h_{t-1}) + u, b);  h_t = g * h_{t-1} + (1 - g) * c.

    Args:
        gates: (B, 2n), the gates r and g before the sigmoid.
        rotated: Q h_{t-1}, (B, n).
        u: U_c x_t, (B, n).
        h: h_{t-1}, (B, n).
        b: modReLU's bias, (n,); None leaves the candidate c linear.
    """
    r, g = torch.sigmoid(gates).chunk(2, -1)
    candidate = r * rotated + u
    if b is not None:
        candidate = modrelu(candidate, b)
    return g * h + (1 - g) * candidate


def modrelu(z: Tensor, b: Tensor) -> Tensor:
    """Return modReLU(z) = sign(z) relu(|z| + b): it keeps the sign of z (..., n) and moves its modulus by b (n,)."""
    return torch.sign(z) * torch.relu(torch.abs(z) + b)


def additive_scores(query: Tensor, keys: Tensor, v: Tensor) -> Tensor:
    """Return e_i = v^T tanh(W_a s + U_a h_i), (B, m) (Kerg et al. 2020, eq. 95).

    Args:
        query: W_a s, (B, n).
        keys: U_a h_i, (B, m, n).
        v: (n,).
    """
    return (query.unsqueeze(-2) + keys).tanh_() @ v  # in place: backward needs the tanh, not the sum


def masked_softmax(scores: Tensor, filled: Tensor) -> Tensor:
    """Return the softmax over the filled slots, (B, m); empty slots, and rows without a filled slot, get zero.

    Args:
        scores: (B, m).
        filled: (B, m), True where a slot holds a state.
    """
    lowest = torch.finfo(scores.dtype).min  # -inf would give NaN in a row without a filled slot
    return torch.softmax(scores.masked_fill(~filled, lowest), -1) * filled


def attention_context(weights: Tensor, values: Tensor) -> Tensor:
    """Return c = sum_i alpha_i h_i, (B, n), of the weights (B, m) and the values h_i (B, m, n)."""
    return (weights.unsqueeze(-2) @ values).squeeze(-2)


def additive_attention(query: Tensor, keys: Tensor, values: Tensor, v: Tensor, filled: Tensor) -> tuple[Tensor, Tensor]:
    """Return the context c = sum_i alpha_i h_i (B, n) and the weights alpha (B, m) (Kerg et al. 2020, eqs 9-10, 95).

    e_i = v^T tanh(W_a s + U_a h_i), alpha = softmax(e) over the filled slots.

    Args:
        query: W_a s, (B, n).
        keys: U_a h_i, (B, m, n).
        values: h_i, (B, m, n).
        v: (n,).
        filled: (B, m), True where a slot holds a state.
    """
    weights = masked_softmax(additive_scores(query, keys, v), filled)
    return attention_context(weights, values), weights


def sparse_attention_weights(scores: Tensor, filled: Tensor, top: int) -> Tensor:
    """Return SAB's weights (B, m): zero for all but the largest scores (Ke et al. 2018; k_top of the authors' code).

    a_i <- relu(a_i - a_(k_top) - margin), normalized to the sum 1; a softmax in rows with no more than `top` filled
    slots.

    Args:
        scores: a_i, (B, m).
        filled: (B, m), True where a slot holds a state.
        top: k_top, how many of the scores may stay above zero.
    """
    dense = masked_softmax(scores, filled)
    traced = torch.jit.is_tracing() or torch.compiler.is_compiling()  # for any number of slots
    if not traced and scores.shape[-1] <= top:
        return dense
    lowest = torch.finfo(scores.dtype).min
    scores = scores.masked_fill(~filled, lowest)
    candidates = torch.cat([scores, scores.new_full((scores.shape[0], top), lowest)], -1) if traced else scores
    threshold = candidates.topk(top, -1).values[..., -1:]
    excess = torch.relu(scores - threshold - SPARSE_MARGIN)
    sparse = excess / (excess.sum(-1, keepdim=True) + SPARSE_MARGIN)
    return torch.where(filled.sum(-1, keepdim=True) > top, sparse, dense)
