"""How gradients go with T under uniform attention (Kerg et al. 2020, A.3.4: Proposition 4, Theorem 1). t counts from 1.

For an eigenvalue lambda of V, ds_T/dh_t has the eigenvalue p_{T-t}(lambda) = sum_s lambda^s chi(s). It goes like
c T^(lambda/(1-lambda) - 1), not like T^(lambda-1): eq. 261 takes a binomial that depends on q out of the sum over q.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from mnemoscope.errors import MnemoscopeError
from mnemoscope.theory._statement import PAPERS, Row, statement
from mnemoscope.theory.attention._net import random_net, relative_error_row, standard_normal
from mnemoscope.theory.attention._uniform import check_start, uniform_chi


def uniform_gain(eigenvalue: complex, t: int, k: int) -> Tensor:
    """p_j(lambda) = sum_s lambda^s chi_{0:j}(s) for every j <= k in O(k): (k + 1,), complex.

    By p_j = (1 + lambda sum_{i<j} p_i)/(t + j) + lambda p_{j-1}, started by p_0 = 1 + 1/t.
    """
    check_start(t, k)
    p = 1 + 1 / complex(t)
    total = 0j
    values = [p]
    for j in range(1, k + 1):
        total += p
        p = (1 + eigenvalue * total) / (t + j) + eigenvalue * p
        values.append(p)
    return torch.tensor(values, dtype=torch.complex128)


def uniform_norm(eigenvalues: Sequence[complex], t: int, k: int) -> Tensor:
    """||ds_{t+j}/dh_t||_F for every j <= k, for normal V of these eigenvalues (eq. 284): (k + 1,).

    For V that is not normal it bounds the norm from below (Remark 17).
    """
    return torch.stack([uniform_gain(eigenvalue, t, k).abs() ** 2 for eigenvalue in eigenvalues]).sum(0).sqrt()


def growth_exponent(eigenvalue: complex) -> complex:
    """The power of T with which p_{T-t}(lambda) goes, lambda/(1 - lambda) - 1 (Proposition 4, corrected)."""
    _check_modulus(eigenvalue)
    return eigenvalue / (1 - eigenvalue) - 1


def paper_exponent(eigenvalue: complex) -> complex:
    """Proposition 4's exponent as the paper has it, lambda - 1 (eq. 248): wrong except at 0."""
    return eigenvalue - 1


def growth_constant(eigenvalue: complex, t: int) -> complex:
    """c in p_{T-t}(lambda) ~ c T^growth_exponent(lambda), |lambda| < 1.

    With Q_j = 1 + lambda sum_{i<=j} p_i the recursion of `uniform_gain` becomes a first-order differential equation for
    A(z) = sum_T Q_{T-t} z^T, whose homogeneous solution is (1 - z)^(-a) (1 - lambda z)^(a - 2), a = 1/(1 - lambda); for
    t = 1 that is A itself. The singularity at z = 1 gives

        c = (1 - lambda)^(a - 3) Gamma(t)/Gamma(t - 1 + a) 2F1(a - 1, t - 1; t - 1 + a; lambda)

    which is not zero for t = 1, nor was a zero found for other t.
    """
    import mpmath  # comes with torch

    _check_modulus(eigenvalue)
    lam = mpmath.mpc(eigenvalue)
    a = 1 / (1 - lam)
    ratio = mpmath.gammaprod([t], [t - 1 + a])
    return complex((1 - lam) ** (a - 3) * ratio * mpmath.hyp2f1(a - 1, t - 1, t - 1 + a, lam))


def keeps_inverse_rate(eigenvalue: complex) -> bool:
    """True if p(lambda) = Omega(1/T): Re lambda >= |lambda|^2 (Theorem 1, corrected).

    That is Re lambda/(1 - lambda) >= 0: the disc of diameter [0, 1]. Real lambda > 1/2 even makes gradients grow.
    """
    _check_modulus(eigenvalue)
    return eigenvalue.real >= eigenvalue.real**2 + eigenvalue.imag**2


def _check_modulus(eigenvalue: complex) -> None:
    if not abs(eigenvalue) < 1:
        raise MnemoscopeError(f"the eigenvalues must have modulus smaller than 1; got {eigenvalue}")


EIGENVALUES: tuple[complex, ...] = (-0.9, -0.5, 0.0, 0.3, 0.5, 0.7, 0.6 + 0.6j, 0.2 - 0.7j)


@statement(
    "kerg-remark-8",
    paper=PAPERS["attention"],
    where="Remarks 8-9, eqs 119-125",
    status="holds",
    claim="where scores do not depend on their arguments, X = Y = 0 exactly and ds_{t+k}/dh_t = sum_s V^s chi_{0:k}(s)",
)
def remark_8() -> Iterator[Row]:
    x = standard_normal(12, 3, seed=0)
    for t in (1, 5):
        net = random_net(6, 3, seed=t, phi=torch.clone, v=torch.zeros(6, dtype=torch.float64))  # linear, uniform
        powers = torch.stack([torch.linalg.matrix_power(net.V, s) for s in range(12 - t + 1)])
        computed = torch.einsum("ks,sij->kij", uniform_chi(t, 12 - t), powers)
        yield relative_error_row(f"linear net of 12 steps, t={t}", computed, net.differentiated(x, t - 1)[1])


