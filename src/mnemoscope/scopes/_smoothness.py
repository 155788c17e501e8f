"""How steep a cost can become with the length of the sequences: memory against smoothness."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call

from mnemoscope.errors import MnemoscopeError
from mnemoscope.finding import Finding, arrays
from mnemoscope.recurrence import Recurrence, State, select
from mnemoscope.scopes._frame.scope import scope
from mnemoscope.scopes._frame.subject import Subject
from mnemoscope.scopes._measures.parameter_batches import Parameters
from mnemoscope.scopes._measures.state_samples import visits
from mnemoscope.scopes._measures.state_vectors import flatten, unflatten
from mnemoscope.theory.smoothness import amplification, regime

SEQUENCES = 4  # whose cost is differentiated twice
GROWN = 0.25  # the exponent of N below which a slope counts as constant
POLYNOMIAL = 3  # the largest power of N in Theorem 1: what grows no faster is not told from it by so few lengths
AT_ONE = 1e-3  # nearer to 1 than this, a constant counts as 1

HELP = """
The slope of the cost, and of its gradient, by the parameters, for longer and longer sequences.
Level: long sequences are no harder to learn from. A straight climb here, where both axes are
logarithmic, is polynomial; a curve that bends upwards is exponential growth, which no learning rate
suits.

