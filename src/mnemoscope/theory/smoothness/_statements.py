"""Theorem 1 of Ribeiro et al. 2019, checked on networks whose constants are known."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from mnemoscope.theory._statement import PAPERS, Row, statement
from mnemoscope.theory.smoothness._cost import (
    JointConstants,
    contractive_unit,
    cost_lipschitz,
    gradient_lipschitz,
    joint_constants,
    output_bound,
    regime,
)
from mnemoscope.theory.smoothness._losses import (
    cross_entropy,
    cross_entropy_value,
    squared_error,
    squared_loss_value,
)
from mnemoscope.theory.stability._constants import SystemConstants, rnn_constants
from mnemoscope.theory.stability._instances import bounded_inputs, flatten, norms, perturbed, random_rnn, rnn_states


class Problem(NamedTuple):
    """A tanh RNN with a fixed read-out, inputs, targets, and the constants of its weights' set."""

    weights: tuple[Tensor, ...]
    readout: Tensor
    inputs: Tensor
    targets: Tensor
    system: SystemConstants


def random_problem(lam: float, N: int, seed: int, entropy: bool) -> Problem:
    generator = torch.Generator().manual_seed(seed)
    weights = random_rnn(3, 2, lam, seed, bias=False)
    readout = torch.randn(2, 3, generator=generator, dtype=torch.float64) / 2
    targets = torch.randn(N + 1, 2, generator=generator, dtype=torch.float64)
    targets = (targets > 0).double() if entropy else targets / targets.norm(dim=1, keepdim=True)
    return Problem(weights, readout, bounded_inputs(N, 2, 1.0, seed), targets, rnn_constants(*weights, input_bound=1.0))


def cost(problem: Problem, weights: tuple[Tensor, ...], entropy: bool) -> Tensor:
    value = cross_entropy_value if entropy else squared_loss_value
    return value(rnn_states(problem.inputs, weights) @ problem.readout.T, problem.targets)[1:].mean()


def value_and_gradient(problem: Problem, weights: tuple[Tensor, ...], entropy: bool) -> tuple[float, Tensor]:
    leaves = tuple(w.detach().requires_grad_() for w in weights)
    value = cost(problem, leaves, entropy)
    return value.item(), flatten(torch.autograd.grad(value, leaves))


def measured(problem: Problem, unit: float, entropy: bool, pairs: int = 8) -> tuple[float, float]:
    """The steepest changes of V and of its gradient seen between weights of the same set, theta measured in `unit`."""
    steepest = 0.0
    largest_turn = 0.0  # of the gradient
    for seed in range(pairs):
        # every other pair compares with the weights themselves
        scales = (0.3, 0.0) if seed % 2 else (0.3, 0.3)
        ends = [perturbed(problem.weights, scale, 2 * seed + i) for i, scale in enumerate(scales)]
        (here, slope), (there, other) = (value_and_gradient(problem, end, entropy) for end in ends)
        distance = float((flatten(ends[0]) - flatten(ends[1])).norm()) / unit
        steepest = max(steepest, abs(here - there) / distance)
        largest_turn = max(largest_turn, float((slope - other).norm()) * unit / distance)
    return steepest, largest_turn


def bounds(problem: Problem, unit: float, entropy: bool) -> tuple[JointConstants, float, float]:
    """L_f and Theorem 1's L_V and L'_V, with the network's own bound of its outputs for M(t)."""
    loss = cross_entropy(2) if entropy else squared_error()
    norm = norms((problem.readout,))[0]
    target = float(problem.targets.norm(dim=1).max())
    joint = joint_constants(problem.system, norm, unit=unit)
    outputs = torch.full((len(problem.targets),), norm * problem.system.state_bound, dtype=torch.float64)
    return joint, cost_lipschitz(joint, loss, target, outputs), gradient_lipschitz(joint, loss, target, outputs)


@statement(
    "ribeiro-theorem-1a",
    paper=PAPERS["smoothness"],
    where="Theorem 1, eqs 4, 17-20",
    status="holds",
    claim="V is Lipschitz in (theta, x_0) with L_V = L_g/N sum_t (K0 + K1 L_y + K2 M(t)) S(t)",
)
def theorem_1a() -> Iterator[Row]:
    yield from (row for row, _ in _networks())