@statement(
    "kerg-proposition-4",
    paper=PAPERS["attention"],
    where="Proposition 4, eq. 248",
    status="corrected",
    claim="the eigenvalue of ds_T/dh_t that belongs to lambda is asymptotically c_t(lambda) T^(lambda/(1-lambda) - 1)",
    correction="The paper has c/T + c' T^(lambda-1): from eq. 260 to 261 a binomial coefficient is treated as "
    "independent of q, and there is no separate c/T term. Measured at lambda = -0.5: T^-1.333, where the "
    "paper has T^-1 + T^-1.5.",
)
def proposition_4() -> Iterator[Row]:
    T = 100_000
    for eigenvalue in EIGENVALUES:
        p = uniform_gain(eigenvalue, 1, T - 1).abs()
        power = growth_exponent(eigenvalue).real
        paper = paper_exponent(eigenvalue).real
        if power:  # at 1/2 nothing is left to measure: p has a limit
            measured = math.log2(float(p[T - 1] / p[T // 2 - 1]))
            yield Row(f"lambda={eigenvalue}: exponent at T=10^5 (the paper's {paper:.3g})", power, measured, "==", 1e-3)
        for t in (1, 7):
            p_t = uniform_gain(eigenvalue, t, T - t)[-1].abs()
            expected = abs(growth_constant(eigenvalue, t)) * T**power
            yield Row(f"lambda={eigenvalue}, t={t}: |p| at T=10^5", expected, float(p_t), "==", 1e-3)


@statement(
    "kerg-theorem-1",
    paper=PAPERS["attention"],
    where="Theorem 1, eq. 264",
    status="corrected",
    claim="||ds_T/dh_t|| = Omega(1/T) if V is normal and has an eigenvalue with Re lambda >= |lambda|^2",
    correction="The paper asks no more than |lambda| < 1; V = -0.5 I has ||ds_T/dh_t|| ~ T^(-4/3), below any c/T. Real "
    "eigenvalues above 1/2 make the gradient grow with T, as T^((2 lambda - 1)/(1 - lambda)).",
)
def theorem_1() -> Iterator[Row]:
    T = 100_000
    for eigenvalues in ([-0.5, 0.0], [0.3, -0.9], [0.4 + 0.45j, 0.4 - 0.45j], [0.7, -0.5]):
        norms = uniform_norm(eigenvalues, 1, T - 1)
        early = 1000 * float(norms[999])
        late = T * float(norms[T - 1])
        case = f"eigenvalues {eigenvalues}: T ||ds_T/dh_1|| at T=10^5, against 0.99 of 10^3's"
        yield Row(case, 0.99 * early, late, ">=")
        yield Row(
            f"eigenvalues {eigenvalues}: some meet the condition", 1, any(map(keeps_inverse_rate, eigenvalues)), ">="
        )
    for eigenvalue in (-0.5, -0.9, 0.6 + 0.6j):
        yield Row(f"V={eigenvalue} I: the condition is not met", 0, keeps_inverse_rate(eigenvalue), "==")
        late = float(uniform_norm([eigenvalue], 1, T - 1)[-1])
        rate = growth_exponent(eigenvalue).real
        case = f"V={eigenvalue} I: ||ds_T/dh_1|| at T=10^5 is c T^{rate:.3f}"
        yield Row(case, abs(growth_constant(eigenvalue, 1)) * T**rate, late, "==", 1e-3)


@statement(
    "kerg-remark-17",
    paper=PAPERS["attention"],
    where="Remark 17, eq. 268",
    status="holds",
    claim="for V that is not normal the eigenvalues bound ||ds_T/dh_t||_F from below",
)
def remark_17() -> Iterator[Row]:
    for seed in (1, 2, 3):
        V = standard_normal(5, 5, seed=seed)
        V *= 0.8 / torch.linalg.eigvals(V).abs().max()
        powers = torch.stack([torch.linalg.matrix_power(V, s) for s in range(41)])
        measured = torch.einsum("s,sij->ij", uniform_chi(2, 40)[40], powers).norm()
        bound = uniform_norm(torch.linalg.eigvals(V).tolist(), 2, 40)[-1]
        yield Row(f"random 5 x 5 V, radius 0.8, t=2, T=42, draw {seed}", float(bound), float(measured), ">=")
    scales = torch.tensor([0.8, -0.3, 0.5], dtype=torch.float64)
    powers = torch.stack([scales**s for s in range(41)])
    measured = (uniform_chi(2, 40)[40] @ powers).norm()
    bound = uniform_norm(scales.tolist(), 2, 40)[-1]
    yield Row("diagonal V, which is normal: the norm itself", float(bound), float(measured), "==")
