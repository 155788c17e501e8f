"""Training a stable system and its truncation side by side (Miller & Hardt 2018, section 4 and appendix A.2).

Two runs of projected gradient descent, one through the whole sequence and one through the last k inputs, stay close;
here are Lemmas 2-4, Proposition 2 and Theorem 1 with every constant written out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from mnemoscope.errors import MnemoscopeError
from mnemoscope.theory._statement import PAPERS, Row, statement
from mnemoscope.theory.stability._constants import (
    SystemConstants,
    contraction_margin,
    rnn_constants,
    spectral_norm,
    state_gap,
)
from mnemoscope.theory.stability._instances import (
    bounded_inputs,
    descend,
    flatten,
    loss_gradient,
    perturbed,
    random_rnn,
    rnn_states,
)


@dataclass(frozen=True)
class LossConstants:
    """A loss p(h_T): its Lipschitz constant L_p and smoothness beta_p in the dual of the state's norm."""

    L_p: float
    beta_p: float


def squared_loss(readout: Tensor, target: Tensor, system: SystemConstants) -> LossConstants:
    """L_p and beta_p of p(h) = 1/2 ||C h - y||^2 over the reachable states; readout is C (m, n), target is y (m,).

    For a system in the Euclidean norm the gradient C^T (C h - y) is measured in the Euclidean norm, for one in the
    infinity norm in its dual, the l1 norm.
    """
    C = readout.detach().double()
    y = target.detach().double()
    if system.norm == "l2":
        norm = spectral_norm(C)
        return LossConstants(norm * (norm * system.state_bound + float(y.norm())), norm * norm)
    residual = C.abs().sum(1) * system.state_bound + y.abs()  # each output's largest error
    return LossConstants(float(C.abs().T.mv(residual).sum()), float((C.T @ C).abs().sum()))


def trajectory_gap(system: SystemConstants, distance: float, t: int | None = None) -> float:
    """Lemma 4: ||h_t(w) - h_t(w')|| <= L_w ||w - w'|| (1 - lambda^t) / (1 - lambda), or the paper's limit for all t."""
    return system.L_w * distance * (1 if t is None else 1 - system.lam**t) / contraction_margin(system)


def gradient_gap(system: SystemConstants, loss: LossConstants, k: int) -> float:
    """Lemma 2, corrected: a bound of ||grad p_T - grad p_T^k|| for k >= 1.

    The long-term part of the gradient and the loss's change fall like lambda^k, but dh_t/dw is taken at h_{t-1}, one
    step nearer to the cut than the text's proof says, so the short-term part falls like k lambda^(k-1).
    """
    gap = contraction_margin(system)
    lam = system.lam
    if k < 1:
        raise MnemoscopeError(f"a truncated model sees at least one input; got k = {k}")
    early = system.L_w * (loss.L_p + loss.beta_p * system.start_gap) / gap
    late = loss.L_p * system.start_gap * (system.beta_wh + system.L_w * system.beta_hh / gap)
    return lam**k * early + k * lam ** (k - 1) * late


def truncation_gamma(system: SystemConstants, loss: LossConstants) -> float:
    """Lemma 2's gamma, for its corrected form ||grad p_T - grad p_T^k|| <= gamma k lambda^(k-1)."""
    return gradient_gap(system, loss, 1)


def gradient_gap_as_printed(system: SystemConstants, loss: LossConstants, k: int) -> float:
    """gamma k lambda^k with the constants of the text's proof: one lambda too many, and false for small lambda."""
    gap = contraction_margin(system)
    early = system.L_w * (loss.L_p + loss.beta_p * system.state_bound) / gap
    late = loss.L_p * system.state_bound * (system.beta_wh + system.L_w * system.beta_hh / gap)
    return (early + late) * k * system.lam**k


def loss_smoothness(system: SystemConstants, loss: LossConstants) -> float:
    """Lemma 3: the Lipschitz constant of w -> grad_w p_T(w), of order (1 - lambda)^-3."""
    gap = contraction_margin(system)
    L_w = system.L_w
    return (
        loss.beta_p * L_w * L_w / gap**2
        + loss.L_p * L_w * (system.beta_wh + system.beta_hw) / gap**2
        + loss.L_p * system.beta_ww / gap
        + loss.L_p * L_w * L_w * system.beta_hh / gap**3
    )


def weight_gap(gap: float, alpha: float, smoothness: float, steps: int) -> float:
    """Proposition 2 by its own recursion: delta_i <= (1 + a beta/i) delta_{i-1} + a gap/i, after N steps of size a/i.

    `gap` bounds the gradients' difference (`gradient_gap`), `smoothness` is beta (`loss_smoothness`).
    """
    delta = 0.0
    for i in range(1, steps + 1):
        delta += alpha / i * (smoothness * delta + gap)
    return delta


