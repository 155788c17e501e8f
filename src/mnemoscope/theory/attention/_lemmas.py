"""Lemmas 5-6, Corollary 1, Proposition 2 and Remarks 4-5 of Kerg et al. 2020, against automatic differentiation."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.func import jacrev

from mnemoscope.theory._statement import PAPERS, Row, statement
from mnemoscope.theory.attention._jacobians import (
    X,
    Y,
    additive_scores,
    attention_weight,
    hidden_partial,
    macro_partial,
    path_factors,
    split_factors,
)
from mnemoscope.theory.attention._net import (
    SelfAttentiveNet,
    example_nets,
    random_net,
    relative_error_row,
    standard_normal,
)


def _score(net: SelfAttentiveNet, before: Tensor, hidden: Tensor) -> Tensor:
    return additive_scores(net.W_a, net.U_a, net.v, before, hidden).score


def _macro(net: SelfAttentiveNet, t: int, hidden: Tensor, before: Tensor) -> Tensor:
    """s_t as a function of h_0 .. h_t and s_{t-1}, psi_t of eq. 9."""
    scores = _score(net, before, hidden)
    if net.attended is not None:
        scores = scores.masked_fill(~net.attended[t, : t + 1], -torch.inf)
    return net.f(hidden[t], scores.softmax(0) @ hidden)


@statement(
    "kerg-lemma-5",
    paper=PAPERS["attention"],
    where="Lemma 5, eqs 56-57",
    status="holds",
    claim="ds_t/ds_{t-1}, every h fixed, is d2f sum_i alpha_{i,t} Y_{i,t}",
)
def lemma_5() -> Iterator[Row]:
    t = 9
    for case, net, x in example_nets():
        blocks = net.blocks(x)
        run = net.run(x)
        expected = jacrev(_macro, 3)(net, t, run.hidden[: t + 1], run.macro[t - 1])
        summed = sum(attention_weight(blocks, i, t) * Y(blocks, i, t) for i in range(t + 1))
        yield relative_error_row(f"{case}, by Y", blocks.f2[t] @ summed, expected)
        yield relative_error_row(f"{case}, by eq. 272", macro_partial(blocks, t), expected)


@statement(
    "kerg-lemma-6",
    paper=PAPERS["attention"],
    where="Lemma 6, eqs 64-65",
    status="holds",
    claim="ds_k/dh_j, all else fixed, is 1_{k=j} d1f + alpha_{j,k} d2f (I + X_{j,k})",
)
def lemma_6() -> Iterator[Row]:
    k = 9
    for case, net, x in example_nets():
        blocks = net.blocks(x)
        run = net.run(x)
        expected = jacrev(_macro, 2)(net, k, run.hidden[: k + 1], run.macro[k - 1])  # (n, k + 1, n)
        computed = torch.stack([hidden_partial(blocks, k, j) for j in range(k + 1)], 1)
        yield relative_error_row(case, computed, expected)


@statement(
    "kerg-corollary-1",
    paper=PAPERS["attention"],
    where="Corollary 1, eqs 73-75",
    status="holds",
    claim="E and F from f's derivatives, the attention weights, X, Y and J",
)
def corollary_1() -> Iterator[Row]:
    for case, net, x in example_nets():
        E, F = path_factors(net.blocks(x), 2, 4)
        run = net.run(x)
        step = jacrev(_one_step, 4)(net, x, 6, run.hidden[:6], run.macro[5])
        yield relative_error_row(f"{case}, F_(4,3)", F[4, 3], step)
        partial = jacrev(_macro, 2)(net, 6, run.hidden[:7], run.macro[5])[:, 2]
        yield relative_error_row(f"{case}, E_4", E[4], partial)


def _one_step(net: SelfAttentiveNet, x: Tensor, t: int, earlier: Tensor, before: Tensor) -> Tensor:
    """s_t as a function of s_{t-1}, through h_t and through the scores: what F_{k+1,k} differentiates."""
    return _macro(net, t, torch.cat([earlier, net.hidden(before, x[t])[None]]), before)


@statement(
    "kerg-proposition-2",
    paper=PAPERS["attention"],
    where="Proposition 2, eqs 85-90",
    status="corrected",
    claim="E and F are attention weights times skip connections, plus recurrent terms: F_{k+1,j} = alpha D_{k+1,j} + "
    "1_{k=j} R_{k+1}",
    correction="Eq. 86 calls D_{k+1,j} what eq. 87 defines as D_{k+1,j+1}; we index D as F. Read literally, eq. 87 "
    "puts the neighboring step's J and X into F.",
)
def proposition_2() -> Iterator[Row]:
    t, k = 1, 8
    for case, net, x in example_nets():
        blocks = net.blocks(x)
        E, F = path_factors(blocks, t, k)
        skip_E, first, skip_F, recurrent = split_factors(blocks, t, k)
        alpha = torch.stack([attention_weight(blocks, t, t + i) for i in range(k + 1)])
        rebuilt = alpha[:, None, None] * skip_E
        rebuilt[0] += first
        yield relative_error_row(f"{case}, E", rebuilt, E)
        rows = [attention_weight(blocks, t + j + 1, t + k) * skip_F[k, j] for j in range(k)]
        rows[-1] = rows[-1] + recurrent[k]
        yield relative_error_row(f"{case}, F", torch.stack(rows), F[k, :k])


@statement(
    "kerg-remark-4",
    paper=PAPERS["attention"],
    where="Remark 4, eqs 91-93",
    status="holds",
    claim="for f = h + c: E_k = 1_{k=0} I + alpha (I + X), F_{k+1,j} = alpha (I + X) J + 1_{k=j} (J + sum_i alpha_i "
    "Y_i)",
)
def remark_4() -> Iterator[Row]:
    net = random_net(6, 3, seed=1)
    x = standard_normal(12, 3, seed=0)
    t = 3
    k = 5
    blocks = net.blocks(x)
    unit = torch.eye(6, dtype=torch.float64)
    E, F = path_factors(blocks, t, k)
    for i in (0, k):
        alpha = attention_weight(blocks, t, t + i)
        yield relative_error_row(f"E_{i}", E[i], (i == 0) * unit + alpha * (unit + X(blocks, t, t + i)))
    for j in (0, k - 1):
        alpha = attention_weight(blocks, t + j + 1, t + k)
        J = blocks.J[t + j]
        summed = sum(attention_weight(blocks, i, t + k) * Y(blocks, i, t + k) for i in range(t + k + 1))
        yield relative_error_row(
            f"F_({k},{j})", F[k, j], alpha * (unit + X(blocks, t + j + 1, t + k)) @ J + (j == k - 1) * (J + summed)
        )


@statement(
    "kerg-remark-5",
    paper=PAPERS["attention"],
    where="Remark 5, eqs 95-97",
    status="holds",
    claim="the derivatives of additive scores in h_j and in s_{t-1}",
)
def remark_5() -> Iterator[Row]:
    for n in (1, 6, 20):
        net = random_net(n, 3, seed=n)
        h = standard_normal(4, n, seed=n + 1)
        s = standard_normal(n, seed=n + 2)
        scores = additive_scores(net.W_a, net.U_a, net.v, s, h)
        by_h, by_s = jacrev(_written_out, (2, 1))(net, s, h)
        by_h = torch.einsum("jjn->jn", by_h)  # e_j depends on h_j alone
        yield relative_error_row(f"n={n}, e", scores.score, _written_out(net, s, h))
        yield relative_error_row(f"n={n}, de/dh", scores.by_hidden, by_h)
        yield relative_error_row(f"n={n}, de/ds", scores.by_macro, by_s)


def _written_out(net: SelfAttentiveNet, s: Tensor, h: Tensor) -> Tensor:
    """v^T tanh(W_a s + U_a h_j), eq. 95, for every j."""
    return torch.stack([net.v @ torch.tanh(net.W_a @ s + net.U_a @ h_j) for h_j in h.unbind(0)])
