"""Theorem 1: L_V and L'_V against naive sums and against networks."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.func import jacrev

from mnemoscope.errors import MnemoscopeError
from mnemoscope.theory.smoothness._cost import (
    JointConstants,
    P,
    Q,
    amplification,
    contractive_unit,
    cost_lipschitz,
    gradient_lipschitz,
    joint_constants,
    output_bound,
    regime,
)
from mnemoscope.theory.smoothness._losses import cross_entropy, cross_entropy_value, squared_error, squared_loss_value
from mnemoscope.theory.stability import SystemConstants, lstm_constants, rnn_constants
from mnemoscope.theory.stability._instances import (
    bounded_inputs,
    flatten,
    perturbed,
    random_lstm,
    random_rnn,
    rnn_states,
)

positive = st.floats(0.05, 2.5)
constants = st.builds(JointConstants, positive, positive, positive, positive)


def S(L_f, t):
    return math.sqrt(sum(L_f ** (2 * l) for l in range(t + 1)))


@settings(max_examples=60, deadline=None)
@given(positive, st.integers(0, 12))
def test_spread_is_its_sum(L_f, N):
    assert amplification(L_f, N).tolist() == pytest.approx([S(L_f, t) for t in range(N + 1)])
    if abs(L_f - 1) > 1e-3:  # eq. 19 cancels near 1
        closed = math.sqrt((L_f ** (2 * N + 2) - 1) / (L_f**2 - 1))
        assert float(amplification(L_f, N)[-1]) == pytest.approx(closed, rel=1e-6)


@settings(max_examples=40, deadline=None)
@given(constants, st.integers(1, 7), st.booleans(), st.floats(0, 3))
def test_constants_are_their_sums(joint, N, entropy, target):
    """Each factor of C_t A_{t-1} ... A_{l+1} B_l changed in turn, with Lemma 1b, in plain loops."""
    loss = cross_entropy(2) if entropy else squared_error()
    L_f, L_g, dL_f, dL_g = joint.L_f, joint.L_g, joint.L_f_prime, joint.L_g_prime
    M = output_bound(joint, N, 1.3, reference=0.2)
    assert M.tolist() == pytest.approx([0.2 + L_g * S(L_f, t) * 1.3 for t in range(N + 1)])
    L_V = dL_V = 0.0
    for t in range(1, N + 1):
        psi = float(loss.psi(M[t]))
        L_V += L_g * float(loss.steepness(target, M[t])) * S(L_f, t) / N
        change, size = dL_g * S(L_f, t), L_g  # of F_t, then of each path
        for l in range(t):
            factors = t - l  # A_{t-1} .. A_{l+1} and B_l
            path = dL_g * S(L_f, t) * L_f**factors
            path += sum(L_g * L_f ** (factors - 1) * dL_f * S(L_f, j) for j in range(l, t))
            assert float(P(joint, N)[t, l]) == pytest.approx(path)
            with_psi = psi * path + L_g * L_f**factors * loss.K4 * L_g * S(L_f, t)
            assert float(Q(joint, loss, M)[t, l]) == pytest.approx(with_psi)
            change, size = change + path, size + L_g * L_f**factors
        dL_V += (loss.K3 * target * change + psi * change + size * loss.K4 * L_g * S(L_f, t)) / N
    assert cost_lipschitz(joint, loss, target, M) == pytest.approx(L_V)
    assert gradient_lipschitz(joint, loss, target, M) == pytest.approx(dL_V)
    assert float(P(joint, N).triu().abs().max()) == 0.0


def test_what_overflows_is_infinite():
    joint = JointConstants(1e3, 1.0, 1.0, 1.0)
    M = output_bound(joint, 300, 1.0)
    assert cost_lipschitz(joint, squared_error(), 1.0, M) == math.inf
    assert gradient_lipschitz(joint, squared_error(), 1.0, M) == math.inf


def cost_of(weights, x0, readout, u, y, value):
    U, V = weights
    h, total = x0, 0.0
    for t in range(len(u)):
        h = torch.tanh(V @ h + U @ u[t])
        total = total + value(readout @ h, y[t])
    return total / len(u)


@settings(max_examples=200, deadline=None)
@given(st.floats(0.1, 1.5), st.integers(1, 8), st.integers(0, 10**6), st.booleans(), st.booleans())
def test_cost_and_gradient_of_networks_stay_within(lam, N, seed, entropy, rescale):
    generator = torch.Generator().manual_seed(seed)
    weights = random_rnn(3, 2, lam, seed, bias=False)
    system = rnn_constants(*weights, input_bound=1.0)
    readout = torch.randn(2, 3, generator=generator).double()
    y = torch.rand(N, 2, generator=generator).round().double()
    u = bounded_inputs(N, 2, 1.0, seed)
    norm = float(torch.linalg.matrix_norm(readout, ord=2))
    unit = contractive_unit(system) if rescale and lam < 1 else 1.0
    joint = joint_constants(system, norm, unit=unit)
    loss, value = (cross_entropy(2), cross_entropy_value) if entropy else (squared_error(), squared_loss_value)
    outputs = torch.full((N + 1,), norm * system.state_bound, dtype=torch.float64)
    ends = [perturbed(weights, 0.2, 2 * seed + i) for i in range(2)]
    starts = [project(torch.randn(3, generator=generator).double(), system.state_bound) for _ in range(2)]
    costs, gradients = [], []
    for end, start in zip(ends, starts, strict=True):
        leaves = tuple(w.clone().requires_grad_() for w in end)
        V = cost_of(leaves, start, readout, u, y, value)
        costs.append(V.item())
        gradients.append(flatten(torch.autograd.grad(V, leaves)))
    moved = float((flatten(ends[0]) - flatten(ends[1])).norm()) / unit
    distance = math.hypot(moved, float((starts[0] - starts[1]).norm()))
    target = float(y.norm(dim=1).max())
    assert abs(costs[0] - costs[1]) <= cost_lipschitz(joint, loss, target, outputs) * distance
    turned = float((gradients[0] - gradients[1]).norm()) * unit
    assert turned <= gradient_lipschitz(joint, loss, target, outputs) * distance


def project(x, radius):
    return x * min(1.0, radius / float(x.norm()))


@settings(max_examples=100, deadline=None)
@given(st.floats(0.1, 1.5), st.floats(0.1, 2), st.integers(0, 10**6))
def test_joint_constants_bound_joint_jacobians(lam, unit, seed):
    weights = random_rnn(3, 2, lam, seed, bias=False)
    system = rnn_constants(*weights, input_bound=1.0)
    joint = joint_constants(system, 1.0, unit=unit)
    u = bounded_inputs(1, 2, 1.0, seed)[0]

    def f(h, U, V):
        return torch.tanh(unit * V @ h + unit * U @ u)  # weights in units

    def jacobian(h, w):
        return torch.cat([j.flatten(1) for j in jacrev(f, (0, 1, 2))(h, *(x / unit for x in w))], 1)

    states, other = rnn_states(bounded_inputs(6, 2, 1.0, seed), weights), perturbed(weights, 0.2, seed)
    h, k = states[3], states[6]
    here, there = jacobian(h, weights), jacobian(k, other)
    assert float(torch.linalg.matrix_norm(here, ord=2)) <= joint.L_f * (1 + 1e-9)
    distance = math.hypot(float((h - k).norm()), float((flatten(weights) - flatten(other)).norm()) / unit)
    assert float(torch.linalg.matrix_norm(here - there, ord=2)) <= joint.L_f_prime * distance * (1 + 1e-9)


@pytest.mark.parametrize(
    ("betas", "expected"),
    [
        ({"beta_hh": 3.0}, 3.0),
        ({"beta_hw": 3.0, "beta_wh": 3.0}, 6.0),
        ({"beta_ww": 3.0}, 12.0),
        ({"beta_hh": 1.0, "beta_hw": 1.0, "beta_wh": 1.0, "beta_ww": 1.0}, 5.0),
    ],
)
def test_each_part_of_the_joint_smoothness_has_its_power_of_the_unit(betas, expected):
    """In units of 2 the blocks of f's second derivative are (hh, 2 hw; 2 wh, 4 ww), measured by their spectral norm."""
    zero = {"beta_hh": 0.0, "beta_hw": 0.0, "beta_wh": 0.0, "beta_ww": 0.0}
    system = SystemConstants(lam=0.6, L_x=1.0, L_w=0.4, state_bound=1.0, **{**zero, **betas})
    joint = joint_constants(system, 1.0, unit=2.0)
    assert joint.L_f_prime == pytest.approx(expected)
    assert joint.L_f == pytest.approx(1.0)  # 0.6 and 2 x 0.4


