"""Gradients and weights of a system and of its truncation: Lemmas 2-4, Proposition 2, Theorem 1."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mnemoscope.errors import MnemoscopeError
from mnemoscope.theory.stability import _descent
from mnemoscope.theory.stability._constants import (
    SystemConstants,
    linear_constants,
    rnn_constants,
    spectral_norm,
    state_gap,
)
from mnemoscope.theory.stability._descent import (
    LossConstants,
    gradient_gap,
    loss_smoothness,
    squared_loss,
    training_context_length,
    trajectory_gap,
    truncation_gamma,
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

cases = st.tuples(st.sampled_from(["identity", "tanh"]), st.floats(0.05, 0.9), st.integers(0, 10**6))


def problem(case, n=4, d=2, T=40):
    nonlinearity, lam, seed = case
    generator = torch.Generator().manual_seed(seed)
    readout, target = torch.randn(2, n, generator=generator).double(), torch.randn(2, generator=generator).double()
    weights, x = random_rnn(n, d, lam, seed), bounded_inputs(T, d, 1.0, seed)
    system = rnn_constants(*weights, input_bound=1.0, nonlinearity=nonlinearity)
    return x, weights, readout, target, system, squared_loss(readout, target, system)


@settings(max_examples=200, deadline=None)
@given(cases, st.integers(1, 20))
def test_gradient_gap_holds(case, k):
    x, weights, C, y, system, loss = problem(case)
    full, cut = (loss_gradient(x, weights, C, y, cut, case[0]) for cut in (None, k))
    assert float((full - cut).norm()) <= gradient_gap(system, loss, k) * (1 + 1e-9) + 1e-12
    assert gradient_gap(system, loss, k) <= truncation_gamma(system, loss) * k * system.lam ** (k - 1) * (1 + 1e-9)


def scalar(lam):
    """h_t = lam h_{t-1} + x_t with x = 1 at its fixed point, as constants of w = (a,) alone, and p = h_T."""
    state_bound = 1 / (1 - lam)
    return SystemConstants(lam, 1.0, state_bound, 0.0, 1.0, 1.0, 0.0, state_bound=state_bound), LossConstants(1.0, 0.0)


@pytest.mark.parametrize("lam", [0.0, 0.3, 0.8])
@pytest.mark.parametrize("k", [1, 5, 20])
def test_gradient_gap_is_reached_by_a_scalar_system(lam, k):
    """d h_T/da - d h_T^k/da = lam^k S/(1 - lam) + k lam^(k-1) S with S = 1/(1 - lam): the bound, term by term."""
    system, loss = scalar(lam)
    a = torch.tensor(lam, dtype=torch.float64, requires_grad=True)
    h = sum(a**i for i in range(400))
    h_k = sum(a**i for i in range(k))
    (exact,) = torch.autograd.grad(h - h_k, a)
    assert float(exact) == pytest.approx(gradient_gap(system, loss, k), rel=1e-9)


@pytest.mark.parametrize("name", ["beta_wh", "beta_hh", "beta_p"])
def test_each_term_of_the_gradient_gap_is_its_sum(name):
    """The proof step by step: each factor of dp/dh_T dh_T/dh_t dh_t/dw changed in turn, at the state it is taken at."""
    lam, L_w, L_p, state_bound, k = 0.1, 2.0, 3.0, 5.0, 40
    beta = {"beta_wh": 0.0, "beta_hh": 0.0, "beta_p": 0.0, name: 7.0}
    system = SystemConstants(lam, 1.0, L_w, 0.0, beta["beta_wh"], 0.0, beta["beta_hh"], state_bound=state_bound)
    total = sum(L_p * lam**age * L_w for age in range(k, k + 60))  # what the cut leaves out
    for age in range(k):  # t = T - age, at h_{t-1}, which is k - 1 - age steps after the cut
        gaps = [lam ** (k - 1 - a) * state_bound for a in range(age + 1)]  # of the states before t, ..., T
        total += L_p * lam**age * beta["beta_wh"] * gaps[age]
        total += L_p * L_w * sum(beta["beta_hh"] * gaps[a] * lam ** (age - 1) for a in range(age))
    total += sum(beta["beta_p"] * lam**k * state_bound * lam**age * L_w for age in range(k))
    assert 0.95 * gradient_gap(system, LossConstants(L_p, beta["beta_p"]), k) < total
    assert total <= gradient_gap(system, LossConstants(L_p, beta["beta_p"]), k) * (1 + 1e-12)


def test_theorem_1_adds_its_two_terms():
    """At alpha beta = 1 and N = 4 the weights differ by 8 alpha gap; that, carried on, and what the cut leaves out."""
    system = SystemConstants(0.5, 1.0, 2.0, 1.0, 1.0, 1.0, 1.0, state_bound=3.0)
    loss, k = LossConstants(1.0, 1.0), 5
    alpha = 1 / loss_smoothness(system, loss)
    delta = alpha * gradient_gap(system, loss, k) * 4 * 2
    found = _descent.trained_prediction_gap(system, loss, 7.0, k, alpha, 4)
    assert found == pytest.approx(7.0 * (2.0 * delta / 0.5 + 0.5**5 * 3.0))


def test_the_printed_lemma_2_fails():
    """One lambda too many: at lambda = 0.1 the exact difference is four times what the text's constants allow."""
    system, loss = scalar(0.0)
    assert gradient_gap(system, loss, 1) == 1.0
    assert _descent.gradient_gap_as_printed(system, loss, 1) == 0.0
    system, loss = scalar(0.1)
    assert gradient_gap(system, loss, 30) > 4 * _descent.gradient_gap_as_printed(system, loss, 30)


