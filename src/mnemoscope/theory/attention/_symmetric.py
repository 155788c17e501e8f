"""omega(s), the sum of all products of s distinct terms 1/(t + i) (Kerg et al. 2020, A.3.2: Lemma 9, Proposition 3).

omega(s) is an elementary symmetric polynomial, and Newton's identities give it from the power sums S_l. Kerg et al.
expand it in powers of S_1 alone, which grows like ln T while the other S_l converge. With z marking s:

    Omega(z) = prod_i (1 + z a_i) = exp(S_1 z) Psi(z),   Psi = 1 / (1 - Delta) = exp(-S_2 z^2/2 + S_3 z^3/3 - ...)
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from mnemoscope.theory._statement import PAPERS, Row, statement


def reciprocals(t: int, start: int, stop: int) -> Tensor:
    """1/(t + i) for start <= i < stop, the terms that omega_{start:stop} multiplies (eq. 126)."""
    return 1 / torch.arange(t + start, t + max(start, stop), dtype=torch.float64)


def elementary_sums(terms: Tensor, most: int) -> Tensor:
    """omega(0) .. omega(most) straight from prod_i (1 + z a_i): (most + 1,). Positive terms: no digit is lost."""
    omega = [torch.ones_like(terms)]  # omega_{0:j}(s) for every j < len(terms)
    totals = [terms.new_ones(())]
    for _ in range(most):
        grown = (terms * omega[-1]).cumsum(0)  # sum over the last index, i_s <= j
        totals.append(grown[-1] if len(grown) else terms.new_zeros(()))
        omega.append(torch.cat([terms.new_zeros(1), grown[:-1]])[: len(terms)])  # i_s < j
    return torch.stack(totals)


def power_sums(terms: Tensor, most: int) -> Tensor:
    """S_1 .. S_most of eq. 138: (most,)."""
    return torch.stack([(terms**l).sum() for l in range(1, most + 1)])


def newton_sums(S: Tensor) -> Tensor:
    """omega(0) .. omega(s) from S_1 .. S_s by Newton's identities, s omega(s) = sum_l (-1)^(l-1) S_l omega(s - l)."""
    omega = [S.new_ones(())]
    for s in range(1, len(S) + 1):
        omega.append(sum((-1) ** (l - 1) * S[l - 1] * omega[s - l] for l in range(1, s + 1)) / s)
    return torch.stack(omega)


def deltas(S: Tensor) -> Tensor:
    """delta_{l,0} for l = 0 .. s, the constant terms of Lemma 9: (s + 1,), the first two zero.

    1 - Delta(z) = exp(S_2 z^2/2 - S_3 z^3/3 + ...), hence delta_2 = -S_2/2, delta_3 = S_3/3 and
    delta_4 = -(2 S_4 + S_2^2)/8, where eqs 148 and 149 print two other combinations.
    """
    series = [S.new_ones(())]
    for l in range(1, len(S) + 1):
        series.append(sum(((-1) ** i * S[i - 1] * series[l - i] for i in range(2, l + 1)), S.new_zeros(())) / l)
    return -torch.stack([S.new_zeros(()), *series[1:]])


def psis(delta: Tensor) -> Tensor:
    """psi_0 .. psi_s by psi_l = sum_j delta_j psi_{l-j} (eq. 173): the sum over all *ordered* (j_1, ..., j_k) of sum l.

    Eq. 165 asks for j_1 >= ... >= j_k, which misses delta_2 delta_3 once at l = 5.
    """
    psi = [torch.ones_like(delta[0])]
    for l in range(1, len(delta)):
        psi.append(sum((delta[j] * psi[l - j] for j in range(2, l + 1)), torch.zeros_like(delta[0])))
    return torch.stack(psi)


def lemma_9(S: Tensor) -> Tensor:
    """omega(0) .. omega(s) by omega(s) = S_1^s/s! + sum_{j=1}^{s} delta_{j,0} omega(s - j), omega(0) = 1 (eq. 152)."""
    delta = deltas(S)
    omega = [S.new_ones(())]
    for s in range(1, len(S) + 1):
        omega.append(S[0] ** s / math.factorial(s) + sum(delta[j] * omega[s - j] for j in range(1, s + 1)))
    return torch.stack(omega)


def proposition_3(S: Tensor) -> Tensor:
    """omega(0) .. omega(s) by omega(s) = sum_r psi_{s-r} S_1^r/r! (eq. 163)."""
    psi = psis(deltas(S))
    count = len(S) + 1
    powers = torch.stack([S[0] ** r / math.factorial(r) for r in range(count)])
    return torch.stack([(psi[: s + 1].flip(0) * powers[: s + 1]).sum() for s in range(count)])


def _expansion(expand) -> Iterator[Row]:  # type: ignore[no-untyped-def]
    for t, k in ((1, 20), (3, 200), (10, 100_000)):
        terms = reciprocals(t, 0, k)
        expected = elementary_sums(terms, 6)
        computed = expand(power_sums(terms, 6))
        for s in (2, 4, 6):
            yield Row(f"omega({s}), t={t}, k={k}", float(expected[s]), float(computed[s]), "==")


@statement(
    "kerg-remark-11",
    paper=PAPERS["attention"],
    where="Remark 11, eqs 139-149",
    status="corrected",
    claim="omega(4) = S_1^4/4! - S_2 omega(2)/2 + S_3 omega(1)/3 - (2 S_4 + S_2^2)/8",
    correction="(2, 2) counts each pair of factors twice, so (S_2^2 - S_4)/2 is meant; the constant terms printed in"
    " eq. 148, -(S_4 + S_2^2)/8, and in eq. 149, -(S_4 + 2 S_2^2)/8, are both wrong.",
)
def remark_11() -> Iterator[Row]:
    for t, k in ((1, 4), (1, 1000), (5, 50)):
        terms = reciprocals(t, 0, k)
        S1, S2, S3, S4 = power_sums(terms, 4)
        omega = elementary_sums(terms, 4)
        rest = S1**4 / 24 - S2 * omega[2] / 2 + S3 * omega[1] / 3
        yield Row(f"t={t}, k={k}", float(omega[4]), float(rest - (2 * S4 + S2**2) / 8), "==")


@statement(
    "kerg-lemma-9",
    paper=PAPERS["attention"],
    where="Lemma 9, eq. 152",
    status="holds",
    claim="omega(s) = S_1^s/s! + sum_j delta_{j,0} omega(s - j): the coefficient of omega(l) depends on s - l alone",
)
def check_lemma_9() -> Iterator[Row]:
    yield from _expansion(lemma_9)


@statement(
    "kerg-proposition-3",
    paper=PAPERS["attention"],
    where="Proposition 3, eqs 163-165",
    status="corrected",
    claim="omega(s) = sum_r psi_{s-r} S_1^r/r!, a polynomial of degree s in S_1 ~ ln T",
    correction="psi_l sums delta_{j_1} ... delta_{j_k} over all ordered tuples (as its recursion, eq. 173, does); "
    "eq. 165 restricts them to j_1 >= ... >= j_k, and from l = 5 on that loses terms: psi_5 = delta_5 + 2"
    " delta_2 delta_3.",
)
def check_proposition_3() -> Iterator[Row]:
    yield from _expansion(proposition_3)