def test_a_contractive_map_can_have_a_joint_constant_above_one():
    """x/2 + theta: the printed regime is exponential, the cost is not; in half units of theta L_f is 0.71."""
    assert regime(math.hypot(0.5, 1.0)).name == "exponential"
    bounds = []
    for N in (20, 200):
        x = [2 * (1 - 0.5**t) for t in range(1, N + 1)]  # at theta = 1; also dx/dtheta
        slope = sum(2 * v * v for v in x) / N
        outputs = torch.full((N + 1,), 2.0, dtype=torch.float64)
        joint, halved = (JointConstants(math.hypot(0.5, unit), 1.0) for unit in (1.0, 0.5))
        assert slope / 2 <= cost_lipschitz(halved, squared_error(), 0.0, outputs) < 6
        bounds.append(cost_lipschitz(joint, squared_error(), 0.0, outputs))
        assert slope < 8
    assert bounds[1] > 1e6 * bounds[0]


def test_contractive_unit_gives_the_constant_asked_for():
    system = rnn_constants(*random_rnn(4, 2, 0.7, 0), input_bound=1.0)
    assert joint_constants(system, 1.0, unit=contractive_unit(system)).L_f == pytest.approx(0.85)
    assert joint_constants(system, 1.0, unit=contractive_unit(system, 0.9)).L_f == pytest.approx(0.9)
    with pytest.raises(MnemoscopeError, match=r"between lambda = 0\.7 and 1; got 0\.5"):
        contractive_unit(system, 0.5)
    with pytest.raises(MnemoscopeError, match="Euclidean norm; got 'linf'"):
        joint_constants(lstm_constants(*random_lstm(2, 2, 0.1, 0), input_bound=1.0), 1.0)