@settings(max_examples=200, deadline=None)
@given(cases)
def test_loss_is_smooth_and_trajectories_stay_close(case):
    x, weights, C, y, system, loss = problem(case)
    other = perturbed(weights, 0.1, case[2])
    distance = float((flatten(weights) - flatten(other)).norm())
    here, there = (loss_gradient(x, w, C, y, None, case[0]) for w in (weights, other))
    assert float((here - there).norm()) <= loss_smoothness(system, loss) * distance * (1 + 1e-9) + 1e-12
    apart = (rnn_states(x, weights, case[0]) - rnn_states(x, other, case[0])).norm(dim=1)
    assert all(float(gap) <= trajectory_gap(system, distance, t) * (1 + 1e-9) + 1e-15 for t, gap in enumerate(apart))
    assert trajectory_gap(system, distance, 10_000) <= trajectory_gap(system, distance)


def test_beta_and_trajectory_gap_in_closed_form():
    """Scalar, in a alone: h_T = sum a^i. dh/da at the fixed point is S^2 and d2h/da2 is 2 S^3, S = 1/(1 - a).

    Every term of beta counts: beta_p L_w^2 S^2 with L_w = S, and the mixed ones 2 L_p L_w S^2.
    """
    lam = 0.6
    S = 1 / (1 - lam)
    system, linear = scalar(lam)
    assert loss_smoothness(system, linear) == pytest.approx(2 * S**3)
    assert loss_smoothness(system, LossConstants(0.0, 1.0)) == pytest.approx(S**4)
    bent = SystemConstants(lam, 1.0, 2.0, 3.0, 0.0, 0.0, 5.0, state_bound=1.0)
    assert loss_smoothness(bent, linear) == pytest.approx(3 * S + 4 * 5 * S**3)
    a = torch.tensor(lam, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(sum(a**i for i in range(300)), a, create_graph=True)
    (bend,) = torch.autograd.grad(slope, a)
    assert float(bend) == pytest.approx(loss_smoothness(system, linear))
    assert slope.item() == pytest.approx(trajectory_gap(system, 1.0))


def test_squared_loss_is_lipschitz_and_smooth_on_reachable_states():
    generator = torch.Generator().manual_seed(0)
    for norm, order, dual in (("l2", 2, 2), ("linf", math.inf, 1)):
        C, y = torch.randn(3, 5, generator=generator).double(), torch.randn(3, generator=generator).double()
        system = SystemConstants(0.5, 1, 1, 0, 0, 0, 0, state_bound=0.7, norm=norm)
        loss = squared_loss(C, y, system)
        h, k = torch.randn(2, 5000, 5, generator=generator).double()
        h, k = (0.7 * s / torch.linalg.vector_norm(s, ord=order, dim=1, keepdim=True) for s in (h, k))
        gradient, other = ((s @ C.T - y) @ C for s in (h, k))
        steepest = torch.linalg.vector_norm(gradient, ord=dual, dim=1).max()
        bend = torch.linalg.vector_norm(gradient - other, ord=dual, dim=1) / torch.linalg.vector_norm(
            h - k, ord=order, dim=1
        )
        assert 0.3 * loss.L_p < float(steepest) <= loss.L_p
        assert 0.3 * loss.beta_p < float(bend.max()) <= loss.beta_p


@pytest.mark.parametrize("norm", ["l2", "linf"])
def test_squared_loss_constants_are_reached_by_one_unit(norm):
    """p = (2 h + 1)^2 / 2 on |h| <= 0.7: the slope 2 (2 h + 1) is at most 4.8, its own slope 4."""
    system = SystemConstants(0.5, 1, 1, 0, 0, 0, 0, state_bound=0.7, norm=norm)
    loss = squared_loss(torch.tensor([[2.0]]), torch.tensor([-1.0]), system)
    assert (loss.L_p, loss.beta_p) == pytest.approx((4.8, 4.0))


@settings(max_examples=200, deadline=None)
@given(st.floats(1e-6, 10), st.floats(1e-3, 1.0), st.floats(1e-3, 4.0), st.integers(1, 300))
def test_forms_of_proposition_2_are_ordered(gap, alpha, smoothness, steps):
    recursion = _descent.weight_gap(gap, alpha, smoothness, steps)
    closed = _descent.weight_gap_closed(gap, alpha, smoothness, steps)
    printed = _descent.weight_gap_as_printed(gap, alpha, smoothness, steps)
    assert recursion <= closed * (1 + 1e-9)
    assert closed <= printed * (1 + 1e-9)
    if alpha * smoothness * (steps - 1) > 1:
        ab = alpha * smoothness
        assert closed == pytest.approx(alpha * gap * steps**ab * (1 + 1 / ab))


def test_recursion_of_proposition_2_unrolls():
    ab, steps = 0.7, 25
    product = [math.prod(1 + ab / j for j in range(i + 1, steps + 1)) / i for i in range(1, steps + 1)]
    assert _descent.weight_gap(3.0, 0.1, 7.0, steps) == pytest.approx(0.1 * 3.0 * sum(product))


@settings(max_examples=100, deadline=None)
@given(cases, st.integers(1, 8))
def test_trained_weights_stay_within_proposition_2(case, k):
    x, weights, C, y, system, loss = problem(case, n=3, T=12)
    alpha = 0.5 / loss_smoothness(system, loss)
    full, cut = (descend(x, weights, C, y, cut, alpha, 4, case[0]) for cut in (None, k))
    bound = _descent.weight_gap(gradient_gap(system, loss, k), alpha, loss_smoothness(system, loss), 4)
    assert float((flatten(full) - flatten(cut)).norm()) <= bound
    assert spectral_norm(full[1]) <= case[1] * (1 + 1e-9)


def test_weight_gap_is_nearly_reached_by_gradient_flow():
    """One step of descent on the scalar problem moves the two runs apart by alpha times the gradients' difference."""
    x = torch.ones(60, 1, dtype=torch.float64)
    weights = (torch.ones(1, 1).double(), torch.tensor([[0.5]]).double())
    C, y, alpha, k = torch.ones(1, 1).double(), torch.zeros(1).double(), 1e-3, 3
    system = linear_constants(*weights, input_bound=1.0)
    loss = squared_loss(C, y, system)
    full, cut = (descend(x, weights, C, y, cut, alpha, 1, "identity") for cut in (None, k))
    bound = _descent.weight_gap(gradient_gap(system, loss, k), alpha, loss_smoothness(system, loss), 1)
    assert 0.4 * bound < float((flatten(full) - flatten(cut)).norm()) <= bound


@pytest.mark.parametrize("L_f", [None, 2.0])
def test_training_context_is_the_least_promise(L_f):
    *_, system, loss = problem(("tanh", 0.6, 3))
    alpha, steps, eps = 1e-4, 100, 1e-3
    k = training_context_length(system, loss, eps, alpha, steps, L_f)

    def gap(k):
        whole = truncation_gamma(system, loss) * k * system.lam ** (k - 1)
        return _descent.weight_gap_closed(whole, alpha, loss_smoothness(system, loss), steps)

    if L_f is None:
        assert gap(k) <= eps < gap(k - 1)
        return
    assert _descent.trained_prediction_gap(system, loss, L_f, k, alpha, steps) <= eps
    terms = [(L_f * trajectory_gap(system, gap(j)), L_f * state_gap(system, j)) for j in (k - 1, k)]
    assert max(terms[1]) <= eps / 2 < max(terms[0])


def test_training_context_of_a_system_that_forgets_at_once_by_state():
    """Where lambda^k sup||h|| is the larger term, it alone decides: L_f lambda^k sup||h|| <= eps/2."""
    system = SystemConstants(0.5, 1.0, 1e-9, 0.0, 0.0, 0.0, 0.0, state_bound=1.0)
    assert training_context_length(system, LossConstants(1.0, 0.0), 2.0**-9, 1.0, 5, L_f=1.0) == 10


def test_training_context_checks_its_hypotheses():
    system, loss = scalar(0.5)
    with pytest.raises(MnemoscopeError, match=r"must be positive; got 0\.0, 0\.1, None, 5"):
        training_context_length(system, loss, 0.0, 0.1, 5)
    U, V, *_ = random_rnn(3, 2, 0.5, 0)
    relu = rnn_constants(U, V, input_bound=1.0, nonlinearity="relu")
    with pytest.raises(MnemoscopeError, match="needs a smooth system"):
        training_context_length(relu, loss, 0.1, 0.1, 5)
    still = rnn_constants(U, V, input_bound=0.0)  # no input and no bias: the state stays at zero
    assert training_context_length(still, loss, 0.1, 0.1, 5, L_f=1.0) >= 1


def test_what_overflows_bounds_nothing():
    assert _descent.weight_gap_closed(1.0, 1.0, 500.0, 100) == math.inf
    assert _descent.weight_gap_as_printed(1.0, 1.0, 500.0, 100) == math.inf


def test_training_context_survives_constants_beyond_floating_point():
    system = SystemConstants(0.9, 1, 10, 10, 10, 10, 10, state_bound=10)
    k = training_context_length(system, LossConstants(1.0, 1.0), 1e-3, 1.0, 10**6)
    estimate = loss_smoothness(system, LossConstants(1.0, 1.0)) * math.log(10**6) / -math.log(0.9)
    assert k == pytest.approx(estimate, rel=0.01)


def test_a_truncated_model_sees_an_input():
    with pytest.raises(MnemoscopeError, match="at least one input; got k = 0"):
        gradient_gap(*scalar(0.5), 0)
