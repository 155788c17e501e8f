"""The constants of linear systems and RNNs: never exceeded by a Jacobian, and reached where they can be."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.func import jacrev

from mnemoscope.errors import MnemoscopeError
from mnemoscope.theory.stability._constants import (
    NONLINEARITIES,
    Nonlinearity,
    context_length,
    linear_constants,
    prediction_gap,
    rnn_constants,
    spectral_norm,
    state_gap,
)
from mnemoscope.theory.stability._instances import PHI, bounded_inputs, flatten, perturbed, random_rnn, rnn_states

systems = st.tuples(
    st.sampled_from(["identity", "tanh", "sigmoid"]), st.floats(0.05, 0.95), st.integers(0, 10**6), st.booleans()
)


@pytest.mark.parametrize("name", ["tanh", "sigmoid"])
def test_constants_of_the_nonlinearities_are_suprema(name):
    z = torch.linspace(-6, 6, 400_001, dtype=torch.float64).requires_grad_()
    (slope,) = torch.autograd.grad(PHI[name](z).sum(), z, create_graph=True)
    (bend,) = torch.autograd.grad(slope.sum(), z)
    assert slope.max().item() == pytest.approx(NONLINEARITIES[name].lipschitz, rel=1e-9)
    assert float(bend.abs().max()) == pytest.approx(NONLINEARITIES[name].smoothness, rel=1e-8)


def jacobians(weights, h, x, nonlinearity):
    """d phi / dh (n, n), d phi / dx (n, d) and d phi / dw (n, all weights)."""

    def phi(h, x, U, V, *biases):
        return PHI[nonlinearity](V @ h + U @ x + sum(biases, torch.zeros_like(h)))

    in_h, in_x, *in_w = jacrev(phi, tuple(range(2 + len(weights))))(h, x, *weights)
    return in_h, in_x, torch.cat([j.flatten(1) for j in in_w], 1)


@settings(max_examples=100, deadline=None)
@given(systems)
def test_no_jacobian_exceeds_its_constant(case):
    nonlinearity, lam, seed, bias = case
    if nonlinearity == "sigmoid":
        lam *= 4  # contractive up to ||V|| = 4
    weights, x = random_rnn(5, 3, lam, seed, bias), bounded_inputs(12, 3, 1.5, seed)
    system = rnn_constants(*weights, input_bound=1.5, nonlinearity=nonlinearity)
    states = rnn_states(x, weights, nonlinearity)
    assert float(states.norm(dim=1).max()) <= system.state_bound * (1 + 1e-12)
    other = perturbed(weights, 0.3, seed)
    slack = 1 + 1e-9
    for t in (1, 6, 11):
        h, h2 = states[t - 1], states[t]
        in_h, in_x, in_w = jacobians(weights, h, x[t], nonlinearity)
        assert spectral_norm(in_h) <= system.lam * slack
        assert spectral_norm(in_x) <= system.L_x * slack
        assert spectral_norm(in_w) <= system.L_w * slack
        moved_h, _, moved_w = jacobians(weights, h2, x[t], nonlinearity)
        apart = float((h - h2).norm())
        assert spectral_norm(in_h - moved_h) <= system.beta_hh * apart * slack + 1e-12
        assert spectral_norm(in_w - moved_w) <= system.beta_wh * apart * slack
        turned_h, _, turned_w = jacobians(other, h, x[t], nonlinearity)
        apart = float((flatten(weights) - flatten(other)).norm())
        assert spectral_norm(in_h - turned_h) <= system.beta_hw * apart * slack
        assert spectral_norm(in_w - turned_w) <= system.beta_ww * apart * slack + 1e-12


def test_constants_of_a_linear_system_are_reached():
    """With U x along the leading direction of V = lambda I nothing in the derivation is lost."""
    U, V = torch.tensor([[2.0], [0.0]]), 0.5 * torch.eye(2)
    system = linear_constants(U, V, input_bound=3.0)
    h = rnn_states(torch.full((60, 1), 3.0), (U, V), "identity")[-1]
    assert float(h.norm()) == pytest.approx(system.state_bound) == pytest.approx(2 * 3 / (1 - 0.5))
    in_h, in_x, in_w = jacobians((U, V), h, torch.tensor([3.0]), "identity")
    found = (spectral_norm(in_h), spectral_norm(in_x), spectral_norm(in_w))
    assert found == pytest.approx((system.lam, system.L_x, system.L_w), rel=1e-6)
    assert (system.beta_ww, system.beta_wh, system.beta_hw, system.beta_hh) == (0, 1, 1, 0)


def test_biases_that_cancel_are_bounded_apart():
    """b_ih = -b_hh adds nothing to w's own states, but Omega holds weights in which one of the two is gone."""
    U, V, b = torch.ones(1, 1).double(), torch.tensor([[0.5]]).double(), torch.tensor([3.0]).double()
    system = linear_constants(U, V, b, -b, input_bound=1.0)
    h = rnn_states(torch.ones(60, 1).double(), (U, V, b, 0 * b), "identity")[-1]
    assert h.item() == pytest.approx((1 + 3) / (1 - 0.5))
    assert system.state_bound == pytest.approx((1 + 3 + 3) / (1 - 0.5))  # reached by b_hh = b