def weight_gap_closed(gap: float, alpha: float, smoothness: float, steps: int) -> float:
    """Proposition 2, tightened: alpha gap N^(ab) min(N, 1 + 1/(ab)); the paper has N^(ab + 1), that is, always N."""
    return _exp(log_weight_gap(math.log(gap), alpha, smoothness, steps)) if gap else 0.0


def weight_gap_as_printed(gap: float, alpha: float, smoothness: float, steps: int) -> float:
    """Proposition 2 as printed, alpha gap N^(ab + 1); true, and never smaller than `weight_gap_closed`."""
    return _exp(math.log(alpha * gap) + (alpha * smoothness + 1) * math.log(steps)) if gap else 0.0


def _log(value: float) -> float:
    return math.log(value) if value else -math.inf


def _exp(exponent: float) -> float:
    return math.exp(exponent) if exponent < 709 else math.inf


def log_weight_gap(log_gap: float, alpha: float, smoothness: float, steps: int) -> float:
    """The logarithm of `weight_gap_closed`, for constants too large to exponentiate."""
    ab = alpha * smoothness
    series = min(float(steps), 1 + 1 / ab) if ab else float(steps)  # sum_i i^-(ab+1) <= 1 + 1/(ab)
    return math.log(alpha) + log_gap + ab * math.log(steps) + math.log(series)


def trained_prediction_gap(
    system: SystemConstants, loss: LossConstants, L_f: float, k: int, alpha: float, steps: int
) -> float:
    """Theorem 1: ||y_T - y_T^k|| of the two models, each trained for N steps, with an L_f-Lipschitz read-out.

    L_f (L_w delta_N / (1 - lambda) + lambda^k sup||h||); the text's last display loses the gamma in delta_N.
    """
    delta = weight_gap_closed(gradient_gap(system, loss, k), alpha, loss_smoothness(system, loss), steps)
    return L_f * (trajectory_gap(system, delta) + state_gap(system, k))


def training_context_length(
    system: SystemConstants, loss: LossConstants, eps: float, alpha: float, steps: int, L_f: float | None = None
) -> int:
    """The least k from which on Proposition 2 promises a weight gap of eps (with L_f: Theorem 1 a prediction gap).

    Computed in logarithms: N^(alpha beta) alone is beyond floating point for most systems, and k is about
    alpha beta ln N / ln(1/lambda).
    """
    contraction_margin(system)
    if min(eps, alpha, 1.0 if L_f is None else L_f) <= 0 or steps < 1:
        raise MnemoscopeError(f"eps, alpha, L_f and steps must be positive; got {eps}, {alpha}, {L_f}, {steps}")
    if not math.isfinite(loss_smoothness(system, loss)):
        raise MnemoscopeError("Proposition 2 needs a smooth system: no bound on how its Jacobians change is known")
    low = max(1, math.ceil(-1 / math.log(system.lam))) if system.lam else 1  # k lambda^(k-1) falls from here on
    high = low
    while not _is_met(system, loss, eps, alpha, steps, L_f, high):
        low = high
        high = 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if _is_met(system, loss, eps, alpha, steps, L_f, middle):
            high = middle
        else:
            low = middle
    return low if _is_met(system, loss, eps, alpha, steps, L_f, low) else high


def _is_met(
    system: SystemConstants, loss: LossConstants, eps: float, alpha: float, steps: int, L_f: float | None, k: int
) -> bool:
    """True if the promise holds at k; with L_f each of Theorem 1's two terms has eps/2."""
    # Lemma 2: gap = gamma k lambda^(k-1), in logarithms
    log_gap = _log(truncation_gamma(system, loss)) + math.log(k)
    if k > 1:
        log_gap += (k - 1) * _log(system.lam)
    # Proposition 2: the weights
    log_delta = log_weight_gap(log_gap, alpha, loss_smoothness(system, loss), steps)
    if L_f is None:
        return log_delta <= math.log(eps)
    # Theorem 1: the predictions, through the weights and through the shorter window
    log_moved = log_delta + _log(L_f * system.L_w / contraction_margin(system))
    return log_moved <= math.log(eps / 2) and L_f * state_gap(system, k) <= eps / 2


def _instance(
    lam: float, seed: int, nonlinearity: str
) -> tuple[Tensor, tuple[Tensor, ...], Tensor, Tensor, SystemConstants]:
    """Inputs, weights, read-out, target and constants of a random problem: n = 8, d = 3, T = 80, ||x|| = 1."""
    generator = torch.Generator().manual_seed(seed)
    readout = torch.randn(2, 8, generator=generator, dtype=torch.float64) / 3
    target = torch.randn(2, generator=generator, dtype=torch.float64)
    weights = random_rnn(8, 3, lam, seed)
    system = rnn_constants(*weights, input_bound=1.0, nonlinearity=nonlinearity)
    return bounded_inputs(80, 3, 1.0, seed), weights, readout, target, system