@pytest.mark.parametrize(
    ("L_f", "name", "cost", "gradient"),
    [
        (0.99, "constant", "1", "1"),
        (1.0, "polynomial", "N", "N^3"),
        (1.01, "exponential", "L_f^(2N)", "L_f^(3N)"),
    ],
)
def test_regimes_have_their_orders(L_f, name, cost, gradient):
    found = regime(L_f)
    assert (found.name, found.cost, found.gradient) == (name, cost, gradient)


@pytest.mark.parametrize(("L_f", "N", "orders"), [(0.6, 100, (0, 0)), (1.0, 400, (1, 3)), (1.3, 100, (2, 3))])
def test_growth_of_the_constants(L_f, N, orders):
    """Doubling N multiplies by 1, by 2^order, or by L_f^(order N) over the 2 that the mean over t takes."""
    joint = JointConstants(L_f, 1.0, 0.5, 0.5)
    for function, order in zip((cost_lipschitz, gradient_lipschitz), orders, strict=True):
        here, there = (function(joint, squared_error(), 0.0, output_bound(joint, n, 1.0)) for n in (N, 2 * N))
        found = math.log(2 * there / here) / (N * math.log(L_f)) if L_f > 1 else math.log2(there / here)
        assert found == pytest.approx(order, abs=0.05)