def test_smoothness_of_a_tanh_unit_is_reached():
    """At tanh^2 = 1/3 the second derivative of one unit is beta_hh = 4/(3 sqrt 3) lambda^2, and beta_ww its read^2."""
    bend = torch.atanh(torch.tensor(1 / math.sqrt(3), dtype=torch.float64))
    U, V, x = torch.ones(1, 1).double(), torch.tensor([[0.8]]).double(), bend[None]
    system = rnn_constants(U, V, input_bound=float(bend))
    zero, eps = torch.zeros(1).double(), 1e-5
    there, here = (jacobians((U, V), zero + s * eps, x, "tanh")[0] for s in (1, -1))
    assert float((there - here).abs()) / (2 * eps) == pytest.approx(system.beta_hh, rel=1e-6)
    read = math.sqrt(system.state_bound**2 + float(bend) ** 2)
    assert system.beta_ww == pytest.approx(4 / (3 * math.sqrt(3)) * read**2)
    assert system.beta_wh == pytest.approx(4 / (3 * math.sqrt(3)) * 0.8 * read + 1)

    # With both biases a row of weights multiplies (h, x, 1, 1).
    system = rnn_constants(U, V, zero, zero, input_bound=float(bend))
    assert system.beta_ww == pytest.approx(4 / (3 * math.sqrt(3)) * (read**2 + 2))


@settings(max_examples=200, deadline=None)
@given(systems, st.integers(1, 30))
def test_state_gap_holds(case, k):
    nonlinearity, lam, seed, bias = case
    weights, x = random_rnn(4, 2, lam, seed, bias), bounded_inputs(50, 2, 2.0, seed)
    system = rnn_constants(*weights, input_bound=2.0, nonlinearity=nonlinearity)
    if nonlinearity == "sigmoid":
        assert system.lam == pytest.approx(lam / 4)
    gap = (rnn_states(x, weights, nonlinearity)[-1] - rnn_states(x[-k:], weights, nonlinearity)[-1]).norm()
    assert float(gap) <= state_gap(system, k) * (1 + 1e-9) + 1e-14


@settings(max_examples=100, deadline=None)
@given(st.floats(0.01, 0.99), st.floats(1e-8, 1.0))
def test_context_is_the_least_that_keeps_the_promise(lam, eps):
    """Scalar system, constant input: the gap is lambda^k / (1 - lambda) exactly, and context the least such k."""
    system = linear_constants(torch.ones(1, 1).double(), torch.tensor([[lam]], dtype=torch.float64), input_bound=1.0)
    k = context_length(system, eps)
    assert lam**k / (1 - lam) <= eps * (1 + 1e-9)
    assert k == 0 or lam ** (k - 1) / (1 - lam) > eps * (1 - 1e-9)
    assert k == math.ceil(math.log(1 / ((1 - lam) * eps)) / math.log(1 / lam) - 1e-9)


