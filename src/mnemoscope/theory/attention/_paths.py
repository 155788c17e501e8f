"""Sums over paths: the total derivative as a polynomial in the number of hops (Kerg et al. 2020, Lemmas 1-4, Prop. 1).

The recursion C_k = E_k + sum_{j<k} F_{k,j} C_j has one term for each path 0 <= i_1 < ... < i_s < k. These functions
sum them without listing them: k (k + 1) / 2 products by an F.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from mnemoscope.theory._statement import PAPERS, Row, statement
from mnemoscope.theory.attention._jacobians import hidden_partial, macro_partial, path_factors
from mnemoscope.theory.attention._net import example_nets, relative_error_row, standard_normal


def total_derivatives(E: Tensor, F: Tensor) -> Tensor:
    """C_0 .. C_k from C_i = E_i + sum_{j<i} F_{i,j} C_j (Lemma 2, eq. 19, with C_0 = E_0).

    Args:
        E: (k + 1, N, M).
        F: (k + 1, k + 1, N, N); only F[i, j] with j < i is read.

    Returns:
        C: (k + 1, N, M); with Corollary 1's E and F, C[i] = ds_{t+i}/dh_t.
    """
    C: list[Tensor] = []
    for i, E_i in enumerate(E.unbind(0)):
        C.append(E_i + torch.einsum("jab,jbc->ac", F[i, :i], torch.stack(C)) if i else E_i)
    return torch.stack(C)


def transfers(F: Tensor, start: int = 0) -> Tensor:
    """xi_{r:k} for r = `start` and every k >= r: the sum over all paths from r to k (Lemma 3, eqs 22-23).

    The second factor of eq. 23 is F_{i_s, i_{s-1}}; the text prints F_{i_{s-1}, i_{s-2}}. xi_{r:r} = I.

    Returns:
        (k + 1 - r, N, N).
    """
    unit = torch.zeros_like(F[start:, 0])
    unit[0] = torch.eye(F.shape[-1]).to(F)
    return total_derivatives(unit, F[start:, start:])


def by_hops(E: Tensor, F: Tensor) -> Tensor:
    """The terms of C_0 .. C_k with exactly s factors F, for every s (Proposition 1, eq. 42).

    Same arguments as `total_derivatives`, whose result is the sum over s. All s share one product by each F.

    Returns:
        (k + 1, k + 1, N, M): entry [i, s] sums the paths of s hops; zero for s > i.
    """
    steps, N, M = E.shape
    terms = E.new_zeros(steps, steps, N, M)
    for i in range(steps):
        terms[i, 0] = E[i]
        terms[i, 1 : i + 1] = torch.einsum("jab,jsbc->sac", F[i, :i], terms[:i, :i])
    return terms


@statement(
    "kerg-lemma-1",
    paper=PAPERS["attention"],
    where="Lemma 1, eq. 11",
    status="holds",
    claim="ds_{t+k+1}/dh_t is its partial derivative plus what comes through each later h and through s_{t+k}",
)
def lemma_1() -> Iterator[Row]:
    t, k = 2, 7
    for case, net, x in example_nets():
        blocks = net.blocks(x)
        dh, ds = net.differentiated(x, t)
        through = sum(hidden_partial(blocks, t + k + 1, t + j + 1) @ dh[j + 1] for j in range(k + 1))
        computed = hidden_partial(blocks, t + k + 1, t) + through + macro_partial(blocks, t + k + 1) @ ds[k]
        yield relative_error_row(case, computed, ds[k + 1])


@statement(
    "kerg-lemma-2",
    paper=PAPERS["attention"],
    where="Lemma 2, eqs 14-19",
    status="corrected",
    claim="ds_{t+k+1}/dh_t = E_{k+1} + sum_j F_{k+1,j} ds_{t+j}/dh_t with F_{k+1,j} = ds_{t+k+1}/dh_{t+j+1} J_{t+j} +"
    " 1_{j=k} ds_{t+k+1}/ds_{t+k}",
    correction="J_k must be dh_{k+1}/ds_k, as eq. 15 uses it; the text defines it as ds_{k+1}/dh_k. With the printed"
    " J the recursion does not give the derivative.",
)
def lemma_2() -> Iterator[Row]:
    for case, net, x in example_nets():
        E, F = path_factors(net.blocks(x), 1, 10)
        yield relative_error_row(case, total_derivatives(E, F), net.differentiated(x, 1)[1])


@statement(
    "kerg-lemma-3",
    paper=PAPERS["attention"],
    where="Lemma 3, eqs 20-23",
    status="corrected",
    claim="the recursion's solution is C_k = xi_{0:k} C_0 + sum_r xi_{r:k} E_r, xi_{r:k} the sum over all paths from "
    "r to k",
    correction="The second factor of eq. 23 must be F_{i_s, i_{s-1}}: it continues where the first one, F_{i_{s+1}, "
    "i_s}, starts. The text prints F_{i_{s-1}, i_{s-2}}, which skips a factor.",
)
def lemma_3() -> Iterator[Row]:
    for k in (1, 4, 12):
        E, F = _random_factors(k)
        # All C and all xi at once, as the solution of the linear system C - F C = E in blocks.
        inverse = torch.linalg.inv(torch.eye(5 * (k + 1)).to(F) - _block_matrix(F))
        solution = (inverse @ E.flatten(0, 1)).unflatten(0, (k + 1, 5))
        by_start = [transfers(F, r)[-1] for r in range(k + 1)]
        xi = inverse[-5:].unflatten(1, (k + 1, 5)).transpose(0, 1)  # xi_{r:k} for every r
        yield relative_error_row(f"random E and F, k={k}: xi", torch.stack(by_start), xi)
        computed = torch.stack([part @ E[r] for r, part in enumerate(by_start)]).sum(0)  # C_0 = E_0
        yield relative_error_row(f"random E and F, k={k}: C by xi", computed, solution[-1])
        yield relative_error_row(f"random E and F, k={k}: C by the recursion", total_derivatives(E, F), solution)


def _random_factors(k: int) -> tuple[Tensor, Tensor]:
    """Random E (k + 1, 5, 5) and F (k + 1, k + 1, 5, 5)."""
    return standard_normal(k + 1, 5, 5, seed=k), standard_normal(k + 1, k + 1, 5, 5, seed=100 + k) / 5


def _block_matrix(F: Tensor) -> Tensor:
    """F_{i,j} with j < i as the blocks of one matrix, ((k + 1) N, (k + 1) N)."""
    steps = len(F)
    below = torch.ones(steps, steps, dtype=F.dtype).tril(-1)[:, :, None, None]
    return (below * F).transpose(1, 2).flatten(2, 3).flatten(0, 1)


@statement(
    "kerg-lemma-4",
    paper=PAPERS["attention"],
    where="Lemma 4, eq. 31",
    status="holds",
    claim="regrouped by the number s of factors F, C_k = E_k + sum_s sum_q xi_{k-q:k}(s) E_{k-q}",
)
def lemma_4() -> Iterator[Row]:
    for k in (1, 4, 12):
        E, F = _random_factors(k)
        terms = by_hops(E, F)
        yield relative_error_row(f"random E and F, k={k}", terms.sum(1), total_derivatives(E, F))
        for s in (1, k):  # s factors F: the power s of the block matrix
            power = torch.linalg.matrix_power(_block_matrix(F), s) @ E.flatten(0, 1)
            yield relative_error_row(f"k={k}: terms of {s} hops", terms[:, s], power.unflatten(0, (k + 1, 5)))


@statement(
    "kerg-proposition-1",
    paper=PAPERS["attention"],
    where="Proposition 1, eqs 41-44",
    status="holds",
    claim="ds_{t+k}/dh_t is the sum over s of the paths with s hops",
)
def proposition_1() -> Iterator[Row]:
    for case, net, x in example_nets():
        yield relative_error_row(case, by_hops(*path_factors(net.blocks(x), 0, 11)).sum(1), net.differentiated(x, 0)[1])
