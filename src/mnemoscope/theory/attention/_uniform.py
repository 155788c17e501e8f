"""Uniform attention: alpha_{i,t} = 1/t, J = V (Kerg et al. 2020, A.3). Here t counts from 1, as in the paper.

    ds_{t+k}/dh_t = sum_s V^s chi_{0:k}(s)

chi sums over paths; it is computed exactly, by dynamic programming, and bounded by the symmetric sums omega.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from mnemoscope.errors import MnemoscopeError
from mnemoscope.theory._statement import PAPERS, Row, statement
from mnemoscope.theory.attention._symmetric import elementary_sums, reciprocals


def uniform_chi(t: int, k: int, most: int | None = None) -> Tensor:
    """chi_{0:j}(s) for every j <= k and s <= most (eqs 122-123), by dynamic programming: (k + 1, most + 1).

    A path of s hops to j extends one of s - 1 hops: to any earlier step with weight 1/(t + j), to the last with 1 more.
    """
    check_start(t, k)
    weight = reciprocals(t, 0, k + 1)  # 1/(t + j)
    columns = [weight.clone()]
    columns[0][0] += 1
    for _ in range(k if most is None else most):
        previous = torch.nn.functional.pad(columns[-1], (1, 0))[:-1]  # chi_{0:j-1}(s - 1)
        columns.append(weight * previous.cumsum(0) + previous)
    return torch.stack(columns, 1)


def uniform_theta(t: int, k: int, most: int | None = None) -> Tensor:
    """theta_{0:j}(s) for every j <= k and s <= most (eqs 127-128): (k + 1, most + 1), with theta(0) = 1.

    A path summed by theta(s) runs to its last step i_s as one summed by chi(s - 1):
    theta_{0:j}(s) = sum_{i<j} chi_{0:i}(s - 1).
    """
    most = k if most is None else most
    ends = torch.nn.functional.pad(uniform_chi(t, k, max(most - 1, 0)), (0, 0, 1, 0))[:-1].cumsum(0)
    return torch.cat([torch.ones_like(ends[:, :1]), ends], 1)[:, : most + 1]


def theta_recursion(t: int, k: int, most: int) -> Tensor:
    """The same by theta_{0:j}(s + 1) = theta_{0:j-1}(s) + sum_{s<=i<j} theta_{0:i}(s)/(t + i), s >= 1 (eq. 188).

    theta_{0:j}(1) = 1 + omega_{0:j}(1), for j >= 1, starts it (eq. 186).
    """
    check_start(t, k)
    weight = reciprocals(t, 0, k + 1)
    one = torch.ones_like(weight)
    columns = [one, _below(weight).cumsum(0) + (torch.arange(k + 1) > 0)]
    for _ in range(most - 1):
        columns.append(_below(columns[-1]) + _below(weight * columns[-1]).cumsum(0))
    return torch.stack(columns[: most + 1], 1)


def chi_by_theta(t: int, k: int, s: int) -> float:
    """chi_{0:k}(s) = 1_{k=s} + sum_{i<=s} theta_{0:k-i}(s - i)/(t + k - i), for k >= s (Remark 16, eq. 220)."""
    _check_hops(s, k, least=0)
    theta = uniform_theta(t, k, s)
    return float(k == s) + sum(float(theta[k - i, s - i]) / (t + k - i) for i in range(s + 1))


def _below(values: Tensor) -> Tensor:
    """Entry j - 1 in place of entry j, and 0 first."""
    return torch.nn.functional.pad(values, (1, 0))[:-1]


def theta_bounds(t: int, k: int, s: int) -> tuple[float, float]:
    """Lemma 10's lower and upper bound of theta_{0:k}(s), for k >= s >= 1 (eq. 195)."""
    _check_hops(s, k, least=1)
    lower = sum(math.comb(s, r) * _omega(t, s - r, k, r) for r in range(s + 1))
    upper = sum(math.comb(s, r) * _omega(t, 0, k - s + r, r) for r in range(s + 1))
    return lower, upper


