"""Sparse attention: each step attends few states, equally (Kerg et al. 2020, A.4). Steps are counted from 0.

With J = V and X = Y = 0, ds_{t+k}/dh_t = sum_s V^s chi_{0:k}(s) = p_k(V) for *any* attention weights alpha; the paper
takes alpha_{i,t} = 1/kappa_t on a set A_t of kappa_t <= kappa states.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from mnemoscope.errors import MnemoscopeError
from mnemoscope.theory._statement import PAPERS, Row, statement
from mnemoscope.theory.attention._net import random_net, relative_error_row, standard_normal
from mnemoscope.theory.attention._paths import by_hops, total_derivatives


def uniform_weights(pattern: Tensor) -> Tensor:
    """alpha_{i,t} = 1/kappa_t on the attended states A_t: booleans (T, T) at [t, i] -> weights (T, T) (Remark 18)."""
    _check_causal(pattern)
    return pattern.double() / pattern.sum(1, keepdim=True).clamp(min=1)


def attention_pattern(weight: Tensor, threshold: float = 0.0) -> Tensor:
    """The pattern of an attention map: which h_i a step gives more than `threshold`, (T, T) booleans."""
    return weight > threshold


def sparsity(pattern: Tensor) -> int:
    """kappa: the most states that any step attends."""
    return int(pattern.sum(1).max())


def effective_sparsity(weight: Tensor) -> Tensor:
    """1/sum_i alpha_{i,t}^2 for every step, (T,): kappa_t itself where attention is uniform over kappa_t states."""
    return 1 / (weight**2).sum(1)


def path_weights(weight: Tensor, t: int) -> tuple[Tensor, Tensor]:
    """The scalars in E_i = e_i I and F_{i,j} = f_{i,j} V of paths from h_t (eqs 276-277, for any weights).

    Args:
        weight: alpha_{i,t} at [t, i], (T, T), causal.

    Returns:
        e (K + 1,) and f (K + 1, K + 1), K = T - 1 - t, zero for j >= i.
    """
    _check_causal(weight)
    e = weight[t:, t].clone()
    e[0] += 1
    f = weight.new_zeros(2 * e.shape)
    f[1:, :-1] = weight[t + 1 :, t + 1 :]  # F_{i+1,j}: does s_{t+i+1} attend h_{t+j+1}?
    return e, f + torch.diag_embed(torch.ones_like(e[1:]), -1)


def chi(weight: Tensor, t: int) -> Tensor:
    """chi_{0:k}(s) at [k, s] for any attention weights (eqs 279-280): (K + 1, K + 1), K = T - 1 - t."""
    e, f = path_weights(weight, t)
    return by_hops(e[:, None, None], f[..., None, None])[..., 0, 0]


def gain(weight: Tensor, t: int, eigenvalue: complex) -> Tensor:
    """p_k(lambda) = sum_s lambda^s chi_{0:k}(s) for every k (eq. 283), without the powers: (K + 1,), complex."""
    e, f = (part.to(torch.complex128) for part in path_weights(weight, t))
    return total_derivatives(e[:, None, None], eigenvalue * f[..., None, None])[..., 0, 0]


def dependency_depth(pattern: Tensor, t: int) -> Tensor:
    """d_k, the fewest hops on a path from h_t to s_{t+k}, for every k: (K + 1,), whole numbers.

    0 where step t + k attends h_t itself; at most k, the recurrence alone. It is the degree of the lowest term of p_k
    (eq. 298).
    """
    _check_causal(pattern)
    depth = torch.zeros(len(pattern) - t, dtype=torch.long, device=pattern.device)
    for k in range(1, len(depth)):
        if not pattern[t + k, t]:
            reached = pattern[t + k, t + 1 : t + k + 1].clone()  # s_{t+k} attends h_{t+j+1}, made from s_{t+j}
            reached[-1] = True  # the recurrence: s_{t+k-1} makes h_{t+k}
            depth[k] = 1 + depth[:k][reached].min()
    return depth


def depth_bound(eigenvalue: float, kappa: int, depth: int) -> float:
    """lambda^d / kappa^(d+1) <= ||ds_{t+k}/dh_t|| for V with the positive real eigenvalue lambda (Theorem 2, eq. 291).

    The path of d hops has d factors F and one E, each at least 1/kappa, and all other paths add to it. Theorem 2 hides
    the factor lambda^d/kappa in Omega(1/kappa^d). Holds for V that is not normal, too (Remark 17).
    """
    if not (isinstance(eigenvalue, float | int) and eigenvalue > 0):
        raise MnemoscopeError(f"the bound needs a positive real eigenvalue; got {eigenvalue}")
    if kappa < 1 or depth < 0:
        raise MnemoscopeError(f"kappa must be at least 1 and the depth at least 0; got kappa={kappa}, depth={depth}")
    return eigenvalue**depth / kappa ** (depth + 1)


def chain_gain(eigenvalue: complex, depth: int, length: int) -> complex:
    """lambda^d (1 - lambda^(c-d+1))/(1 - lambda), eq. 296: p where kappa = 1 and the last c + 1 states have depth d.

    It leaves out what is of order lambda^(c+1); |lambda| < 1.
    """
    if not (abs(eigenvalue) < 1 and 0 <= depth <= length):
        raise MnemoscopeError(f"eq. 296 needs |lambda| < 1 and 0 <= d <= c; got {eigenvalue}, d={depth}, c={length}")
    return eigenvalue**depth * (1 - eigenvalue ** (length - depth + 1)) / (1 - eigenvalue)


def chain_pattern(depth: int, length: int) -> Tensor:
    """Attention of one state a step, under which the last `length` + 1 macro-states have depth `depth` from h_1.

    h_1 is attended by one step only, the state that this step makes by one step only, and so on, far apart; the last
    steps all attend the state at the end of that chain. Every other step attends h_0, which h_1 does not influence.
    """
    relays = [1 + i * (length + 1) for i in range(depth + 1)]  # the first is h_1 itself
    steps = relays[-1] + length + 1 + (depth > 0)
    pattern = torch.zeros(steps, steps, dtype=torch.bool)
    attended = 1
    for relay in relays[1:]:
        pattern[relay, attended] = True
        attended = relay + 1
    pattern[attended + 1 :, attended] = True
    pattern[~pattern.any(1), 0] = True
    return pattern


def random_pattern(steps: int, kappa: int, seed: int) -> Tensor:
    """Every step attends min(kappa, as many as there are) states, drawn at random: (T, T) booleans."""
    draws = torch.rand(steps, steps, generator=torch.Generator().manual_seed(seed)).tril()
    return torch.zeros(steps, steps).scatter(1, draws.topk(kappa, 1).indices, 1).tril().bool()


def _check_causal(attention: Tensor) -> None:
    if attention.dim() != 2 or attention.shape[0] != attention.shape[1]:
        raise MnemoscopeError(f"attention must be (T, T), steps by attended states; got {list(attention.shape)}")
    if attention.triu(1).any():
        raise MnemoscopeError("attention must be causal: a step attends states made at or before it")


@statement(
    "kerg-remark-19",
    paper=PAPERS["attention"],
    where="Remark 19, eqs 276-280",
    status="holds",
    claim="for a linear net with equal weights on the attended states, ds_{t+k}/dh_t = sum_s V^s chi_{0:k}(s)",
)
def remark_19() -> Iterator[Row]:
    x = standard_normal(14, 3, seed=0)
    silent = torch.zeros(6, dtype=torch.float64)
    for kappa in (1, 3, 14):
        pattern = random_pattern(14, kappa, seed=kappa)
        net = random_net(6, 3, seed=kappa, phi=torch.clone, v=silent, attended=pattern)
        powers = torch.stack([torch.linalg.matrix_power(net.V, s) for s in range(12)])
        computed = torch.einsum("ks,sij->kij", chi(uniform_weights(pattern), 2), powers)
        yield relative_error_row(f"linear net of 14 steps, kappa={kappa}", computed, net.differentiated(x, 2)[1])


@statement(
    "kerg-remark-20",
    paper=PAPERS["attention"],
    where="Remark 20, eqs 282-284",
    status="holds",
    claim="for normal V, ||ds_{t+k}/dh_t||_F^2 = sum_i |p_{0:k}(lambda_i)|^2",
)
def remark_20() -> Iterator[Row]:
    for kappa in (1, 4):
        weight = uniform_weights(random_pattern(40, kappa, seed=kappa))
        V = 0.9 * torch.linalg.qr(standard_normal(6, 6, seed=kappa)).Q  # orthogonal, hence normal
        powers = torch.stack([torch.linalg.matrix_power(V, s) for s in range(40)])
        measured = torch.einsum("s,sij->ij", chi(weight, 0)[-1], powers).norm()
        parts = [gain(weight, 0, value)[-1].abs() ** 2 for value in torch.linalg.eigvals(V).tolist()]
        yield Row(f"0.9 times a random rotation, kappa={kappa}, T=40", float(sum(parts)) ** 0.5, float(measured), "==")


@statement(
    "kerg-theorem-2",
    paper=PAPERS["attention"],
    where="Theorem 2, eq. 290",
    status="holds",
    claim="||ds_{t+k}/dh_t|| >= lambda^d/kappa^(d+1) for normal V with a positive real eigenvalue lambda and "
    "dependency depth d",
)
def theorem_2() -> Iterator[Row]:
    for kappa in (1, 2, 5):
        for eigenvalue in (0.05, 0.5, 0.95):
            pattern = random_pattern(60, kappa, seed=kappa)
            depth = dependency_depth(pattern, 1)
            p = gain(uniform_weights(pattern), 1, eigenvalue).real
            bounds = torch.tensor([depth_bound(eigenvalue, kappa, d) for d in depth.tolist()], dtype=torch.float64)
            k = int((p / bounds).argmin())  # the pair for which the bound is tightest
            yield Row(f"kappa={kappa}, lambda={eigenvalue}: k={k}, d={depth[k]}", float(bounds[k]), float(p[k]), ">=")

    # A single path of skip connections and a small lambda: s_10 reads h_2, s_20 reads h_11, s_29 reads h_21.
    pattern = torch.zeros(30, 30, dtype=torch.bool)
    pattern[:, 0] = True
    pattern[1:, 1] = True  # two old states that h_2 does not influence
    for step, attended in ((10, 2), (20, 11), (29, 21)):
        pattern[step, 1] = False
        pattern[step, attended] = True
    bound = depth_bound(1e-4, 2, int(dependency_depth(pattern, 2)[-1]))
    reached = float(gain(uniform_weights(pattern), 2, 1e-4)[-1].real)
    yield Row("kappa=2, lambda=1e-4, one path of three skip connections", bound, reached, "==", tolerance=1e-3)


@statement(
    "kerg-remark-21",
    paper=PAPERS["attention"],
    where="Remark 21, eqs 296-298",
    status="holds",
    claim="kappa = 1 and depth d in the last c + 1 states: p = lambda^d (1 - lambda^(c-d+1))/(1 - lambda); d is p's "
    "lowest degree",
)
def remark_21() -> Iterator[Row]:
    for eigenvalue, depth in ((0.5, 0), (0.5, 3), (-0.6, 2), (0.3 + 0.5j, 1)):
        pattern = chain_pattern(depth, 60)
        p = complex(gain(uniform_weights(pattern), 1, eigenvalue)[-1])
        yield Row(f"lambda={eigenvalue}, d={depth}, c=60: |p|", abs(chain_gain(eigenvalue, depth, 60)), abs(p), "==")
    for kappa in (1, 3):
        pattern = random_pattern(40, kappa, seed=kappa)
        lowest = int((chi(uniform_weights(pattern), 0)[-1] > 0).nonzero()[0])
        yield Row(f"random pattern, kappa={kappa}: lowest degree", int(dependency_depth(pattern, 0)[-1]), lowest, "==")