@statement(
    "miller-hardt-lemma-2",
    paper=PAPERS["stability"],
    where="Lemma 2, A.2.1",
    status="corrected",
    claim="truncation changes the gradient by at most gamma k lambda^(k-1)",
    correction="The text has an equality and k lambda^k. It is an inequality, and since dh_t/dw is taken at h_{t-1} "
    "the power is k - 1: at lambda = 0 and k = 1 the printed bound is 0 while the gradients differ.",
)
def lemma_2() -> Iterator[Row]:
    for nonlinearity in ("identity", "tanh"):
        for lam, k in ((0.3, 5), (0.75, 10), (0.75, 35)):
            x, weights, C, y, system = _instance(lam, k, nonlinearity)
            full, cut = (loss_gradient(x, weights, C, y, cut, nonlinearity) for cut in (None, k))
            bound = gradient_gap(system, squared_loss(C, y, system), k)
            yield Row(f"{nonlinearity}, lambda={lam}, k={k}", bound, float((full - cut).norm()))
    yield from _memoryless()


def _memoryless() -> Iterator[Row]:
    """h_t = 0 h_{t-1} + x_t with x = 1: the state forgets at once, its derivative in that zero does not."""
    weights = (torch.ones(1, 1), torch.zeros(1, 1))
    x = torch.ones(5, 1)
    C = torch.ones(1, 1)
    y = torch.zeros(1)
    system = rnn_constants(*weights, input_bound=1.0, nonlinearity="identity")
    loss = squared_loss(C, y, system)
    full, cut = (loss_gradient(x, weights, C, y, cut, "identity") for cut in (None, 1))
    moved = float((full - cut).norm())
    yield Row("lambda=0, k=1, scalar", gradient_gap(system, loss, 1), moved)
    printed = gradient_gap_as_printed(system, loss, 1)
    yield Row("lambda=0, k=1: more than the printed gamma k lambda^k", printed, moved, ">=")
    whole, seen = (_scalar_slope(0.75, T) for T in (400, 10))
    reached = gradient_gap(_scalar(0.75), LossConstants(1.0, 0.0), 10)
    yield Row("scalar, p=h_T, in a alone, k=10: the bound is reached", reached, whole - seen, "==")


@statement(
    "miller-hardt-lemma-3",
    paper=PAPERS["stability"],
    where="Lemma 3, A.2.2",
    status="holds",
    claim="the loss of a stable system is smooth: ||grad p_T(w) - grad p_T(w')|| <= beta ||w - w'||",
)
def lemma_3() -> Iterator[Row]:
    for nonlinearity in ("identity", "tanh"):
        for lam in (0.3, 0.75, 0.9):
            x, weights, C, y, system = _instance(lam, 3, nonlinearity)
            other = perturbed(weights, 0.05)
            here, there = (loss_gradient(x, w, C, y, None, nonlinearity) for w in (weights, other))
            distance = float((flatten(weights) - flatten(other)).norm())
            bound = loss_smoothness(system, squared_loss(C, y, system)) * distance
            yield Row(f"{nonlinearity}, lambda={lam}", bound, float((here - there).norm()))
    scalar = _scalar(0.75)
    near = 0.75 - 1e-5
    turned = abs(_scalar_slope(0.75) - _scalar_slope(near))
    bound = loss_smoothness(scalar, LossConstants(1.0, 0.0)) * 1e-5
    yield Row("scalar, p=h_T, in a alone: the bound is reached", bound, turned, "==", tolerance=1e-3)


def _scalar(lam: float) -> SystemConstants:
    """The constants, in a alone, of h_t = a h_{t-1} + x_t with |a| <= lam and |x| <= 1: nothing is lost in any norm."""
    state_bound = 1 / (1 - lam)
    return SystemConstants(lam, 1.0, state_bound, 0.0, 1.0, 1.0, 0.0, state_bound=state_bound)


def _scalar_slope(a: float, T: int = 400) -> float:
    """dh_T/da for x = 1, where h_T = sum_{i<T} a^i."""
    return sum(i * a ** (i - 1) for i in range(1, T))


