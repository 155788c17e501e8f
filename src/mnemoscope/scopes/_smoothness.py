"""How steep a cost can become with the length of the sequences: memory against smoothness."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call

from mnemoscope.errors import check_count
from mnemoscope.finding import Finding, arrays
from mnemoscope.recurrence import Recurrence, State, select
from mnemoscope.scopes._frame.scope import not_applicable, scope
from mnemoscope.scopes._frame.subject import Subject
from mnemoscope.scopes._measures.decay import fit_line
from mnemoscope.scopes._measures.growth import rounding_warnings
from mnemoscope.scopes._measures.parameter_batches import Parameters, real_parameters
from mnemoscope.scopes._measures.singular_values import largest_singular_value
from mnemoscope.scopes._measures.state_samples import sample_states
from mnemoscope.scopes._measures.state_vectors import flatten, spectral_norms, unflatten
from mnemoscope.theory.smoothness import amplification, regime
from mnemoscope.wording import told_from_one

SEQUENCES = 4  # whose cost is differentiated twice
GROWN = 0.25  # the exponent of N below which a slope counts as constant
POLYNOMIAL = 3  # the largest power of N in Theorem 1: so few lengths do not show slower growth to be exponential
EXACT = 2**31  # multiplications up to which J J^T is formed; beyond, its largest eigenvalue is found by products
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
    """Measure Lipschitz constants of the step and of the cost (Ribeiro et al. 2019, Theorem 1).

    L_f and L_g are those of the next state and of the output, jointly in the state and the parameters: the largest
    singular values of their Jacobians at states along the run, so that they are lower bounds. Theorem 1 says how the
    slope of the cost over N steps grows with L_f: it stays for L_f < 1, grows with N for L_f = 1, and may grow like
    L_f^(2N) beyond. With the parameters measured in a small enough unit L_f comes down to L_x, its part in the state
    alone, which therefore decides. The cost is the mean square of the outputs of at most four sequences over N steps.

    Series: `lengths` (K,), N; `cost_slope` (K,), ||dV_N/dtheta||; `gradient_slope` (K,), the largest ||H v|| of
    `probes` random unit directions v, H the Hessian; `promised` (K,), the growth S(N)^2 of Theorem 1's L_V with L_x,
    relative to the shortest N; `norms` (points,) and `state_norms` (points,), the singular values that L_f is the
    largest of, and those in the state alone.
    Figures: `L_f`, `L_g`, `L_x` (in the state alone); `growth`, the factor per step of `cost_slope`, and
    `gradient_growth`, of `gradient_slope`. Labels: `regime`, constant, polynomial or exponential, from L_x;
    `seen`, the same from the measured slopes.

    Args:
        points: states at which Jacobians are computed.
        lengths: numbers of steps at which slopes are measured.
        probes: random directions for the Hessian.
    """
    subject.check_steps(4)
    check_count("points", points)
    check_count("lengths", lengths)
    check_count("probes", probes)
    if not any(True for _ in subject.recurrence.parameters()):
        return not_applicable("smoothness", f"{subject.name} has no parameters whose cost could be steep")
    # Lipschitz constants: the largest norms of Jacobians at states along the run.
    samples = list(sample_states(subject, points, rows=1))
    measured = []
    for k, sample in enumerate(samples):
        measured.append(_jacobian_norms(subject.recurrence, sample.x[:1], sample.state))
        subject.report(0.4 * (k + 1) / len(samples))
    norms = torch.tensor(measured, dtype=torch.float64)
    L_f, L_x, L_g = norms.max(0).values.tolist()

    # Slopes of the cost over more and more steps.
    counts = np.unique(np.geomspace(4, subject.steps, lengths).astype(int))
    slopes = []
    for k, N in enumerate(counts):
        slopes.append(_slopes(subject, int(N), probes))
        subject.report(0.4 + 0.6 * (k + 1) / len(counts), f"{N} steps")
    cost_slope, gradient_slope = np.array(slopes).T
    growth, seen = _growth(counts, cost_slope)
    gradient_growth, _ = _growth(counts, gradient_slope)

    # Against the growth that Theorem 1 allows.
    S_squared = amplification(L_x, subject.steps)[counts].square()
    allowed = regime(1.0 if abs(L_x - 1) < AT_ONE else L_x).name
    figures = {"L_f": L_f, "L_g": L_g, "L_x": L_x, "growth": growth, "gradient_growth": gradient_growth}
    return Finding(
        "smoothness",
        subject.of_layer(_sentence(figures, allowed, seen)),
        "estimated",
        figures=figures,
        series=arrays(
            lengths=counts,
            cost_slope=cost_slope,
            gradient_slope=gradient_slope,
            promised=S_squared / S_squared[0],
            norms=norms[:, 0],
            state_norms=norms[:, 1],
        ),
        labels={"regime": allowed, "seen": seen},
        warnings=(*_warnings(seen), *rounding_warnings(subject)),
        assumptions=("the largest constants along these runs stand for those over all reachable states",),
        method=(
            f"singular values at {len(norms)} states; gradients and Hessian-vector products at {len(counts)} lengths "
            "of a cost, the mean square of the outputs"
        ),
    )


def _jacobian_norms(recurrence: Recurrence, x: Tensor, state: State) -> tuple[float, float, float]:
    """Return the norms of d(next state)/d(state, theta), d(next state)/d(state) and d(output)/d(state, theta).

    Of the first sequence in `state`, on the input x (1, d).
    """
    parameters, restore = real_parameters(recurrence)
    state = select(state, 0)
    stepper = _Stepper(recurrence)

    def step(vector: Tensor, theta: Parameters) -> tuple[Tensor, Tensor]:
        named = {f"recurrence.{name}": p for name, p in restore(theta).items()}
        output, after = functional_call(stepper, named, (x, vector, state))
        return flatten(after)[0], output[0]

    vector = flatten(state)
    numbers = vector.numel() + sum(p.numel() for p in parameters.values())
    if vector.numel() ** 2 * numbers > EXACT:
        by_state: Any = torch.func.jacrev(lambda v: step(v, parameters)[0])(vector)
        in_state = spectral_norms(by_state.flatten(1)[None].double()).item()
        joint = [largest_singular_value(lambda *at, k=k: step(*at)[k], (vector, parameters)) for k in (0, 1)]
        return joint[0], in_state, joint[1]
    jacobian: Any = torch.func.jacrev(step, argnums=(0, 1))(vector, parameters)
    (state_by_state, state_by_theta), (output_by_state, output_by_theta) = jacobian
    state_by_state = state_by_state.flatten(1).double()
    output_by_state = output_by_state.flatten(1).double()
    in_state = spectral_norms(state_by_state[None]).item()
    return _joint_norm(state_by_state, state_by_theta), in_state, _joint_norm(output_by_state, output_by_theta)


class _Stepper(torch.nn.Module):
    """A step from a state vector, for functional_call under other parameters."""

    def __init__(self, recurrence: Recurrence) -> None:
        super().__init__()
        self.recurrence = recurrence

    def forward(self, x: Tensor, vector: Tensor, state: State) -> tuple[Tensor, State]:
        return self.recurrence.step(x, unflatten(vector, state))


def _joint_norm(by_state: Tensor, by_theta: Parameters) -> float:
    """Return the largest singular value of [J_x, J_theta], from the small matrix J J^T."""
    gram = by_state @ by_state.mT
    for block in by_theta.values():
        rows = block.reshape(len(by_state), -1).double()  # also of a parameter without dimensions
        gram = gram + rows @ rows.mT
    if not bool(gram.isfinite().all()):
        return math.inf
    return torch.linalg.eigvalsh(gram)[-1].clamp(min=0).sqrt().item()


def _slopes(subject: Subject, N: int, probes: int) -> tuple[float, float]:
    """Return ||dV/dtheta|| and the largest ||H v||, V the cost of the first N steps."""
    gradient = torch.func.grad(_cost(subject, N))
    values, _ = real_parameters(subject.recurrence)
    slope = _norm(gradient(values))
    generator = subject.generator()
    largest = 0.0
    for _ in range(probes):
        noise = {
            name: torch.randn(p.shape, generator=generator, dtype=torch.float64).to(p) for name, p in values.items()
        }
        size = _norm(noise)
        direction = {name: n / size for name, n in noise.items()}
        pull_back: Any = torch.func.vjp(gradient, values)[1]
        largest = max(largest, _norm(pull_back(direction)[0]))  # H is symmetric: v^T H is H v
    return slope, largest


def _cost(subject: Subject, N: int) -> Callable[[Parameters], Tensor]:
    x = subject.recurrence_inputs[:N, :SEQUENCES]
    _, restore = real_parameters(subject.recurrence)

    def cost(values: Parameters) -> Tensor:
        outputs, _ = functional_call(subject.recurrence, restore(values), (x,))
        return outputs.square().mean()

    return cost


def _norm(tensors: Parameters) -> float:
    """Return the Euclidean norm of all numbers together."""
    return math.sqrt(sum(t.double().square().sum().item() for t in tensors.values()))


def _growth(lengths: np.ndarray, slopes: np.ndarray) -> tuple[float, str]:
    """Return the factor per step by which slopes grow over the longer half of the lengths, and the law they follow."""
    half = len(lengths) // 2
    N = lengths[half:].astype(float)
    y = slopes[half:]
    usable = np.isfinite(y) & (y > 0)
    if usable.sum() < 2:
        return (math.inf, "exponential") if np.isinf(slopes).any() else (math.nan, "unknown")
    N = N[usable]
    log = np.log(y[usable])
    rate, exponential_residual = fit_line(N, log)
    degree, power_residual = fit_line(np.log(N), log)
    factor = math.exp(rate)
    if log[-1] - log[0] < GROWN * np.log(N[-1] / N[0]):
        return factor, "constant"
    if exponential_residual < power_residual and degree > POLYNOMIAL:
        return factor, "exponential"
    return factor, "polynomial"


def _sentence(figures: dict[str, float], allowed: str, seen: str) -> str:
    per_step = 100 * (figures["growth"] - 1)
    grows = f"grows by {per_step:.0f} % with every step of" if math.isfinite(per_step) else "grows to infinity with"
    slope = {
        "constant": "does not grow with the length of the sequences",
        "polynomial": "grows slowly with the length of the sequences",
        "exponential": f"{grows} the sequences",
        "unknown": "could not be measured",
    }[seen]
    # L_f is the largest that was seen: from above 1 more is allowed, from below less only if it is the largest of all.
    L_x = f"{figures['L_x']:.3g}" if allowed == "polynomial" else told_from_one(figures["L_x"])
    if_largest = f"if L_f in the state is nowhere above the {L_x} that was seen"
    stops = "as much" if seen == "constant" else "that it stops growing"
    theorem = {
        "constant": f"Theorem 1 promises {stops}, {if_largest}",
        "polynomial": f"Theorem 1 allows polynomial growth, {if_largest}",
        "exponential": f"Theorem 1 allows exponential growth, with L_f = {L_x} in the state",
    }[allowed]
    return f"The slope of the cost {slope}; {theorem}."


def _warnings(seen: str) -> tuple[str, ...]:
    if seen != "exponential":
        return ()
    return ("the cost becomes steep with length: shorten sequences, clip gradients, or use multiple shooting",)