def chi_bounds(t: int, k: int, s: int) -> tuple[float, float]:
    """Lemma 11's lower and upper bound of chi_{0:k}(s), for k >= 1 and k >= s >= 0 (eq. 221)."""
    _check_hops(s, k, least=0)
    last = float(k == s)
    lower = sum(math.comb(s + 1, r + 1) * _omega(t, s - r, k, r) for r in range(s + 1)) / (t + k)
    upper = sum(math.comb(s + 1, r + 1) * _omega(t, 0, k - s + r, r) for r in range(s + 1)) / (t + k - s)
    return last + lower, last + upper


def _omega(t: int, start: int, stop: int, r: int) -> float:
    return float(elementary_sums(reciprocals(t, start, stop), r)[r])


def check_start(t: int, k: int) -> None:
    if t < 1 or k < 0:
        raise MnemoscopeError(f"steps are counted from t = 1 and k from 0; got t={t}, k={k}")


def _check_hops(s: int, k: int, least: int) -> None:
    if not (least <= s <= k and k >= 1):
        raise MnemoscopeError(f"the bound is for {least} <= s <= k and k >= 1; got s={s}, k={k}")


def remainder(t: int, k: int, s: int) -> float:
    """(t + k) times what Lemma 12 leaves of chi_{0:k}(s): chi less Lemma 11's lower bound."""
    return (t + k) * (float(uniform_chi(t, k, s)[k, s]) - chi_bounds(t, k, s)[0])


@statement(
    "kerg-remark-14",
    paper=PAPERS["attention"],
    where="Remark 14, eqs 186-190",
    status="holds",
    claim="theta_{0:k}(s+1) = theta_{0:k-1}(s) + sum_{s<=j<k} theta_{0:j}(s)/(t+j); theta(2) and theta(3) by omega",
)
def remark_14() -> Iterator[Row]:
    for t, k, s in ((1, 5, 5), (1, 1000, 3), (4, 50, 8), (20, 10_000, 4)):
        theta = uniform_theta(t, k, s)
        yield Row(f"t={t}, k={k}, s={s}: eq. 188", float(theta_recursion(t, k, s)[k, s]), float(theta[k, s]), "==")
    for t, k in ((1, 3), (3, 200)):
        two, three = uniform_theta(t, k, 3)[k, 2:].tolist()
        low, high = (_omega(t, 1, k, 1), _omega(t, 0, k - 1, 1))
        yield Row(f"t={t}, k={k}: theta(2), eq. 187", 1 + low + high + _omega(t, 0, k, 2), two, "==")
        ones = _omega(t, 1, k - 1, 1) + _omega(t, 0, k - 2, 1) + _omega(t, 2, k, 1)
        twos = _omega(t, 0, k - 1, 2) + _omega(t, 1, k, 2) + sum(_omega(t, 0, j - 1, 1) / (t + j) for j in range(2, k))
        yield Row(f"t={t}, k={k}: theta(3), eqs 189-190", 1 + ones + twos + _omega(t, 0, k, 3), three, "==")


@statement(
    "kerg-remark-16",
    paper=PAPERS["attention"],
    where="Remarks 9 and 16, eqs 129-130, 218-220",
    status="holds",
    claim="chi_{0:k}(s) = 1_{k=s} + sum_{i<=s} theta_{0:k-i}(s-i)/(t+k-i)",
)
def remark_16() -> Iterator[Row]:
    for t, k, s in ((1, 1, 0), (1, 5, 5), (2, 7, 3), (1, 1000, 3), (20, 10_000, 4)):
        expected = float(uniform_chi(t, k, s)[k, s])
        yield Row(f"t={t}, k={k}, s={s}", expected, chi_by_theta(t, k, s), "==")


