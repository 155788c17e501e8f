"""Proposition 5 and Lemma 5 for LSTMs: certificates that no Jacobian contradicts."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.func import jacfwd, jacrev

from mnemoscope.errors import MnemoscopeError
from mnemoscope.theory.stability._constants import state_gap
from mnemoscope.theory.stability._descent import gradient_gap, loss_smoothness, squared_loss, trajectory_gap
from mnemoscope.theory.stability._instances import flatten, lstm_states, random_lstm, shrunk_lstm
from mnemoscope.theory.stability._lstm import (
    GateBounds,
    after_one_step,
    comparison_matrix,
    euclidean_iterations,
    forget_bound,
    gate_bounds,
    lstm_certificate,
    one_unit,
    satisfies_proposition_5,
    weighted_rate,
)
from mnemoscope.theory.stability._lstm_smoothness import _derivatives, lstm_constants

networks = st.tuples(st.integers(1, 5), st.floats(0.02, 3.0), st.integers(0, 10**6))


def inputs(d, bound, seed, T=60):
    return bound * (2 * torch.rand(T, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) - 1)


def jacobian(weights, s, x):
    return jacrev(lambda s: after_one_step(x, s, weights))(s)


def box(weights, bound):
    at = gate_bounds(*weights, input_bound=bound)
    return torch.cat([at.c, at.h])


@settings(max_examples=200, deadline=None)
@given(networks)
def test_states_stay_in_their_bounds(case):
    n, scale, seed = case
    weights, x = random_lstm(n, 2, scale, seed), inputs(2, 1.5, seed, T=30)
    forget, cell = forget_bound(*weights, input_bound=1.5)
    c, h = lstm_states(x, weights)
    at = gate_bounds(*weights, input_bound=1.5)
    assert bool((c.abs() <= at.c).all())
    assert bool((h.abs() <= at.h).all())
    assert float(at.c.max()) <= cell * (1 + 1e-12)
    assert float(at.f.max()) <= forget * (1 + 1e-12)
    assert cell == pytest.approx(1 / (1 - forget), rel=1e-6)


@settings(max_examples=80, deadline=None)
@given(networks)
def test_no_jacobian_contradicts_the_certificate(case):
    n, scale, seed = case
    weights = random_lstm(n, 2, scale, seed)
    found = lstm_certificate(*weights, input_bound=1.0)
    entries = comparison_matrix(*weights, input_bound=1.0)
    generator = torch.Generator().manual_seed(seed)
    for x in inputs(2, 1.0, seed, T=4):
        s = box(weights, 1.0) * (2 * torch.rand(2 * n, generator=generator, dtype=torch.float64) - 1)
        J = jacobian(weights, s, x).abs()
        assert bool((entries + 1e-12 >= J).all())
    assert found.rate <= found.lam <= found.proposition_5 * (1 + 1e-12)
    assert torch.equal(found.comparison.sum(1).max(), torch.tensor(found.proposition_5, dtype=torch.float64))


@settings(max_examples=60, deadline=None)
@given(st.floats(0.0, 1.0), st.integers(0, 10**6))
def test_the_conditions_of_proposition_5_certify(share, seed):
    """Rows drawn just inside the four conditions: the factor of the proof is below 1, and falls with the rows."""
    n, weights = 4, list(random_lstm(4, 2, 1.0, seed))
    weights[0] = weights[0] * 0.3
    rows = weights[1].view(4, n, n)
    rows /= rows.abs().sum(2, keepdim=True)  # every row sum 1
    f = torch.sigmoid(torch.tensor(1.0) + 1.0)  # above ||f||, whatever the forget rows become
    small = torch.stack([1 - f, (1 - f) ** 2, (1 - f) / 4, 1 - f]).double()
    weights[1] = (0.999 * share * small[:, None, None] * rows).reshape(4 * n, n)
    weights[2] = weights[3] = 0.1 * weights[2]
    assert forget_bound(*weights, input_bound=1.0)[0] < float(f)
    assert satisfies_proposition_5(*weights, input_bound=1.0)
    found = lstm_certificate(*weights, input_bound=1.0)
    assert found.proposition_5 < 1
    assert found.stable


def test_each_condition_of_proposition_5_counts():
    """With no other weights ||f|| = 1/2: the four limits are 1/2, 1/2, 1/8 and 1/4 less what W_f adds to ||f||."""
    for gate, limit in (("i", 0.5), ("o", 0.5), ("g", 0.125)):
        below, above = (one_unit(**{gate: (limit * s, 0.0)}) for s in (0.999, 1.001))
        assert satisfies_proposition_5(*below, input_bound=1.0)
        assert not satisfies_proposition_5(*above, input_bound=1.0)
    tried = torch.linspace(0.1, 0.3, 2001).tolist()
    root = max(r for r in tried if satisfies_proposition_5(*one_unit(f=(r, 0.0)), input_bound=1.0))
    assert root == pytest.approx((1 - 1 / (1 + math.exp(-root))) ** 2, abs=2e-4)


def test_proof_factor_in_closed_form():
    weights = one_unit(i=(0.1, 0.0), f=(0.2, 0.3), g=(-0.05, 0.0), o=(0.4, 0.0))
    f = 1 / (1 + math.exp(-0.5))
    cell = 1 / (1 - f)
    found = lstm_certificate(*weights, input_bound=1.0)
    assert (found.forget, found.cell) == pytest.approx((f, cell))
    assert found.proposition_5 == pytest.approx(f + (0.1 + cell * 0.2 + 0.4) / 4 + 0.05)


def test_the_bound_without_bias_fails():
    weights = one_unit(i=(0.0, 20.0), f=(0.0, 3.0), g=(0.0, 20.0))
    c, _ = lstm_states(torch.zeros(400, 1).double(), weights)
    assert forget_bound(*weights[:2], input_bound=0.0)[1] == 2.0  # without the bias
    assert float(c[-1]) == pytest.approx(1 + math.exp(3)) == pytest.approx(forget_bound(*weights, input_bound=0.0)[1])


def test_the_output_gate_reaches_its_entry():
    """With a full cell and h = 0 the output gate is at its steepest: dh_+/dh = W_o tanh(c)/4."""
    weights = one_unit(i=(0.0, 20.0), f=(0.0, 1.0), g=(0.0, 20.0), o=(0.4, 0.0))
    c = 1 + math.e
    J = jacobian(weights, torch.tensor([c, 0.0]).double(), torch.zeros(1).double())
    assert float(J[1, 1]) == pytest.approx(0.4 * math.tanh(c) / 4)
    assert float(comparison_matrix(*weights, input_bound=0.0)[1, 1]) == pytest.approx(float(J[1, 1]))


def test_column_sums_do_not_certify():
    """Each column of W_g is below (1 - ||f||)/4 = 1/8, one row sums to 7.7: states move 3.8 times apart in one step."""
    n = 64
    W = torch.zeros(4 * n, n).double()
    W[2 * n] = 0.12
    weights = (torch.zeros(4 * n, 1).double(), W)
    assert float(W.abs().sum(0).max()) < 0.125
    assert not satisfies_proposition_5(*weights, input_bound=0.0)
    J = jacobian(weights, torch.zeros(2 * n).double(), torch.zeros(1).double())
    assert float(J.abs().sum(1).max()) > 3.8


def test_iterates_in_the_euclidean_norm():
    """sqrt(n), as in the proof, lets one step of one unit pass; sqrt(2n) does not, and holds."""
    weights = one_unit(f=(0.0, 2.3), o=(0.0, 8.0))
    lam = lstm_certificate(*weights, input_bound=0.0).proposition_5
    assert lam < 1
    zero, x = torch.zeros(2).double(), torch.zeros(1).double()
    assert float(torch.linalg.matrix_norm(jacobian(weights, zero, x), ord=2)) > 1.28
    r = euclidean_iterations(lam, 1)

    def iterate(s):
        for _ in range(r):
            s = after_one_step(x, s, weights)
        return s

    assert float(torch.linalg.matrix_norm(jacrev(iterate)(zero), ord=2)) < 1
    for n in (1, 7, 100):
        r = euclidean_iterations(lam, n)
        assert lam**r * math.sqrt(2 * n) < 1 <= lam ** (r - 1) * math.sqrt(2 * n)
    with pytest.raises(MnemoscopeError, match=r"0 < lambda < 1; got 1\.5"):
        euclidean_iterations(1.5, 4)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 8), st.integers(0, 10**6))
def test_weighted_rate_is_the_spectral_radius(n, seed):
    M = torch.rand(n, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    assert weighted_rate(M) == pytest.approx(float(torch.linalg.eigvals(M).abs().max()), rel=1e-5)


def test_weighted_rate_certifies_what_row_sums_do_not():
    """A strong one-way coupling: row sums far above 1, no feedback, so the states of both units converge."""
    W = torch.zeros(8, 2).double()
    W[4, 1] = 3.0  # the cell gate of unit 0 reads unit 1; nothing comes back
    weights = (torch.zeros(8, 1).double(), W)
    found = lstm_certificate(*weights, input_bound=0.0)
    assert found.lam > 1
    assert found.rate < 0.6
    s, t = (torch.tensor(v).double() for v in ([0.5, -0.9, 0.4, 0.5], [-0.5, 0.9, -0.4, -0.5]))
    for _ in range(60):
        s, t = (after_one_step(torch.zeros(1).double(), state, weights) for state in (s, t))
    assert float((s - t).norm()) < 1e-10
    assert weighted_rate(torch.tensor([[math.inf]])) == math.inf


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 4), st.floats(0.01, 0.3), st.integers(0, 10**6))
def test_no_jacobian_exceeds_the_lstm_constants(n, scale, seed):
    weights = random_lstm(n, 2, scale, seed)
    system = lstm_constants(*weights, input_bound=0.5)
    generator = torch.Generator().manual_seed(seed)
    smaller = shrunk_lstm(weights, 0.1 + 0.9 * float(torch.rand(1, generator=generator)))  # in the same set
    edge = box(weights, 0.5)
    x = inputs(2, 0.5, seed, T=1)[0]
    s, t = (edge * (2 * torch.rand(2 * n, generator=generator, dtype=torch.float64) - 1) for _ in range(2))

    def jacobians(s, w):
        in_s, in_x, *in_w = jacrev(lambda s, x, *w: after_one_step(x, s, w), tuple(range(6)))(s, x, *w)
        return in_s, in_x, torch.cat([j.flatten(1) for j in in_w], 1)

    def rows(matrix, order):
        return float(torch.linalg.vector_norm(matrix, ord=order, dim=1).max())

    (in_s, in_x, in_w), (at_t, _, w_at_t) = jacobians(s, weights), jacobians(t, weights)
    s_small, x_small, w_small = jacobians(s, smaller)
    apart, distance, slack = float((s - t).abs().max()), float((flatten(weights) - flatten(smaller)).norm()), 1 + 1e-9
    assert max(rows(in_s, 1), rows(s_small, 1)) <= system.lam * slack
    assert max(rows(in_x, 1), rows(x_small, 1)) <= system.L_x * slack
    assert max(rows(in_w, 2), rows(w_small, 2)) <= system.L_w * slack
    assert rows(in_s - at_t, 1) <= system.beta_hh * apart * slack
    assert rows(in_w - w_at_t, 2) <= system.beta_wh * apart * slack
    assert rows(in_s - s_small, 1) <= system.beta_hw * distance * slack
    assert rows(in_w - w_small, 2) <= system.beta_ww * distance * slack
    assert system.lam == pytest.approx(lstm_certificate(*weights, input_bound=0.5).lam)


def test_lstm_constants_are_nearly_reached():
    """One unit at its steepest: gates half open, everything linear. A factor of two in any constant would show."""
    weights = one_unit(g=(0.01, 0.0))
    system = lstm_constants(*weights, input_bound=0.0)
    s, x = torch.zeros(2).double(), torch.zeros(1).double()
    J = jacobian(weights, s, x)
    assert float(J.abs().sum(1).max()) == pytest.approx(system.lam, rel=1e-2)
    in_w = jacrev(lambda w: after_one_step(x, s, (*weights[:2], w)))(weights[2])
    assert float(in_w.norm(dim=1).max()) == pytest.approx(system.L_w, rel=2e-2)
    driven = (torch.tensor([[0.0], [0.0], [0.01], [0.0]]).double(), *one_unit()[1:])
    in_x = jacrev(lambda x: after_one_step(x, s, driven))(x)
    assert float(in_x.abs().max()) == pytest.approx(lstm_constants(*driven, input_bound=0.1).L_x, rel=1e-6)
    wide = one_unit(i=(0.0, 20.0), f=(0.0, 1.0), g=(0.0, 20.0))
    c, _ = lstm_states(torch.zeros(200, 1).double(), wide)
    bound = lstm_constants(*wide, input_bound=0.0).state_bound
    assert float(c.max()) == pytest.approx(bound) == pytest.approx(1 + math.e)


def test_smoothness_constants_of_an_lstm_are_reached():
    """One unit, moved so that each second derivative shows: a factor in any of the four betas would be seen."""
    s, x, eps = torch.zeros(2).double(), torch.zeros(1).double(), 1e-5

    def in_state(weights, s):
        return jacobian(weights, s, x)

    forgets = one_unit(f=(1.0, 0.0))
    bent = (in_state(forgets, s + eps) - in_state(forgets, s)).abs().sum(1).max() / eps
    assert float(bent) == pytest.approx(lstm_constants(*forgets, input_bound=0.0).beta_hh, rel=1e-3)

    U, W, b = silent = one_unit()
    system = lstm_constants(*silent, input_bound=0.0)

    def in_weights(s):
        by_W, by_b = jacrev(lambda W, b: after_one_step(x, s, (U, W, b)), (0, 1))(W, b)
        return torch.cat([by_W.flatten(1), by_b], 1)

    turned = (in_weights(s + eps) - in_weights(s)).norm(dim=1).max() / eps
    assert float(turned) == pytest.approx(system.beta_wh, rel=1e-3)
    step = torch.tensor([0.0, 0.25, 0.5, 0.0]).double() * eps / math.hypot(0.25, 0.5)  # b_f by 1, W_g by 2
    moved = (U, W + (step * torch.tensor([0, 0, 1, 0]))[:, None], b + step * torch.tensor([0, 1, 0, 0]))
    turned = (in_state(moved, s) - in_state(silent, s)).abs().sum(1).max() / eps
    assert float(turned) == pytest.approx(system.beta_hw, rel=1e-3)

    bend = math.atanh(1 / math.sqrt(3))  # where tanh'' is largest; the input gate open, the output gate shut
    U, W, b = steep = one_unit(i=(0.0, 12.0), g=(0.0, bend), o=(0.0, -12.0))
    hessian = jacfwd(jacrev(lambda b: after_one_step(x, s, (U, W, b))[0]))(b)
    bound = lstm_constants(*steep, input_bound=0.0).beta_ww
    assert 0.85 * bound < float(torch.linalg.matrix_norm(hessian, ord=2)) <= bound


def test_lstm_constants_hold_on_the_set_they_name_and_not_beyond():
    """A negative bias shuts a gate; a smaller modulus may open it, and there the constants of w say nothing."""
    x, s = torch.zeros(1).double(), torch.zeros(2).double()

    def in_bias(weights):
        return jacrev(lambda b: after_one_step(x, s, (*weights[:2], b)))(weights[2]).norm(dim=1).max()

    weights = one_unit(i=(0.0, -5.0), g=(0.0, 1.0))
    L_w = lstm_constants(*weights, input_bound=0.0).L_w
    assert float(in_bias(shrunk_lstm(weights, 0.5))) <= L_w < float(in_bias(one_unit(i=(0.0, 4.0), g=(0.0, 0.9))))
    _, _, b = shrunk_lstm(one_unit(i=(0.0, -5.0), f=(0.0, 2.0), g=(0.0, -1.0), o=(0.0, -3.0)), 0.5)
    assert b.tolist() == [-5.0, 1.0, -0.5, -3.0]


def test_derivatives_of_one_unit_are_bounded_entry_by_entry():
    """First and second derivatives of (c_+, h_+) in (a_i, a_f, a_g, a_o, c), with all gates up to 1 and |c| up to 2."""

    def unit(v):
        i, f, g, o, c = v
        c = torch.sigmoid(i) * torch.tanh(g) + torch.sigmoid(f) * c
        return torch.stack([c, torch.sigmoid(o) * torch.tanh(c)])

    generator = torch.Generator().manual_seed(0)
    points = 6 * torch.rand(20_000, 5, generator=generator, dtype=torch.float64) - 3
    points[:, 4] *= 2 / 3
    points = points[torch.vmap(unit)(points)[:, 0].abs() <= 2]
    one = torch.ones(1, dtype=torch.float64)
    slope, bend = _derivatives(GateBounds(one, one, one, one, 2 * one, one))
    first, second = (torch.vmap(d)(points).abs().amax(0) for d in (jacrev(unit), jacfwd(jacrev(unit))))
    for found, bound in ((first, slope[:, 0]), (second, bend[:, 0])):
        assert bool((found <= bound + 1e-12).all())
        assert bool(((found > 0) == (bound > 0)).all())
        assert float((found / bound).nan_to_num(nan=1.0).min()) > 0.2  # no entry is far from reached


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 4), st.floats(0.01, 0.25), st.integers(0, 10**6), st.integers(1, 8))
def test_lemmas_hold_for_the_lstm_itself(n, scale, seed, k):
    weights, x = random_lstm(n, 2, scale, seed), inputs(2, 0.5, seed, T=12)
    system = lstm_constants(*weights, input_bound=0.5)
    if not system.stable:
        return
    readout, target = torch.ones(1, n).double(), torch.ones(1).double()
    loss = squared_loss(readout, target, system)

    def gradient(x, weights):
        leaves = tuple(w.detach().requires_grad_() for w in weights)
        h = lstm_states(x, leaves)[1][-1]
        return flatten(torch.autograd.grad(0.5 * (readout @ h - target).square().sum(), leaves))

    whole, cut = (torch.stack(lstm_states(part, weights))[:, -1] for part in (x, x[-k:]))
    assert float((whole - cut).abs().max()) <= state_gap(system, k) + 1e-13
    assert float((gradient(x, weights) - gradient(x[-k:], weights)).norm()) <= gradient_gap(system, loss, k) + 1e-12
    other = shrunk_lstm(weights, 0.8)
    distance = float((flatten(weights) - flatten(other)).norm())
    assert float((gradient(x, weights) - gradient(x, other)).norm()) <= loss_smoothness(system, loss) * distance
    here, there = (torch.stack(lstm_states(x, w)) for w in (weights, other))
    assert float((here - there).abs().max()) <= trajectory_gap(system, distance)


def test_weights_of_torch_are_read_as_they_are():
    torch.manual_seed(0)
    lstm = nn.LSTM(3, 4).double()
    weights = tuple(p.detach() for p in lstm.parameters())
    x = torch.randn(20, 3).double()
    out, _ = lstm(x)
    assert torch.allclose(lstm_states(x, weights)[1][1:], out.detach())
    assert lstm_certificate(*lstm.parameters(), input_bound=1.0).lam > 0
    with pytest.raises(MnemoscopeError, match=r"\(4n, d\) and \(4n, n\); got \[\(12, 3\), \(12, 4\)\]"):
        lstm_certificate(*nn.GRU(3, 4).parameters(), input_bound=1.0)