def _networks() -> Iterator[tuple[Row, Row]]:
    """What Theorem 1 allows and what is seen, of V and of its gradient, for both losses and two units of theta."""
    for entropy in (False, True):
        for lam, N in ((0.5, 5), (0.9, 5), (0.5, 40)):
            problem = random_problem(lam, N, seed=N, entropy=entropy)
            for name, unit in (("theta as it is", 1.0), ("theta rescaled", contractive_unit(problem.system))):
                joint, L_V, L_dV = bounds(problem, unit, entropy)
                steepest, turn = measured(problem, unit, entropy)
                case = f"{'cross-entropy' if entropy else 'squared'}, lambda={lam}, N={N}, {name}: L_f={joint.L_f:.2f}"
                yield Row(case, L_V, steepest), Row(case, L_dV, turn)


@statement(
    "ribeiro-theorem-1b",
    paper=PAPERS["smoothness"],
    where="Theorem 1, eqs 5, 21-24",
    status="holds",
    claim="grad V is Lipschitz with L'_V = 1/N sum_t (K3 L_y L_J(t) + L_Jy(t))",
    remark="The orders of eq. 5 stand. In the proof P and Q sum over l < t (eq. 22 is off by one), and |Psi| replaces "
    "K4 M(t), which does not bound it for the cross-entropy.",
)
def theorem_1b() -> Iterator[Row]:
    yield from (row for _, row in _networks())


@statement(
    "ribeiro-regimes",
    paper=PAPERS["smoothness"],
    where="Theorem 1, eqs 4 and 5",
    status="holds",
    claim="L_V and L'_V stay bounded for L_f < 1, grow like N and N^3 for L_f = 1, like L_f^(2N) and L_f^(3N) above",
    remark="L_f is joint in (x, theta): x/2 + theta contracts in x, has L_f = 1.12, and a "
    "cost that is as smooth at N = 100 as at N = 10. Measured in half units of theta its L_f is 0.71.",
)
def regimes() -> Iterator[Row]:
    loss = squared_error()
    for L_f in (0.7, 1.0, 1.2):
        joint = JointConstants(L_f, 1.0, 1.0, 1.0)
        N = 400 if L_f == 1 else 120
        case = f"L_f={L_f}, {regime(L_f).name}"
        for name, function, power in (("L_V", cost_lipschitz, 2), ("L'_V", gradient_lipschitz, 3)):
            here, there = (function(joint, loss, 0.0, output_bound(joint, n, 1.0)) for n in (N, 2 * N))
            if L_f < 1:
                yield Row(f"{case}: {name} at {2 * N} against {N}", here, there, "==", 0.05)
            elif L_f == 1:
                order = math.log(there / here) / math.log(2)
                expected = 1.0 if power == 2 else 3.0
                yield Row(f"{case}: order of {name} in N", expected, order, "==", 0.02)
            else:  # the mean over t takes off a factor N, here a half
                order = (math.log(2 * there / here)) / (N * math.log(L_f))
                yield Row(f"{case}: order of {name} in L_f^N", float(power), order, "==", 0.01)
    yield from _contractive_in_x()


def _contractive_in_x() -> Iterator[Row]:
    """x_{t+1} = x_t/2 + theta, y = x, target 0, |theta| <= 1: x_t <= 2, V = mean x_t^2 and dV/dtheta <= 8."""
    x = 2 * (1 - 0.5 ** torch.arange(1, 101, dtype=torch.float64))  # at theta = 1, from x_0 = 0; also dx/dtheta
    short, long = (float((2 * x[:N] ** 2).mean()) for N in (10, 100))
    yield Row("x/2 + theta: dV/dtheta at N=100, against 1.5 times that at 10", 1.5 * short, long)
    outputs = torch.full((101,), 2.0, dtype=torch.float64)
    joint, halved = (JointConstants(math.hypot(0.5, unit), 1.0) for unit in (1.0, 0.5))
    whole, half = (cost_lipschitz(constants, squared_error(), 0.0, outputs) for constants in (joint, halved))
    yield Row("x/2 + theta: L_V at N=100 with the joint L_f, against 1,000 times that", 1e3 * long, whole, ">=")
    yield Row("x/2 + theta: L_V at N=100, theta in half units", half, long / 2)

    # Without a state nothing is lost: y = theta, |theta| <= 2, V = theta^2.
    memoryless = JointConstants(0.0, 1.0)
    for name, function, slope in (("dV/dtheta", cost_lipschitz, 4.0), ("d2V/dtheta2", gradient_lipschitz, 2.0)):
        yield Row(f"y = theta: {name}", function(memoryless, squared_error(), 0.0, outputs), slope, "==")