@statement(
    "miller-hardt-lemma-4",
    paper=PAPERS["stability"],
    where="Lemma 4",
    status="holds",
    claim="close weights give close trajectories: ||h_t(w) - h_t(w')|| <= L_w ||w - w'|| / (1 - lambda)",
)
def lemma_4() -> Iterator[Row]:
    for nonlinearity in ("identity", "tanh"):
        for lam in (0.3, 0.75, 0.9):
            x, weights, *_, system = _instance(lam, 4, nonlinearity)
            other = perturbed(weights, 0.05)
            gaps = (rnn_states(x, weights, nonlinearity) - rnn_states(x, other, nonlinearity)).norm(dim=1)
            distance = float((flatten(weights) - flatten(other)).norm())
            yield Row(f"{nonlinearity}, lambda={lam}", trajectory_gap(system, distance), float(gaps.max()))
    moved = 1 / (1 - 0.75) - 1 / (1 - 0.75 + 1e-5)
    bound = trajectory_gap(_scalar(0.75), 1e-5)
    yield Row("scalar, in a alone: the bound is reached", bound, moved, "==", tolerance=1e-3)


@statement(
    "miller-hardt-proposition-2",
    paper=PAPERS["stability"],
    where="Proposition 2, A.2.3",
    status="corrected",
    claim="after N steps of size a/i the weights of the two runs differ by at most a gap N^(ab) (1 + 1/(ab))",
    correction="The gap is Lemma 2's corrected one, gamma k lambda^(k-1). The last step of the text bounds "
    "sum i^-(ab+1) by N; it is at most 1 + 1/(ab), which takes a power of N off whenever ab > 1/(N-1).",
)
def proposition_2() -> Iterator[Row]:
    for nonlinearity, alpha in (("identity", 2e-3), ("tanh", 2e-4)):
        x, weights, C, y, system = _instance(0.5, 5, nonlinearity)
        k = 12
        steps = 40
        loss = squared_loss(C, y, system)
        full, cut = (descend(x, weights, C, y, cut, alpha, steps, nonlinearity) for cut in (None, k))
        moved = float((flatten(full) - flatten(cut)).norm())
        gap = gradient_gap(system, loss, k)
        b = loss_smoothness(system, loss)
        ab = f"ab={alpha * b:.2g}"
        yield Row(f"{nonlinearity}, k={k}, N={steps}, {ab}: recursion", weight_gap(gap, alpha, b, steps), moved)
        closed = weight_gap_closed(gap, alpha, b, steps)
        yield Row(f"{nonlinearity}, {ab}: tightened form over recursion", closed, weight_gap(gap, alpha, b, steps))
        printed = weight_gap_as_printed(gap, alpha, b, steps)
        yield Row(f"{nonlinearity}, {ab}: printed form over tightened", printed, closed)
    for steps in (1, 40):
        apart = _concave_descents(gap=0.1, alpha=0.5, smoothness=3.0, steps=steps)
        recursion = weight_gap(0.1, 0.5, 3.0, steps)
        yield Row(f"descents on -3 w^2/2, N={steps}: the recursion is reached", recursion, apart, "==")
    once = weight_gap_closed(0.1, 0.5, 3.0, 1)
    yield Row("descents on -3 w^2/2, N=1: the tightened form is reached", once, 0.5 * 0.1, "==")


def _concave_descents(gap: float, alpha: float, smoothness: float, steps: int) -> float:
    """How far two descents on -smoothness w^2/2 part from w = 1, one with gradients off by `gap`, steps of alpha/i."""
    w = off = 1.0
    for i in range(1, steps + 1):
        w += alpha / i * smoothness * w
        off += alpha / i * (smoothness * off + gap)
    return off - w


@statement(
    "miller-hardt-theorem-1",
    paper=PAPERS["stability"],
    where="Theorem 1, A.2.4",
    status="holds",
    claim="recurrent and truncated model, each trained for N steps, predict the same up to eps",
    remark="The last display of the proof loses gamma; with it the two terms are L_f L_w delta_N / (1 - lambda) "
    "and L_f lambda^k sup||h||, and k grows like alpha beta ln N / ln(1/lambda).",
)
def theorem_1() -> Iterator[Row]:
    for nonlinearity, alpha in (("identity", 2e-3), ("tanh", 2e-4)):
        x, weights, C, y, system = _instance(0.5, 6, nonlinearity)
        steps = 40
        loss = squared_loss(C, y, system)
        L_f = spectral_norm(C)
        k = training_context_length(system, loss, 1e-2, alpha, steps, L_f)
        full, cut = (descend(x, weights, C, y, cut, alpha, steps, nonlinearity) for cut in (None, k))
        h = rnn_states(x, full, nonlinearity)[-1]
        h_k = rnn_states(x[-k:], cut, nonlinearity)[-1]
        bound = trained_prediction_gap(system, loss, L_f, k, alpha, steps)
        yield Row(f"{nonlinearity}, eps=0.01: k={k}, N={steps}", bound, float((C @ (h - h_k)).norm()))
        yield Row(f"{nonlinearity}, eps=0.01: the promise", 1e-2, bound)
