"""When an LSTM is stable, and how stable (Miller & Hardt 2018, section 6.3 and appendix A.3.2).

`weights` are torch's: weight_ih (4n, d), weight_hh (4n, n) and, where there are any, bias_ih and bias_hh (4n,), gates
in the order i, f, g, o; the paper's z is torch's g. All norms are infinity norms: of a matrix, the largest *row* sum of
moduli. `input_bound` bounds every entry of every input. The state is (c, h).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from mnemoscope.errors import MnemoscopeError
from mnemoscope.theory._statement import PAPERS, Row, statement
from mnemoscope.theory.stability._constants import check_input_bound
from mnemoscope.theory.stability._instances import bounded_inputs, lstm_states, lstm_step, random_lstm

Start: TypeAlias = tuple[Tensor, Tensor]
"""Bounds of |c_0| and |h_0|, each (n,): where the states begin; without it at zero."""


@dataclass(frozen=True)
class GateBounds:
    """The largest values that the gates i, f, o and the moduli |g|, |c|, |h| take on reachable states, each (n,)."""

    i: Tensor
    f: Tensor
    g: Tensor
    o: Tensor
    c: Tensor
    h: Tensor


@dataclass(frozen=True)
class Certificate:
    """How strongly an LSTM contracts on its reachable states; it is stable where one of the three factors is below 1.

    Attributes:
        forget: ||f||_inf, the largest value of a forget gate.
        cell: the bound of ||c||_inf.
        comparison: (2, 2), which bounds the moves of (||c||, ||h||).
        proposition_5: the factor of the paper's proof, the largest row sum of `comparison`.
        lam: the largest row sum of the entrywise comparison matrix, with each gate's own bound; at most
            `proposition_5`.
        rate: that of the same matrix in the best weighted infinity norm; at most `lam`.
    """

    forget: float
    cell: float
    comparison: Tensor
    proposition_5: float
    lam: float
    rate: float

    @property
    def stable(self) -> bool:
        """True if `rate`, the least of the three factors, is below 1."""
        return self.rate < 1


def forget_bound(*weights: Tensor | None, input_bound: float) -> tuple[float, float]:
    """Lemma 5 with biases: ||f||_inf <= sigmoid(||W_f|| + ||U_f|| B_x + ||b_f||), and ||c||_inf <= 1/(1 - ||f||_inf).

    Returns both bounds. The paper's LSTM has no biases; torch's has.
    """
    W, U, b = gates(*weights)
    check_input_bound(input_bound)
    a = float(_norm(W[1]) + _norm(U[1]) * input_bound + b[1].abs().max())
    return 1 / (1 + math.exp(-a)), 1 + math.exp(min(a, 700.0))  # 1/(1 - sigmoid(a)) = 1 + e^a


def satisfies_proposition_5(*weights: Tensor | None, input_bound: float) -> bool:
    """The four conditions: ||W_i||, ||W_o|| < 1 - ||f||, ||W_g|| <= (1 - ||f||)/4 and ||W_f|| < (1 - ||f||)^2."""
    w_i, w_f, w_g, w_o = map(_norm, gates(*weights)[0])
    room = 1 / forget_bound(*weights, input_bound=input_bound)[1]
    return max(w_i, w_o) < room and w_g <= room / 4 and w_f < room**2


def lstm_certificate(*weights: Tensor | None, input_bound: float) -> Certificate:
    """The contraction factors of an LSTM on the states reachable from zero (Proposition 5 and its refinements).

    Args:
        *weights: those of one layer in one direction, in nn.LSTM's order and layout: weight_ih (4n, d), weight_hh
            (4n, n), bias_ih (4n,) and bias_hh (4n,); the biases may be None or left out.
        input_bound: at least the modulus of every entry of every x_t.

    Examples:
        >>> from mnemoscope.theory import lstm_certificate
        >>> layer = nn.LSTM(3, 8)
        >>> for weight in layer.parameters():
        ...     weight.data *= 0.1
        >>> certificate = lstm_certificate(*layer.parameters(), input_bound=1.0)
        >>> certificate.stable, certificate.lam < 1
        (True, True)
    """
    forget, cell = forget_bound(*weights, input_bound=input_bound)
    w_i, w_f, w_g, w_o = map(_norm, gates(*weights)[0])
    drift = (w_i + cell * w_f) / 4 + w_g  # what ||h - h'|| adds to ||c_+ - c'_+||
    comparison = torch.tensor([[forget, drift], [forget, drift + w_o / 4]], dtype=torch.float64)
    entries = comparison_matrix(*weights, input_bound=input_bound)
    lam = float(entries.sum(1).max())
    return Certificate(forget, cell, comparison, float(comparison.sum(1).max()), lam, min(lam, weighted_rate(entries)))


def gate_bounds(*weights: Tensor | None, input_bound: float, start: Start | None = None, rounds: int = 8) -> GateBounds:
    """What each unit's gates and states can reach from their start: Lemma 5 for one unit at a time, used on itself.

    |h| <= 1 bounds the gates, the gates bound |c| by i g/(1 - f) and so |h| by o tanh |c|, which is the next round's
    bound; every round holds for all reachable states, so `rounds` only tightens. A start beyond these bounds takes
    their place: f |c_0| + i g <= |c_0| if |c_0| >= i g/(1 - f).
    """
    W, U, b = gates(*weights)
    check_input_bound(input_bound)
    driven = U.abs().sum(2) * input_bound  # (4, n)
    c_0, h_0 = start if start is not None else (torch.zeros_like(b[0]), torch.zeros_like(b[0]))
    h = torch.maximum(torch.ones_like(b[0]), h_0)
    for _ in range(rounds):
        a_i, a_f, _, a_o = b + driven + W.abs() @ h
        i = torch.sigmoid(a_i)
        f = torch.sigmoid(a_f)
        o = torch.sigmoid(a_o)
        g = torch.tanh(b[2].abs() + driven[2] + W[2].abs() @ h)
        c = torch.maximum(i * g * (1 + a_f.exp()), c_0)
        h = torch.maximum(o * torch.tanh(c), h_0)
    return GateBounds(i, f, g, o, c, h)


def comparison_matrix(*weights: Tensor | None, input_bound: float, start: Start | None = None) -> Tensor:
    """A matrix (2n, 2n) that bounds every entry of the Jacobian of (c, h) -> (c_+, h_+) on the reachable box."""
    W = gates(*weights)[0].abs()
    at = gate_bounds(*weights, input_bound=input_bound, start=start)
    keep = torch.cat([at.f.diag(), at.o[:, None] * at.f.diag()])
    return torch.cat([keep, _through_gates(W, at)], 1)


def input_comparison(*weights: Tensor | None, input_bound: float, start: Start | None = None) -> Tensor:
    """A matrix (2n, d) that bounds every entry of the Jacobian of x -> (c_+, h_+) on the reachable box."""
    U = gates(*weights)[1].abs()
    return _through_gates(U, gate_bounds(*weights, input_bound=input_bound, start=start))


def _through_gates(W: Tensor, at: GateBounds) -> Tensor:
    """What moves of the vector that the moduli W (4, n, k) of weights multiply do to (c_+, h_+): (2n, k)."""
    write = (at.g[:, None] * W[0] + at.c[:, None] * W[1]) / 4 + at.i[:, None] * W[2]
    show = at.o[:, None] * write + torch.tanh(at.c)[:, None] * W[3] / 4
    return torch.cat([write, show])


def weighted_rate(comparison: Tensor) -> float:
    """max_i (M v)_i / v_i for a positive v close to the best one: the contraction factor in max_i |s_i| / v_i."""
    v = comparison_weights(comparison)
    return math.inf if v is None else float((comparison @ v / v).max())


def comparison_weights(comparison: Tensor) -> Tensor | None:
    """A positive v with M v < r v, r a little above the spectral radius of a comparison matrix M; None if not found.

    v = (I - M/r)^-1 1 is positive, and M v = r (v - 1) < r v.
    """
    if not torch.isfinite(comparison).all():
        return None
    radius = max(float(torch.linalg.eigvals(comparison).abs().max()), 1e-3) * (1 + 1e-6)
    one = torch.ones_like(comparison[0])
    v = torch.linalg.solve(torch.eye(len(one), dtype=one.dtype) - comparison / radius, one)
    return v if bool((v > 0).all()) and bool(torch.isfinite(v).all()) else None


def euclidean_iterations(lam: float, hidden_size: int) -> int:
    """The least r for which r steps contract in the Euclidean norm: lam^r sqrt(2n) < 1 (Proposition 5).

    The state (c, h) has 2n entries; the sqrt(n) of the text's proof is too small.
    """
    if not 0 < lam < 1:
        raise MnemoscopeError(f"the iterate of a map contracts only if the map does, 0 < lambda < 1; got {lam:.6g}")
    return math.floor(math.log(math.sqrt(2 * hidden_size)) / -math.log(lam)) + 1


def gates(*weights: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """W (4, n, n), U (4, n, d) and b (4, n) in float64 on the CPU, the biases added."""
    if not 2 <= len(weights) <= 4:
        raise MnemoscopeError(
            f"an LSTM's weights are the two or four of one layer, as *layer.parameters() gives them; got {len(weights)}"
        )
    weight_ih, weight_hh, *biases = weights
    if weight_ih is None or weight_hh is None or len({len(weight_ih), len(weight_hh), 4 * weight_hh.shape[1]}) > 1:
        shapes = [None if w is None else tuple(w.shape) for w in (weight_ih, weight_hh)]
        raise MnemoscopeError(f"an LSTM's weight_ih and weight_hh are (4n, d) and (4n, n); got {shapes}")
    n = weight_hh.shape[1]
    U = weight_ih.detach().cpu().double()
    W = weight_hh.detach().cpu().double()
    b = W.new_zeros(4 * n)
    for bias in biases:
        if bias is not None:
            b = b + bias.detach().cpu().double()
    return W.view(4, n, n), U.view(4, n, -1), b.view(4, n)


def _norm(matrix: Tensor) -> float:
    return float(torch.linalg.matrix_norm(matrix, ord=math.inf))


def one_unit(**gate: tuple[float, float]) -> tuple[Tensor, ...]:
    """weight_ih = 0, weight_hh and one bias of an LSTM with one unit, from (recurrent weight, bias) of each gate."""
    rows = torch.tensor([gate.get(name, (0.0, 0.0)) for name in "ifgo"], dtype=torch.float64)
    return torch.zeros(4, 1, dtype=torch.float64), rows[:, :1], rows[:, 1]


@statement(
    "miller-hardt-lemma-5",
    paper=PAPERS["stability"],
    where="Lemma 5, A.3.2",
    status="holds",
    claim="the cell state of an LSTM is bounded by 1/(1 - ||f||_inf)",
    remark="The paper's LSTM has no biases. With them ||f||_inf is sigmoid(||W_f|| + ||U_f|| B_x + ||b_f||): one unit "
    "with b_f = 3 and no other weights in its forget gate reaches 21, where the bound without a bias is 2.",
)
def lemma_5() -> Iterator[Row]:
    for scale, seed in ((1.0, 0), (3.0, 1)):
        weights = random_lstm(16, 4, scale, seed)
        x = bounded_inputs(200, 4, 1.0, seed)
        c, _ = lstm_states(x, weights)
        yield Row(f"n=16, scale {scale}", forget_bound(*weights, input_bound=1.0)[1], float(c.abs().max()))
        unit = gate_bounds(*weights, input_bound=1.0).c
        yield Row(f"n=16, scale {scale}: unit by unit", 1.0, float((c.abs().amax(0) / unit).max()))
    open_gates = one_unit(i=(0.0, 20.0), f=(0.0, 3.0), g=(0.0, 20.0))
    c, _ = lstm_states(torch.zeros(400, 1, dtype=torch.float64), open_gates)
    bound, without = (forget_bound(*w, input_bound=0.0)[1] for w in (open_gates, open_gates[:2]))
    yield Row("one unit, b_f=3, i = g = 1: the bound is reached", bound, float(c.max()), "==", tolerance=1e-6)
    yield Row("the same, above the bound without bias", without, float(c.max()), ">=")


def after_one_step(x: Tensor, s: Tensor, weights: tuple[Tensor, ...]) -> Tensor:
    """The state s = (c, h) (..., 2n) one step later."""
    c, h = s.chunk(2, -1)
    return torch.cat(lstm_step(x, c, h, weights), -1)


def expansion(weights: tuple[Tensor, ...], x: Tensor, order: float, pairs: int = 200, seed: int = 0) -> float:
    """The largest ||s_+ - s'_+|| / ||s - s'|| seen over random pairs of states in the reachable box, near and far."""
    at = gate_bounds(*weights, input_bound=float(x.abs().max()))
    box = torch.cat([at.c, at.h])
    generator = torch.Generator().manual_seed(seed)
    s, move = (box * (2 * torch.rand(pairs, len(box), generator=generator, dtype=torch.float64) - 1) for _ in range(2))
    size = 10 ** torch.linspace(-4, 0, pairs, dtype=torch.float64)[:, None]
    other = (s + size * move).clamp(-box, box)
    after = [after_one_step(x, t, weights) for t in (s, other)]
    norms = [torch.linalg.vector_norm(a - b, ord=order, dim=1) for a, b in (after, (s, other))]
    return float((norms[0] / norms[1]).max())


@statement(
    "miller-hardt-proposition-5",
    paper=PAPERS["stability"],
    where="Proposition 5, A.3.2",
    status="holds",
    claim="small row sums make an LSTM contractive in the infinity norm, and r > log sqrt(2n)/log(1/lambda) steps "
    "of it contractive in the Euclidean one",
    remark="The r = O(log n) of the text stands; its proof has sqrt(n) for sqrt(2n), though the state is (c, h). With "
    "n = 1 that allows r = 1, but one unit with lambda = 0.91 moves states 1.28 times apart. Sums of columns, as in "
    "the published code, are not enough.",
)
def proposition_5() -> Iterator[Row]:
    x = torch.full((4,), 0.2, dtype=torch.float64)
    for n, scale in ((8, 0.05), (16, 0.02)):
        weights = random_lstm(n, 4, scale, seed=n)
        certificate = lstm_certificate(*weights, input_bound=0.2)
        moved = expansion(weights, x, math.inf)
        yield Row(f"n={n}: ||s_+ - s'_+|| / ||s - s'||, the proof's factor", certificate.proposition_5, moved)
        yield Row(f"n={n}: entrywise factor", certificate.lam, moved)
        yield Row(f"n={n}: weighted norm over entrywise", certificate.lam, certificate.rate)
    yield from _euclidean()
    yield from _columns()


def _euclidean() -> Iterator[Row]:
    """One unit that forgets little and shows all: lambda < 1, and yet one step makes (c, h) longer."""
    weights = one_unit(f=(0.0, 2.3), o=(0.0, 8.0))
    lam = lstm_certificate(*weights, input_bound=0.0).proposition_5
    at = torch.tensor([1e-6, 0.0], dtype=torch.float64)
    r = euclidean_iterations(lam, 1)
    moved = [at]
    for _ in range(r):
        moved.append(after_one_step(at.new_zeros(1), moved[-1], weights))
    once = float(moved[1].norm() / at.norm())
    yield Row(f"one unit, lambda={lam:.3f}: one step in the Euclidean norm", 1.0, once, ">=")
    yield Row(f"one unit: r={r} steps", math.sqrt(2) * lam**r, float(moved[r].norm() / at.norm()))
    yield Row(f"one unit: r={r - 1} steps need not contract", 1.0, math.sqrt(2) * lam ** (r - 1), ">=")


def _columns(n: int = 64) -> Iterator[Row]:
    """One row of W_g full of 0.12: its columns pass the test of Proposition 5, its row sum of 7.7 does not."""
    W = torch.zeros(4 * n, n, dtype=torch.float64)
    W[2 * n] = 0.12
    h = torch.full((n,), 1e-4, dtype=torch.float64)
    c, _ = lstm_step(h.new_zeros(1), torch.zeros_like(h), h, (h.new_zeros(4 * n, 1), W))
    columns = float(W.abs().sum(0).max())
    yield Row("column sums within (1 - ||f||)/4", (1 - 0.5) / 4, columns)
    yield Row("and yet ||c_+ - c'_+|| / ||h - h'||", 1.0, float(c.abs().max() / h.abs().max()), ">=")