What Theorem 1 of Ribeiro et al. allows is a bound on the growth; the measured slopes may stay below
it.
"""


@scope(
    "How steep can the cost become as sequences grow?",
    title="Smoothness",
    help=HELP,
    needs="step",
    cost=60,
)
def smoothness(subject: Subject, *, points: int = 6, lengths: int = 6, probes: int = 1) -> Finding:
    """Lipschitz constants of the step and of the cost (Ribeiro et al. 2019, Theorem 1).

    L_f and L_g are those of the next state and of the output, jointly in the state and the parameters: the largest
    singular values of their Jacobians at states along the run, so they are bounds from below. Theorem 1 says how the
    slope of the cost over N steps grows with L_f: it stays for L_f < 1, grows with N for L_f = 1, and may grow like
    L_f^(2N) beyond. With the parameters measured in a small enough unit L_f comes down to L_x, its part in the state
    alone, which therefore decides. The cost is the mean square of the outputs of at most four sequences over N steps.

    Series: `lengths` (K,), N; `cost_slope` (K,), ||dV_N/dtheta||; `gradient_slope` (K,), the largest ||H v|| of
    `probes` random unit directions v, H the Hessian; `promised` (K,), the growth S(N)^2 of Theorem 1's L_V with L_x,
    relative to the shortest N; `norms` (points,) and `state_norms` (points,), the singular values that L_f is the
    largest of, and those in the state alone.
    Figures: `L_f`, `L_g`, `L_x` (in the state alone); `growth`, the factor a step of `cost_slope`, and
    `gradient_growth`, of `gradient_slope`. Labels: `regime`, constant, polynomial or exponential, from L_x;
    `seen`, the same from the measured slopes.

    Args:
        points: states at which Jacobians are taken.
        lengths: numbers of steps at which slopes are measured.
        probes: random directions for the Hessian.
    """
    if subject.steps < 4:
        raise MnemoscopeError(f"smoothness needs sequences of at least 4 steps; got {subject.steps}")
    seen_states = list(visits(subject, points, rows=1))
    norms = torch.tensor([_joint(subject.recurrence, visit.x[:1], visit.state) for visit in seen_states])
    L_f, L_x, L_g = norms.max(0).values.tolist()
    subject.report(0.4)
    upto = np.unique(np.geomspace(4, subject.steps, lengths).astype(int))
    slopes = np.array([_slopes(subject, int(N), probes, 0.4 + 0.6 * (k + 1) / len(upto)) for k, N in enumerate(upto)])
    (growth, seen), (gradient_growth, _) = (_growth(upto, column) for column in slopes.T)
    S = amplification(L_x, subject.steps)[upto].square()
    figures = {"L_f": L_f, "L_g": L_g, "L_x": L_x, "growth": growth, "gradient_growth": gradient_growth}
    promised = regime(1.0 if abs(L_x - 1) < AT_ONE else L_x).name
    return Finding(
        "smoothness", _sentence(figures, promised, seen), "estimated", figures=figures,
        series=arrays(
            lengths=upto, cost_slope=slopes[:, 0], gradient_slope=slopes[:, 1], promised=S / S[0],
            norms=norms[:, 0], state_norms=norms[:, 1],
        ),
        labels={"regime": promised, "seen": seen}, warnings=_warnings(seen, subject),
        assumptions=("the largest constants along these runs stand for those over all reachable states",),
        method=f"singular values at {len(norms)} states, gradients and Hessian-vector products at {len(upto)} lengths",
    )  # fmt: skip


def _joint(recurrence: Recurrence, x: Tensor, state: State) -> tuple[float, float, float]:
    """Norms of d(next state)/d(state, theta), d(next state)/d(state) and d(output)/d(state, theta) for one sequence."""
    own = {name: p.detach() for name, p in recurrence.named_parameters()}
    state = select(state, 0)
    point = flatten(state)

    def step(flat: Tensor, theta: Parameters) -> tuple[Tensor, Tensor]:
        named = {f"of.{name}": p for name, p in theta.items()}
        output, after = functional_call(_Stepper(recurrence), named, (x, flat, state))
        return flatten(after)[0], output[0]

    by: Any = torch.func.jacrev(step, argnums=(0, 1))(point, own)
    (state_by_state, state_by_theta), (output_by_state, output_by_theta) = by
    in_state = state_by_state.flatten(1).double()
    return (
        _norm(in_state, state_by_theta), torch.linalg.matrix_norm(in_state, ord=2).item(),
        _norm(output_by_state.flatten(1).double(), output_by_theta),
    )  # fmt: skip


class _Stepper(torch.nn.Module):
    def __init__(self, recurrence: Recurrence) -> None:
        super().__init__()
        self.of = recurrence

    def forward(self, x: Tensor, flat: Tensor, state: State) -> tuple[Tensor, State]:
        return self.of.step(x, unflatten(flat, state))


def _norm(by_state: Tensor, by_theta: Parameters) -> float:
    """The largest singular value of [J_x, J_theta], from the small matrix J J^T."""
    gram = by_state @ by_state.mT
    for block in by_theta.values():
        rows = block.flatten(1).double()
        gram = gram + rows @ rows.mT
    return torch.linalg.eigvalsh(gram)[-1].clamp(min=0).sqrt().item()


def _slopes(subject: Subject, N: int, probes: int, done: float) -> tuple[float, float]:
    """||dV/dtheta|| and the largest ||H v||, V the cost of the first N steps."""
    own = {name: p.detach() for name, p in subject.recurrence.named_parameters()}
    names, values = list(own), list(own.values())
    cost = _cost(subject, N, names)
    gradient = torch.func.grad(cost)
    slope = _size(gradient(values))
    generator, largest = subject.generator(), 0.0
    for _ in range(probes):
        noise = [torch.randn(p.shape, generator=generator, dtype=torch.float64).to(p) for p in values]
        size = _size(noise)
        direction = [n / size for n in noise]
        pull: Any = torch.func.vjp(gradient, values)[1]
        largest = max(largest, _size(pull(direction)[0]))  # H is symmetric: v^T H is H v
    subject.report(done, f"{N} steps")
    return slope, largest


def _cost(subject: Subject, N: int, names: list[str]) -> Callable[[list[Tensor]], Tensor]:
    recurrence, x = subject.recurrence, subject.recurrence_inputs[:N, :SEQUENCES]

    def cost(values: list[Tensor]) -> Tensor:
        outputs, _ = functional_call(recurrence, dict(zip(names, values, strict=True)), (x,))
        return outputs.square().mean()

    return cost


def _size(tensors: list[Tensor]) -> float:
    return math.sqrt(sum(t.double().square().sum().item() for t in tensors))


def _growth(lengths: np.ndarray, slopes: np.ndarray) -> tuple[float, str]:
    """The factor a step by which slopes grow over the longer half of the lengths, and the law that they follow."""
    half = len(lengths) // 2
    N, y = lengths[half:].astype(float), slopes[half:]
    good = np.isfinite(y) & (y > 0)
    if good.sum() < 2:
        return (math.inf, "exponential") if np.isinf(slopes).any() else (math.nan, "unknown")
    N, log = N[good], np.log(y[good])
    (rate, exponential), (degree, power) = (_fit(axis, log) for axis in (N, np.log(N)))
    if log[-1] - log[0] < GROWN * np.log(N[-1] / N[0]):
        return math.exp(rate), "constant"
    return math.exp(rate), "exponential" if exponential < power and degree > POLYNOMIAL else "polynomial"


def _fit(axis: np.ndarray, log: np.ndarray) -> tuple[float, float]:
    """The slope of a straight line, and the sum of squares that it leaves."""
    line = np.polyfit(axis, log, 1)
    return float(line[0]), float(np.square(log - np.polyval(line, axis)).sum())


def _sentence(figures: dict[str, float], promised: str, seen: str) -> str:
    slope = {
        "constant": "does not grow with the length of the sequences",
        "polynomial": "grows slowly with the length of the sequences",
        "exponential": f"grows by {100 * (figures['growth'] - 1):.0f} % with every step of the sequences",
        "unknown": "could not be measured",
    }[seen]
    allowed = {
        "constant": "Theorem 1 promises as much",
        "polynomial": "Theorem 1 allows polynomial growth",
        "exponential": "Theorem 1 allows exponential growth",
    }[promised]
    return f"The slope of the cost {slope}; {allowed}, with L_f = {figures['L_x']:.3g} in the state."


def _warnings(seen: str, subject: Subject) -> tuple[str, ...]:
    if seen != "exponential":
        return ()
    return ("the cost becomes steep with length: shorten sequences, clip gradients, or use multiple shooting",)
