"""The Jacobian blocks of a self-attentive recurrence (Kerg et al. 2020, appendix A.2, Remark 3).

    s_t = f(h_t, c_t),   c_t = sum_i alpha_{i,t} h_i,   alpha_{.,t} = softmax_i e_{i,t},   e_{i,t} = a(s_{t-1}, h_i)

Steps are counted from 0 here. A recurrence that carries more than s_t from step to step (an LSTM's cell) is covered
with the extended states H_t = (h_t, cell_t) and S_t = (s_t, cell_t): only f and J change.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from mnemoscope.errors import MnemoscopeError


@dataclass(frozen=True)
class AttentionBlocks:
    """One run of T steps with n units, every step attending at most m states; N >= n is the size of the carried state.

    `origin[t, a]` is the step whose state slot a of step t holds, -1 for an empty slot, whose weight is 0.
    """

    hidden: Tensor  # h_t: (T, n)
    origin: Tensor  # (T, m)
    weight: Tensor  # alpha: (T, m)
    score_by_hidden: Tensor  # de_{i,t} / dh_i: (T, m, n)
    score_by_macro: Tensor  # de_{i,t} / ds_{t-1}: (T, m, n)
    J: Tensor  # J_t = dH_{t+1} / dS_t: (T - 1, N, N); the paper's text prints ds_{t+1} / dh_t
    f1: Tensor  # the derivative of f in its first argument, dS_t / dH_t at a fixed context: (T, N, N)
    f2: Tensor  # in its second, dS_t / dc_t: (T, N, n)

    @property
    def steps(self) -> int:
        """T, the steps of the run."""
        return len(self.hidden)

    @property
    def width(self) -> int:
        """N, the size of the carried state."""
        return self.f1.shape[-1]

    @cached_property
    def deviation(self) -> Tensor:
        """h_i - c_t for each slot, the factor that X and Y share (eqs 65 and 272): (T, m, n)."""
        attended = self.hidden[self.origin.clamp(min=0)]  # (T, m, n)
        context = torch.einsum("tm,tmn->tn", self.weight, attended)
        return attended - context[:, None]

    @cached_property
    def attention(self) -> Tensor:
        """The attention map, alpha_{i,t} at [t, i]: (T, T)."""
        T = self.steps
        padded = self.weight.new_zeros(T, T + 1)  # the last column takes the empty slots
        return padded.scatter_add(1, torch.where(self.origin < 0, T, self.origin), self.weight)[:, :T]

    def check_span(self, t: int, k: int) -> None:
        """Raise if the run does not have steps t and t + k."""
        if t < 0 or k < 0 or t + k >= self.steps:
            raise MnemoscopeError(f"from h_t to s_(t+k) needs t, k >= 0 and t + k < {self.steps}; got t={t}, k={k}")

    def slot(self, step: int, origin: int) -> int | None:
        """Where step `step` holds the state made at step `origin`; None if it does not attend it."""
        computed = (self.origin[step] == origin).nonzero()
        return int(computed[0]) if len(computed) else None


class AdditiveScores(NamedTuple):
    """Scores and their derivatives, (..., m) and twice (..., m, n)."""

    score: Tensor
    by_hidden: Tensor
    by_macro: Tensor


def additive_scores(W_a: Tensor, U_a: Tensor, v: Tensor, macro: Tensor, hidden: Tensor) -> AdditiveScores:
    """e_j = v^T tanh(W_a s + U_a h_j) and its derivatives in h_j and in s (Remark 5, eqs 95-97).

    Args:
        W_a: (n, n).
        U_a: (n, n).
        v: (n,).
        macro: s_{t-1}, (..., n).
        hidden: the attended h_j, (..., m, n).
    """
    activation = torch.tanh((macro @ W_a.T).unsqueeze(-2) + hidden @ U_a.T)  # (..., m, n)
    slope = v * (1 - activation**2)
    return AdditiveScores(activation @ v, slope @ U_a, slope @ W_a)


def X(blocks: AttentionBlocks, j: int, k: int) -> Tensor:
    """X_{j,k} = (h_j - c_k) de_{j,k}/dh_j (eq. 65): (n, n), zero where step k does not attend h_j."""
    slot = blocks.slot(k, j)
    if slot is None:
        return _nothing(blocks)
    return torch.outer(blocks.deviation[k, slot], blocks.score_by_hidden[k, slot])


def Y(blocks: AttentionBlocks, i: int, t: int) -> Tensor:
    """Y_{i,t} = h_i (de_{i,t}/ds_{t-1} - sum_j alpha_{j,t} de_{j,t}/ds_{t-1}) (eq. 57): (n, n) for an attended h_i."""
    slot = blocks.slot(t, i)
    if slot is None:
        return _nothing(blocks)
    gradient = blocks.score_by_macro[t]
    return torch.outer(blocks.hidden[i], gradient[slot] - blocks.weight[t] @ gradient)


def macro_partial(blocks: AttentionBlocks, t: int) -> Tensor:
    """dS_t/dS_{t-1} with every H fixed = f2 sum_i alpha_{i,t} Y_{i,t} (Lemma 5, eq. 56): (N, N).

    By eq. 272 the sum equals sum_i alpha_{i,t} (h_i - c_t) de_{i,t}/ds_{t-1}.
    """
    summed = torch.einsum("m,mi,mj->ij", blocks.weight[t], blocks.deviation[t], blocks.score_by_macro[t])
    return _widen(blocks.f2[t] @ summed, blocks.width)


def hidden_partial(blocks: AttentionBlocks, k: int, j: int) -> Tensor:
    """dS_k/dH_j with every other H and S_{k-1} fixed = 1_{k=j} f1 + alpha_{j,k} f2 (I + X_{j,k}) (Lemma 6, eq. 64)."""
    direct = blocks.f1[k] if k == j else torch.zeros_like(blocks.f1[k])
    return direct + attention_weight(blocks, j, k) * skip_factor(blocks, k, j)


def attention_weight(blocks: AttentionBlocks, j: int, k: int) -> Tensor:
    """alpha_{j,k}: what step k gives to the state made at step j, 0 where it does not attend it."""
    slot = blocks.slot(k, j)
    return blocks.weight.new_zeros(()) if slot is None else blocks.weight[k, slot]


def skip_factor(blocks: AttentionBlocks, k: int, j: int) -> Tensor:
    """f2 (I + X_{j,k}), D~ of eq. 89 and the left part of D in eq. 87: (N, N)."""
    X_jk = X(blocks, j, k)
    return _widen(blocks.f2[k] @ (torch.eye(len(X_jk)).to(X_jk) + X_jk), blocks.width)


def _nothing(blocks: AttentionBlocks) -> Tensor:
    return blocks.hidden.new_zeros(2 * blocks.hidden.shape[1:])


def _widen(block: Tensor, width: int) -> Tensor:
    """Attention reads only the first n entries of the carried state: zero columns for the others."""
    return torch.nn.functional.pad(block, (0, width - block.shape[-1]))


def path_factors(blocks: AttentionBlocks, t: int, k: int) -> tuple[Tensor, Tensor]:
    """E_i for i <= k and F_{i,j} for j < i <= k, the factors of every path from h_t to s_{t+k} (Corollary 1).

        E_i = dS_{t+i}/dH_t,   F_{i+1,j} = dS_{t+i+1}/dH_{t+j+1} J_{t+j} + 1_{i=j} dS_{t+i+1}/dS_{t+i}

    Returns:
        E (k + 1, N, N) and F (k + 1, k + 1, N, N), which is zero for j >= i.
    """
    blocks.check_span(t, k)
    N = blocks.width
    E = torch.stack([hidden_partial(blocks, t + i, t) for i in range(k + 1)])
    F = blocks.hidden.new_zeros(k + 1, k + 1, N, N)
    for i in range(k):
        for j in range(i + 1):
            F[i + 1, j] = hidden_partial(blocks, t + i + 1, t + j + 1) @ blocks.J[t + j]
        F[i + 1, i] += macro_partial(blocks, t + i + 1)
    return E, F


class Split(NamedTuple):
    """Proposition 2: each factor as its attention weight times a skip connection, plus the recurrent one."""

    skip_E: Tensor  # D~: (k + 1, N, N)
    recurrent_E: Tensor  # R~_0: (N, N)
    skip_F: Tensor  # D: (k + 1, k + 1, N, N)
    recurrent_F: Tensor  # R: (k + 1, N, N), the first unused


def split_factors(blocks: AttentionBlocks, t: int, k: int) -> Split:
    """D~, R~_0, D and R such that (Proposition 2, eqs 85-90)

        E_i = alpha_{t,t+i} D~_i + 1_{i=0} R~_0,   F_{i+1,j} = alpha_{t+j+1,t+i+1} D_{i+1,j} + 1_{i=j} R_{i+1}

    D is indexed as eq. 86 does; eq. 87 calls the same matrix D_{k+1,j+1}.
    """
    blocks.check_span(t, k)
    N = blocks.width
    skip_F = blocks.hidden.new_zeros(k + 1, k + 1, N, N)
    recurrent_F = blocks.hidden.new_zeros(k + 1, N, N)
    for i in range(k):
        for j in range(i + 1):
            skip_F[i + 1, j] = skip_factor(blocks, t + i + 1, t + j + 1) @ blocks.J[t + j]
        recurrent_F[i + 1] = blocks.f1[t + i + 1] @ blocks.J[t + i] + macro_partial(blocks, t + i + 1)
    skip_E = torch.stack([skip_factor(blocks, t + i, t) for i in range(k + 1)])
    return Split(skip_E, blocks.f1[t], skip_F, recurrent_F)