def test_context_hides_no_factor():
    """The text's k = log(L_x B_x / ((1 - lambda) eps)) leaves a gap 3,000 times eps at lambda = 0.9."""
    system = linear_constants(torch.ones(1, 1), torch.tensor([[0.9]]), input_bound=1.0)
    printed = math.ceil(math.log(1 / ((1 - 0.9) * 1e-3)))
    assert printed == 10
    assert context_length(system, 1e-3) == 88
    assert state_gap(system, printed) > 3000 * 1e-3


def test_readout_scales_the_gap():
    system = linear_constants(torch.ones(1, 1), torch.tensor([[0.5]]), input_bound=1.0)
    assert prediction_gap(system, 3.0, 4) == pytest.approx(3 * 2 * 0.5**4)
    assert context_length(system, 6 * 0.5**4 * 1.01, L_f=3.0) == 4


def test_an_unstable_system_is_refused():
    system = linear_constants(torch.ones(1, 1), torch.tensor([[1.0]]), input_bound=1.0)
    assert not system.stable
    assert system.state_bound == math.inf
    with pytest.raises(MnemoscopeError, match="lambda < 1; got lambda = 1"):
        context_length(system, 0.1)


def test_relu_forgets_but_is_not_smooth():
    U, V, *_ = random_rnn(4, 2, 0.5, 0)
    system = rnn_constants(U, V, input_bound=1.0, nonlinearity="relu")
    assert context_length(system, 1e-3) < 20
    assert system.beta_hh == math.inf


def test_a_saturated_rnn_is_bounded_by_its_units():
    U, V, *_ = random_rnn(9, 2, 5.0, 0)
    assert rnn_constants(U, V, input_bound=1.0).state_bound == 3.0


def test_own_and_unknown_nonlinearities():
    U, V, *_ = random_rnn(3, 2, 0.5, 0)
    assert rnn_constants(U, V, input_bound=1.0, nonlinearity=Nonlinearity(2.0, 1.0, 9.0)).lam == pytest.approx(1.0)
    with pytest.raises(MnemoscopeError, match="tanh, sigmoid, relu, or a Nonlinearity; got 'gelu'"):
        rnn_constants(U, V, input_bound=1.0, nonlinearity="gelu")
    with pytest.raises(MnemoscopeError, match="eps must be positive"):
        context_length(rnn_constants(U, V, input_bound=1.0), 0.0)


def one(value):
    return torch.full((1, 1), value, dtype=torch.float64)


def test_constants_of_huge_norms_overflow_to_infinity_and_are_not_refused():
    system = linear_constants(one(1e200), one(0.5), input_bound=1e80)
    assert system.state_bound == pytest.approx(2e280)
    assert system.L_w == pytest.approx(2e280)
    assert rnn_constants(one(1e200), one(0.5), input_bound=1e200).state_bound == 1.0


def test_unbounded_inputs_that_no_weight_reads_leave_the_bias():
    """0 times infinity is 0 here: without it the bound was 0, and the state of this unit is near 0.8."""
    bias = torch.ones(1, dtype=torch.float64)
    system = rnn_constants(one(0.0), one(0.5), bias, input_bound=math.inf)
    states = rnn_states(torch.zeros(50, 1, dtype=torch.float64), (one(0.0), one(0.5), bias), "tanh")
    assert 0.8 < float(states[-1]) <= system.state_bound <= 1


@pytest.mark.parametrize("eps", [1e-320, 1e-300])
def test_context_length_of_a_tiny_gap(eps):
    system = linear_constants(one(1.0), one(0.5), input_bound=1e10)
    k = context_length(system, eps)
    assert state_gap(system, k) <= eps * (1 + 1e-3)  # eps is denormal: 0.5**k is rounded
    assert k == math.ceil(math.log2(2e10) - math.log2(eps))


def test_context_length_refuses_what_has_none():
    with pytest.raises(MnemoscopeError, match="eps must be positive; got nan"):
        context_length(linear_constants(one(1.0), one(0.5), input_bound=1.0), math.nan)
    with pytest.raises(MnemoscopeError, match="states are bounded by inf"):
        context_length(linear_constants(one(1.0), one(0.5), input_bound=math.inf), 1e-3)