@statement(
    "kerg-lemma-10",
    paper=PAPERS["attention"],
    where="Lemma 10, eq. 195",
    status="holds",
    claim="sum_r C(s,r) omega_{s-r:k}(r) <= theta_{0:k}(s) <= sum_r C(s,r) omega_{0:k-s+r}(r)",
)
def lemma_10() -> Iterator[Row]:
    for t, k, s in ((1, 5, 5), (1, 1000, 3), (4, 50, 8), (20, 10_000, 4)):
        lower, upper = theta_bounds(t, k, s)
        measured = float(uniform_theta(t, k, s)[k, s])
        yield Row(f"t={t}, k={k}, s={s}, above", upper, measured)
        yield Row(f"t={t}, k={k}, s={s}, below", lower, measured, ">=")


@statement(
    "kerg-remark-15",
    paper=PAPERS["attention"],
    where="Remark 15, eq. 216",
    status="corrected",
    claim="Lemma 10's bounds approach each other relative to theta; they stay 2/t apart for s = 2 and drift apart for"
    " s >= 3",
    correction="The remark lets their difference converge to zero, but ln beta_{t-1,.} and ln beta_{t+s-r-1,.} "
    "differ by a constant at fixed t. The difference goes like (s/t) (ln T)^(s-2)/(s-2)!.",
)
def remark_15() -> Iterator[Row]:
    for t in (1, 5):
        lower, upper = theta_bounds(t, 100_000, 2)
        yield Row(f"t={t}, s=2, T=10^5: upper - lower, in the limit 2/t", 2 / t, upper - lower, "==", tolerance=1e-3)
        for s in (3, 5):
            near, far = (_relative_gap(t, k, s) for k in (1000, 100_000))
            yield Row(f"t={t}, s={s}: (upper - lower)/theta at T=10^5, against 10^3", near, far)


def _relative_gap(t: int, k: int, s: int) -> float:
    lower, upper = theta_bounds(t, k, s)
    return (upper - lower) / float(uniform_theta(t, k, s)[k, s])


@statement(
    "kerg-lemma-11",
    paper=PAPERS["attention"],
    where="Lemma 11, eq. 221",
    status="holds",
    claim="1_{k=s} + sum_r C(s+1,r+1) omega_{s-r:k}(r)/(t+k) <= chi_{0:k}(s) <= 1_{k=s} + sum_r C(s+1,r+1) "
    "omega_{0:k-s+r}(r)/(t+k-s)",
)
def lemma_11() -> Iterator[Row]:
    for t, k, s in ((1, 1, 0), (1, 5, 5), (1, 1000, 3), (4, 50, 8), (20, 10_000, 4)):
        lower, upper = chi_bounds(t, k, s)
        measured = float(uniform_chi(t, k, s)[k, s])
        yield Row(f"t={t}, k={k}, s={s}, above", upper, measured)
        yield Row(f"t={t}, k={k}, s={s}, below", lower, measured, ">=")


@statement(
    "kerg-lemma-12",
    paper=PAPERS["attention"],
    where="Lemma 12, eq. 232",
    status="corrected",
    claim="chi_{0:k}(s) = 1_{k=s} + sum_r C(s+1,r+1) omega_{s-r:k}(r)/T + g/T, g ~ (s/t) (ln T)^(s-2)/(s-2)! for s >="
    " 2, O(1/T) for s <= 1",
    correction="The remainder is stated as Theta(1/T). It is so for s = 2 alone: it is 0 for s = 0, Theta(1/T^2) for"
    " s = 1, and larger by (ln T)^(s-2) for s >= 3, because eq. 234 drops the constant by which the two "
    "logarithms differ.",
)
def lemma_12() -> Iterator[Row]:
    decades = [10**e for e in (2, 3, 4, 5)]
    for t in (1, 4):
        yield Row(f"t={t}, s=1, T=10^5: T^2 (chi - sum), in the limit 1", 1, 1e5 * remainder(t, 100_000, 1), "==", 1e-3)
        for s in (2, 3, 4):
            slope = torch.tensor([remainder(t, T - t, s) for T in decades], dtype=torch.float64)
            for _ in range(s - 2):
                slope = slope.diff() / math.log(10)
            yield Row(
                f"t={t}, s={s}: difference {s - 2} of g in ln T, in the limit s/t", s / t, float(slope[-1]), "==", 0.01
            )
