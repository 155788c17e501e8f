"""How smooth the cost of a recurrent network is (Ribeiro et al. 2019, Theorem 1 and appendix C).

The network is x_{t+1} = f(x_t, u_t; theta), y_t = g(x_t, u_t; theta), the cost V = 1/N sum_{t=1}^N l(y_t, target_t).
Sequences over t are tensors whose entry t belongs to step t, from 0 on, in float64; what overflows is infinite.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from mnemoscope.errors import MnemoscopeError
from mnemoscope.theory.smoothness._losses import LossProperties
from mnemoscope.theory.stability._constants import SystemConstants


@dataclass(frozen=True)
class JointConstants:
    """Lipschitz constants of f, g and their Jacobians, jointly in (x, theta), on a set that trajectories keep to."""

    L_f: float
    L_g: float
    L_f_prime: float = 0.0
    L_g_prime: float = 0.0


@dataclass(frozen=True)
class Regime:
    """How Theorem 1's constants grow with the length N (eqs 4 and 5)."""

    name: Literal["constant", "polynomial", "exponential"]
    cost: str  # of L_V
    gradient: str  # of L'_V


def joint_constants(system: SystemConstants, L_g: float, L_g_prime: float = 0.0, unit: float = 1.0) -> JointConstants:
    """L_f and L'_f in (x, theta / unit) of a system whose constants in the state and in the weights are known.

    L_f is joint: it is at least L_w, so a map that contracts in x may have L_f > 1. Measuring theta in a small `unit`
    brings L_f = sqrt(lambda^2 + (unit L_w)^2) below 1 for every contractive map, and Theorem 1 then gives its O(1).
    """
    if system.norm != "l2":
        raise MnemoscopeError(f"joint constants need a system in the Euclidean norm; got {system.norm!r}")
    bend = [[system.beta_hh, unit * system.beta_hw], [unit * system.beta_wh, unit**2 * system.beta_ww]]
    L_f_prime = float(torch.linalg.matrix_norm(torch.tensor(bend, dtype=torch.float64), ord=2))
    return JointConstants(math.hypot(system.lam, unit * system.L_w), L_g, L_f_prime, L_g_prime)


def contractive_unit(system: SystemConstants, L_f: float | None = None) -> float:
    """The unit of theta in which a contractive map has the given joint L_f < 1 (default: half way from lambda to 1)."""
    L_f = (1 + system.lam) / 2 if L_f is None else L_f
    if not system.lam < L_f < 1:
        raise MnemoscopeError(f"L_f must lie between lambda = {system.lam:.6g} and 1; got {L_f:.6g}")
    return math.sqrt(L_f**2 - system.lam**2) / system.L_w


def regime(L_f: float) -> Regime:
    """Which of Theorem 1's three cases L_f falls into."""
    if L_f > 1:
        return Regime("exponential", "L_f^(2N)", "L_f^(3N)")
    return Regime("constant", "1", "1") if L_f < 1 else Regime("polynomial", "N", "N^3")


def amplification(L_f: float, N: int) -> Tensor:
    """S(0), ..., S(N) (eq. 19): S(t)^2 = sum_{l=0}^t L_f^(2l), how far outputs go per unit of (theta, x_0)."""
    return _powers(L_f**2, N).cumsum(0).sqrt()


def output_bound(joint: JointConstants, N: int, distance: float, reference: float = 0.0) -> Tensor:
    """M(0), ..., M(N): ||y_t|| <= reference + L_g S(t) distance (after eq. 18).

    `distance` is that of (theta, x_0) from a point whose outputs are at most `reference`; from the origin it is
    ||(theta, x_0)|| and reference is 0, where f(0, u; 0) = 0 and g(0, u; 0) = 0 (footnote 5).
    """
    return reference + joint.L_g * amplification(joint.L_f, N) * distance


def cost_lipschitz(joint: JointConstants, loss: LossProperties, target: float, outputs: Tensor) -> float:
    """L_V = L_g/N sum_{t=1}^N (K0 + K1 L_y + K2 M(t)) S(t), for targets of norm at most L_y = `target`.

    `outputs` is M(0), ..., M(N), from `output_bound` or any other bound of ||y_t||.
    """
    S = amplification(joint.L_f, len(outputs) - 1)
    return float(joint.L_g * (loss.steepness(target, outputs) * S)[1:].mean())


def gradient_lipschitz(joint: JointConstants, loss: LossProperties, target: float, outputs: Tensor) -> float:
    """L'_V = 1/N sum_t (K3 L_y L_J(t) + L_Jy(t)), the Lipschitz constant of the gradient in theta (C.3, corrected).

    L_J(t) = sum_{l<t} P(t, l) + L'_g S(t) bounds the change of J_t, and L_Jy(t) = sum_{l<t} Q(t, l) + T(t) S(t) that of
    J_t^T Psi(y_t).
    """
    N = len(outputs) - 1
    S = amplification(joint.L_f, N)
    T = _tail(joint, loss, outputs)
    L_J = P(joint, N).sum(1) + joint.L_g_prime * S
    L_Jy = Q(joint, loss, outputs).sum(1) + T * S
    return float((loss.K3 * target * L_J + L_Jy)[1:].mean())


def P(joint: JointConstants, N: int) -> Tensor:
    """P(t, l) for 0 <= l < t <= N, zero elsewhere: (N + 1, N + 1). The change of C_t A_{t-1} ... A_{l+1} B_l.

    L_f^(t-l-1) (L_g L'_f sum_{j=l}^{t-1} S(j) + L_f L'_g S(t)). The text starts at l = 1 and ends at t, off by one.
    """
    return _path_changes(joint, amplification(joint.L_f, N), torch.ones(N + 1, dtype=torch.float64), joint.L_g_prime)


def Q(joint: JointConstants, loss: LossProperties, outputs: Tensor) -> Tensor:
    """Q(t, l), the same for the product with Psi(y_t): (N + 1, N + 1).

    L_f^(t-l-1) (|Psi|(t) L_g L'_f sum_{j=l}^{t-1} S(j) + L_f T(t) S(t)). The text has K4 M(t) for |Psi|(t).
    """
    S = amplification(joint.L_f, len(outputs) - 1)
    return _path_changes(joint, S, loss.psi(outputs), _tail(joint, loss, outputs))


def _tail(joint: JointConstants, loss: LossProperties, outputs: Tensor) -> Tensor:
    """T(t) = |Psi|(t) L'_g + K4 L_g^2."""
    return loss.psi(outputs) * joint.L_g_prime + loss.K4 * joint.L_g**2


def _path_changes(joint: JointConstants, S: Tensor, scale: Tensor, last: Tensor | float) -> Tensor:
    """L_f^(t-l-1) (scale(t) L_g L'_f sum_{j=l}^{t-1} S(j) + L_f last(t) S(t)) for l < t."""
    t = torch.arange(len(S))
    before = torch.cat([S.new_zeros(1), S.cumsum(0)])[:-1]  # sum of S(j) over j < t
    between = (before[:, None] - before[None, :]).nan_to_num(nan=math.inf, posinf=math.inf)
    inner = scale[:, None] * joint.L_g * joint.L_f_prime * between
    power = _powers(joint.L_f, len(S))[(t[:, None] - t[None, :] - 1).clamp(min=0)]
    value = power * (inner + joint.L_f * (last * S)[:, None])
    return torch.where(t[:, None] > t[None, :], value, 0.0)


def _powers(base: float, most: int) -> Tensor:
    """1, base, ..., base^most."""
    return torch.tensor(base, dtype=torch.float64) ** torch.arange(most + 1)
