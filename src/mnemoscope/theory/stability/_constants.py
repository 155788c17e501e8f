"""How fast a stable recurrence forgets, from its weights alone (Miller & Hardt 2018, sections 3 and 6, appendix A).

A map phi_w(h, x) is stable when it is lambda-contractive in h with lambda < 1. All the constants that the lemmas use
are gathered in `SystemConstants`; they hold for every w' of the convex set Omega that w spans: for an RNN, weights and
biases whose norms are each at most those of w.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from mnemoscope.errors import MnemoscopeError
from mnemoscope.theory._statement import PAPERS, Row, statement
from mnemoscope.theory.stability._instances import bounded_inputs, random_rnn, rnn_states


@dataclass(frozen=True)
class Nonlinearity:
    """A pointwise function: its Lipschitz constant, that of its derivative, its largest value, its value at zero."""

    lipschitz: float
    smoothness: float
    bound: float
    at_zero: float = 0.0


NONLINEARITIES = {
    "identity": Nonlinearity(1.0, 0.0, math.inf),
    "tanh": Nonlinearity(1.0, 4 / (3 * math.sqrt(3)), 1.0),  # |tanh''| is largest where tanh^2 = 1/3
    "sigmoid": Nonlinearity(1 / 4, 1 / (6 * math.sqrt(3)), 1.0, 0.5),
    "relu": Nonlinearity(1.0, math.inf, math.inf),  # not smooth: inference is covered, training is not
}


@dataclass(frozen=True)
class SystemConstants:
    """What the lemmas ask of a system (sections 2-4 and the list in A.2).

    Weights are measured by the Euclidean norm of the flat vector of all parameters, Jacobians by the induced norms.

    Attributes:
        lam: lambda, the Lipschitz constant of a step in the state; below 1 the system is stable.
        L_x: that of a step in the input.
        L_w: that of a step in the weights.
        beta_ww: the Lipschitz constant in the weights of the Jacobian by the weights.
        beta_wh: that in the state of the Jacobian by the weights.
        beta_hw: that in the weights of the Jacobian by the state.
        beta_hh: that in the state of the Jacobian by the state.
        state_bound: a bound of every ||h_t||, h_0 included. From h_0 = 0 and without biases it is at most the paper's
            L_x B_x / (1 - lambda).
        norm: the norm of the state in which they hold, Euclidean ("l2") or infinity ("linf").
        start: a bound of ||h_0||, which the paper sets to 0.
    """

    lam: float
    L_x: float
    L_w: float
    beta_ww: float
    beta_wh: float
    beta_hw: float
    beta_hh: float
    state_bound: float
    norm: Literal["l2", "linf"] = "l2"
    start: float = 0.0

    @property
    def stable(self) -> bool:
        """True if lambda is below 1."""
        return self.lam < 1

    @property
    def start_gap(self) -> float:
        """A bound of ||h_t - h_0||: what a truncated model, which starts at h_0, is off by before its first input."""
        return self.state_bound + self.start


def contraction_margin(system: SystemConstants) -> float:
    """Return 1 - lambda, after checking that it is positive, which every lemma assumes."""
    if not system.stable:
        raise MnemoscopeError(f"the lemma needs a contractive system, lambda < 1; got lambda = {system.lam:.6g}")
    return 1 - system.lam


def rnn_constants(
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias_ih: Tensor | None = None,
    bias_hh: Tensor | None = None,
    *,
    input_bound: float,
    nonlinearity: str | Nonlinearity = "tanh",
    start: float = 0.0,
) -> SystemConstants:
    """The constants of h_t = rho(V h_{t-1} + U x_t + b) in the Euclidean norm (6.2, A.3.1, tightened).

    The text takes tanh' to be 1-Lipschitz in one place and 2-Lipschitz in another; it is 4/(3 sqrt 3)-Lipschitz.

    Args:
        weight_ih: U (n, d).
        weight_hh: V (n, n).
        bias_ih: (n,), or None.
        bias_hh: (n,), or None; b is the sum of both.
        input_bound: B_x, at least every ||x_t||_2.
        nonlinearity: rho, by a name in `NONLINEARITIES` or by its constants.
        start: at least ||h_0||_2.

    Examples:
        >>> from mnemoscope.theory import context_length, rnn_constants
        >>> system = rnn_constants(torch.randn(8, 3), 0.5 * torch.eye(8), input_bound=1.0)
        >>> system.lam
        0.5
        >>> steps = context_length(system, eps=0.01)  # that a truncated model must see
    """
    n = weight_hh.shape[-1]
    if weight_hh.shape != (n, n) or weight_ih.dim() != 2 or len(weight_ih) != n:
        shapes = [tuple(weight_ih.shape), tuple(weight_hh.shape)]
        raise MnemoscopeError(f"an RNN's weight_ih and weight_hh are (n, d) and (n, n); got {shapes}")
    check_input_bound(input_bound)
    rho = _nonlinearity(nonlinearity)
    biases = [b.detach().cpu().double() for b in (bias_ih, bias_hh) if b is not None]
    offset = sum(float(b.norm()) for b in biases)  # not ||b_ih + b_hh||: elsewhere in Omega they need not cancel
    V = spectral_norm(weight_hh)
    U = spectral_norm(weight_ih)
    lam = rho.lipschitz * V
    L_x = rho.lipschitz * U
    rest = rho.at_zero * math.sqrt(len(weight_hh)) + rho.lipschitz * offset  # >= ||phi(0, 0)||
    state_bound = state_norm_bound(lam, _product(L_x, input_bound) + rest, rho.bound * math.sqrt(len(weight_hh)), start)
    # every row of weights multiplies (h, x, 1, 1), whose norm is at most this
    read = math.hypot(state_bound, input_bound, *(1.0 for _ in biases))  # squares of large norms would overflow
    mixed = _product(rho.smoothness, V, read) + rho.lipschitz
    return SystemConstants(
        lam=lam,
        L_x=L_x,
        L_w=rho.lipschitz * read,
        beta_ww=_product(rho.smoothness, read, read),
        beta_wh=mixed,
        beta_hw=mixed,
        beta_hh=_product(rho.smoothness, V, V),
        state_bound=state_bound,
        start=start,
    )


def linear_constants(
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias_ih: Tensor | None = None,
    bias_hh: Tensor | None = None,
    *,
    input_bound: float,
) -> SystemConstants:
    """The constants of a linear system h_t = V h_{t-1} + U x_t + b (6.1): smooth, with beta_hh = beta_ww = 0.

    The arguments are `rnn_constants`'.
    """
    return rnn_constants(weight_ih, weight_hh, bias_ih, bias_hh, input_bound=input_bound, nonlinearity="identity")


def state_norm_bound(lam: float, drive: float, bound: float = math.inf, start: float = 0.0) -> float:
    """The largest norm of a state, ||h_t|| <= lam ||h_{t-1}|| + drive (A.1), or `bound` if less; `start` is ||h_0||.

    A start beyond drive / (1 - lam) is never exceeded: lam start + drive <= start.
    """
    limit = drive / (1 - lam) if lam < 1 else math.inf
    return max(start, min(limit, bound))


def check_input_bound(input_bound: float) -> None:
    """Refuse a bound of a norm that is negative or NaN."""
    if not input_bound >= 0:
        raise MnemoscopeError(f"input_bound must be at least 0; got {input_bound}")


def spectral_norm(matrix: Tensor) -> float:
    """The largest singular value, in float64."""
    return float(torch.linalg.matrix_norm(matrix.detach().cpu().double(), ord=2))


def state_gap(system: SystemConstants, k: int) -> float:
    """Lemma 1: ||h_t - h_t^k|| <= lambda^k sup ||h||, with a truncated model that sees k inputs, x_{t-k+1} to x_t.

    From another start than 0, sup ||h|| + ||h_0|| takes the place of sup ||h||.
    """
    contraction_margin(system)
    return system.lam**k * system.start_gap


def prediction_gap(system: SystemConstants, L_f: float, k: int) -> float:
    """Proposition 1: ||y_t - y_t^k|| <= L_f lambda^k sup ||h|| for an L_f-Lipschitz read-out."""
    return L_f * state_gap(system, k)


def context_length(system: SystemConstants, eps: float, L_f: float = 1.0) -> int:
    """The least k for which Lemma 1 (with L_f: Proposition 1) promises a gap of at most eps.

    k >= ln(L_f sup||h|| / eps) / ln(1/lambda); the paper's O(.) hides the denominator.

    Args:
        system: a stable one, from `rnn_constants`, `linear_constants` or `lstm_constants`.
        eps: the largest gap that is allowed, above 0.
        L_f: the Lipschitz constant of the read-out.
    """
    contraction_margin(system)
    if not eps > 0:
        raise MnemoscopeError(f"eps must be positive; got {eps}")
    if L_f * system.start_gap <= eps:
        return 0
    if system.lam == 0:
        return 1
    if not math.isfinite(L_f * system.start_gap):
        raise MnemoscopeError(f"no window is known to be long enough: states are bounded by {system.state_bound:.6g}")
    ratio = math.log(L_f * system.start_gap) - math.log(eps)  # the quotient may overflow
    return math.ceil(ratio / -math.log(system.lam) - 1e-12)


def _nonlinearity(name: str | Nonlinearity) -> Nonlinearity:
    if isinstance(name, Nonlinearity):
        return name
    if name not in NONLINEARITIES:
        known = ", ".join(NONLINEARITIES)
        raise MnemoscopeError(f"nonlinearity must be one of {known}, or a Nonlinearity; got {name!r}")
    return NONLINEARITIES[name]


def _product(*factors: float) -> float:
    """A product in which zero wins over infinity: a system without recurrent weights has a constant Jacobian."""
    return 0.0 if 0.0 in factors else math.prod(factors)


@statement(
    "miller-hardt-lemma-1",
    paper=PAPERS["stability"],
    where="Lemma 1, eq. 3, A.1",
    status="holds",
    claim="a stable system forgets what lies k steps back: ||h_t - h_t^k|| <= lambda^k sup||h||",
    remark="The k that reaches eps is ln(L_x B_x / ((1 - lambda) eps)) / ln(1/lambda); the O(.) of the text hides "
    "a factor 1/ln(1/lambda), about 1/(1 - lambda). The truncated model sees k inputs, not k + 1.",
)
def lemma_1() -> Iterator[Row]:
    for nonlinearity in ("identity", "tanh"):
        for lam, k in ((0.5, 10), (0.75, 35), (0.95, 60)):
            weights = random_rnn(16, 4, lam, seed=k)
            x = bounded_inputs(200, 4, 2.0, seed=k)
            system = rnn_constants(*weights, input_bound=2.0, nonlinearity=nonlinearity)
            gap = rnn_states(x, weights, nonlinearity)[-1] - rnn_states(x[-k:], weights, nonlinearity)[-1]
            yield Row(f"{nonlinearity}, n=16, lambda={lam}, k={k}", state_gap(system, k), float(gap.norm()))
    scalar = linear_constants(torch.ones(1, 1), torch.tensor([[0.9]], dtype=torch.float64), input_bound=1.0)
    k = context_length(scalar, 1e-3)
    yield Row(f"scalar, lambda=0.9, constant input, eps=1e-3: k={k}", 1e-3, 0.9**k * 10 * (1 - 0.9**2000))
    yield Row(f"the same, k={k - 1}: not enough", 1e-3, 0.9 ** (k - 1) * 10 * (1 - 0.9**2000), relation=">=")
    yield Row("the same, k=10: the bound is reached", state_gap(scalar, 10), 0.9**10 * 10 * (1 - 0.9**2000), "==")
    hidden = math.ceil(math.log(10 / 1e-3))
    yield Row(f"the same, k={hidden} as the text without its O(.)", 1e-3, 0.9**hidden * 10, relation=">=")


@statement(
    "miller-hardt-proposition-1",
    paper=PAPERS["stability"],
    where="Proposition 1",
    status="holds",
    claim="predictions of the truncated model differ by at most L_f lambda^k sup||h||",
)
def proposition_1() -> Iterator[Row]:
    for seed, nonlinearity in enumerate(("identity", "tanh")):
        weights = random_rnn(16, 4, 0.75, seed)
        x = bounded_inputs(200, 4, 2.0, seed)
        readout = torch.randn(3, 16, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        system = rnn_constants(*weights, input_bound=2.0, nonlinearity=nonlinearity)
        k = context_length(system, 1e-3, spectral_norm(readout))
        gap = rnn_states(x, weights, nonlinearity)[-1] - rnn_states(x[-k:], weights, nonlinearity)[-1]
        bound = prediction_gap(system, spectral_norm(readout), k)
        yield Row(f"{nonlinearity}, eps=1e-3: k={k}", bound, float((readout @ gap).norm()))
        yield Row(f"{nonlinearity}, eps=1e-3: the promise", 1e-3, bound)
    scalar = linear_constants(torch.ones(1, 1), torch.tensor([[0.9]], dtype=torch.float64), input_bound=1.0)
    reached = 3 * 0.9**10 * 10  # the read-out 3 h of a scalar system under the constant input 1
    yield Row("scalar, lambda=0.9, k=10: the bound is reached", prediction_gap(scalar, 3.0, 10), reached, "==")


@statement(
    "miller-hardt-section-6",
    paper=PAPERS["stability"],
    where="6.1, 6.2, A.3.1",
    status="holds",
    claim="linear systems and tanh RNNs with ||V|| < 1 meet every assumption, with constants from ||V||, ||U|| and B_x",
    remark="tanh' is 4/(3 sqrt 3)-Lipschitz, that is 0.77; the text has 1 in 6.2 and 2 in A.3.1, which is true and "
    "larger than need be. With 0.77 the constants are reached by a single unit.",
)
def section_6() -> Iterator[Row]:
    one = torch.ones(1, 1, dtype=torch.float64)
    half = torch.full((1, 1), 0.5, dtype=torch.float64)
    linear = linear_constants(2 * one, half, input_bound=3.0)
    h = float(rnn_states(torch.full((80, 1), 3.0, dtype=torch.float64), (2 * one, half), "identity")[-1])
    yield Row("linear unit: sup|h|", linear.state_bound, h, "==")
    yield Row("linear unit: |dphi/d(V, U)|", linear.L_w, math.hypot(h, 3.0), "==")
    steepest = math.atanh(1 / math.sqrt(3))  # where tanh^2 = 1/3
    eps = torch.tensor([-1e-5, 1e-5], dtype=torch.float64)
    slope = half * (1 - torch.tanh(half * eps + steepest).square())  # dphi/dh around h = 0, U x = atanh(1/sqrt 3)
    bend = float(slope.diff().abs() / 2e-5)
    tanh = rnn_constants(one, half, input_bound=steepest)
    yield Row("tanh unit: |d2 phi/dh2|", tanh.beta_hh, bend, "==", tolerance=1e-6)
    yield Row("tanh unit: less than half of the printed 2 lambda^2", 0.25, bend)
