"""Lemmas 5-6, Corollary 1, Propositions 1-2 and Remarks 4-5 against a recurrence written from the equations."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd.functional import jacobian

from mnemoscope.errors import MnemoscopeError
from mnemoscope.theory.attention import (
    SelfAttentiveNet,
    X,
    Y,
    by_hops,
    decompose,
    gradient_by_hops,
    hidden_partial,
    macro_partial,
    path_factors,
    split_factors,
    total_derivatives,
)

MIXES = {
    "sum": lambda h, c: h + c,
    "mean": lambda h, c: (h + c) / 2,
    "product": lambda h, c: torch.tanh(h * c) + c / 3,
    "context only": lambda h, c: torch.sin(c),
}
NONLINEARITIES = {"tanh": torch.tanh, "relu": torch.relu, "identity": lambda z: z}


def weights(n, inputs, seed):
    generator = torch.Generator().manual_seed(seed)
    shapes = dict(V=(n, n), U=(n, inputs), b=(n,), W_a=(n, n), U_a=(n, n), v=(n,))
    return {name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in shapes.items()}


def psi(p, mix, hs, s_before, allowed):
    """Eqs 50-53 and 95: s_t from h_1 .. h_t and s_{t-1}."""
    e = {i: p["v"] @ torch.tanh(p["W_a"] @ s_before + p["U_a"] @ hs[i]) for i in allowed}
    normalizer = sum(torch.exp(e_i) for e_i in e.values())
    c = sum(torch.exp(e[i]) / normalizer * hs[i] for i in allowed)
    return mix(hs[-1], c)


def reference(p, phi, mix, x, allowed, t=None, h_t=None):
    """Eqs 9-10, h_t replaced by a value of its own: all s and h."""
    s, hs, ss = torch.zeros_like(p["b"]), [], []
    for step, x_t in enumerate(x):
        hs.append(h_t if step == t else phi(p["V"] @ s + p["U"] @ x_t + p["b"]))
        s = psi(p, mix, hs, s, allowed(step))
        ss.append(s)
    return torch.stack(ss), torch.stack(hs)


def everything(step):
    return range(step + 1)


def few(step):
    return sorted({step, max(step - 1, 0), *range(0, step, 3)})


def instance(n, T, seed, phi="tanh", mix="sum", allowed=everything):
    p = weights(n, 2, seed)
    x = torch.randn(T, 2, generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64)
    mask = torch.zeros(T, T, dtype=torch.bool)
    for step in range(T):
        mask[step, list(allowed(step))] = True
    net = SelfAttentiveNet(**p, phi=NONLINEARITIES[phi], f=MIXES[mix], attended=mask)
    return p, x, net.blocks(x)


@pytest.mark.parametrize("allowed", [everything, few])
@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("phi", NONLINEARITIES)
def test_total_derivative_is_autograds(phi, mix, allowed):
    p, x, blocks = instance(4, 9, seed=3, phi=phi, mix=mix, allowed=allowed)
    t = 2
    _, h = reference(p, NONLINEARITIES[phi], MIXES[mix], x, allowed)
    truth = jacobian(lambda h_t: reference(p, NONLINEARITIES[phi], MIXES[mix], x, allowed, t, h_t)[0], h[t])
    E, F = path_factors(blocks, t, 6)
    for k, C in enumerate(total_derivatives(E, F)):
        torch.testing.assert_close(C, truth[t + k], rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(decompose(blocks, t, k).sum(0), truth[t + k], rtol=1e-10, atol=1e-10)


@given(n=st.integers(1, 5), T=st.integers(2, 8), seed=st.integers(0, 1000), data=st.data())
@settings(max_examples=30, deadline=None)
def test_decompose_is_proposition_1_at_every_hop(n, T, seed, data):
    _, _, blocks = instance(n, T, seed, allowed=few)
    t = data.draw(st.integers(0, T - 1))
    k = data.draw(st.integers(0, T - 1 - t))
    by_enumerated_factors = by_hops(*path_factors(blocks, t, k))[k]
    torch.testing.assert_close(decompose(blocks, t, k), by_enumerated_factors, rtol=1e-10, atol=1e-10)
    first_two = torch.cat([by_enumerated_factors, torch.zeros(1, n, n)])[:2]
    torch.testing.assert_close(decompose(blocks, t, k, hops=1), first_two, rtol=1e-10, atol=1e-10)


@given(n=st.integers(1, 5), T=st.integers(1, 8), seed=st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_gradient_by_hops_pulls_back_every_hop(n, T, seed):
    """The loss reads s of all steps: dL/dh_t of s hops is the sum of readouts times decompose's terms."""
    _, _, blocks = instance(n, T, seed, mix="product")
    readout = torch.randn(T, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    found = gradient_by_hops(blocks, readout)
    for t in range(T):
        expected = torch.zeros(T, n, dtype=torch.float64)
        for k in range(T - t):
            expected[: k + 1] += readout[t + k] @ decompose(blocks, t, k)
        torch.testing.assert_close(found[:, t], expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(gradient_by_hops(blocks, readout, hops=1), torch.cat([found, 0 * found])[:2])


def test_gradient_by_hops_counts_a_direct_reading_as_no_hop():
    _, _, blocks = instance(3, 5, seed=0)
    readout, silence = torch.zeros(5, 3, dtype=torch.float64), torch.zeros(5, 3, dtype=torch.float64)
    readout[4] = 1
    found = gradient_by_hops(blocks, silence, readout)
    torch.testing.assert_close(found[0, 4], readout[4])
    onward = torch.zeros(5, 3, dtype=torch.float64)
    onward[3] = readout[4] @ blocks.J[3]  # h_4 is made from s_3: one hop more than s_3 itself
    torch.testing.assert_close(found[1:, :4], gradient_by_hops(blocks, onward)[:-1, :4])


@given(n=st.integers(1, 5), seed=st.integers(0, 1000), mix=st.sampled_from(sorted(MIXES)))
@settings(max_examples=25, deadline=None)
def test_lemmas_5_and_6_are_the_partial_derivatives_of_psi(n, seed, mix):
    p, x, blocks = instance(n, 6, seed, mix=mix)
    s, h = reference(p, torch.tanh, MIXES[mix], x, everything)
    t = 5
    by_s = jacobian(lambda before: psi(p, MIXES[mix], list(h), before, everything(t)), s[t - 1])
    by_h = jacobian(lambda hs: psi(p, MIXES[mix], list(hs), s[t - 1], everything(t)), h)  # (n, t + 1, n)
    torch.testing.assert_close(macro_partial(blocks, t), by_s, rtol=1e-10, atol=1e-10)
    summed = sum(blocks.attention[t, i] * Y(blocks, i, t) for i in range(t + 1))
    torch.testing.assert_close(blocks.f2[t] @ summed, by_s, rtol=1e-10, atol=1e-10)
    for j in range(t + 1):
        torch.testing.assert_close(hidden_partial(blocks, t, j), by_h[:, j], rtol=1e-10, atol=1e-10)


def test_X_is_what_moves_the_weights():
    """For f = h + c and j < k, Lemma 6 says ds_k/dh_j = alpha (I + X): X by finite differences."""
    p, x, blocks = instance(3, 4, seed=5)
    s, h = reference(p, torch.tanh, MIXES["sum"], x, everything)
    step, j = 1e-6, 1
    columns = []
    for unit in torch.eye(3, dtype=torch.float64) * step:
        sides = [[h_i + sign * unit * (i == j) for i, h_i in enumerate(h)] for sign in (1, -1)]
        plus, minus = (psi(p, MIXES["sum"], hs, s[2], everything(3)) for hs in sides)
        columns.append((plus - minus) / (2 * step))
    measured = torch.stack(columns, 1) / blocks.attention[3, j] - torch.eye(3)
    torch.testing.assert_close(X(blocks, j, 3), measured, rtol=1e-6, atol=1e-8)


def test_unattended_states_have_no_blocks():
    _, _, blocks = instance(3, 8, seed=1, allowed=few)
    assert not X(blocks, 2, 7).any()
    assert not Y(blocks, 2, 7).any()
    assert not hidden_partial(blocks, 7, 2).any()


@pytest.mark.parametrize("mix", MIXES)
def test_proposition_2_rebuilds_the_factors(mix):
    _, _, blocks = instance(3, 7, seed=2, mix=mix)
    t, k = 1, 5
    E, F = path_factors(blocks, t, k)
    skip_E, recurrent_E, skip_F, recurrent_F = split_factors(blocks, t, k)
    for i in range(k + 1):
        rebuilt = blocks.attention[t + i, t] * skip_E[i] + (i == 0) * recurrent_E
        torch.testing.assert_close(E[i], rebuilt)
        for j in range(i):
            rebuilt = blocks.attention[t + i, t + j + 1] * skip_F[i, j] + (j == i - 1) * recurrent_F[i]
            torch.testing.assert_close(F[i, j], rebuilt)


def test_proposition_2_with_the_printed_index_of_D_is_wrong():
    """Eq. 87 defines D_{k+1,j+1}; taken at its word, eq. 86 would multiply alpha_{t+j+1} by the D of step t + j."""
    _, _, blocks = instance(3, 7, seed=2)
    t, i, j = 1, 5, 3
    _, F = path_factors(blocks, t, i)
    literal = split_factors(blocks, t, i).skip_F[i, j - 1]
    rebuilt = blocks.attention[t + i, t + j + 1] * literal
    assert (rebuilt - F[i, j]).norm() > 0.1 * F[i, j].norm()


def test_lemma_2_with_the_printed_J_is_wrong():
    """The text's J_k = ds_{k+1}/dh_k instead of dh_{k+1}/ds_k."""
    p, x, blocks = instance(3, 6, seed=4)
    t, k = 1, 3
    _, h = reference(p, torch.tanh, MIXES["sum"], x, everything)
    truth = jacobian(lambda h_t: reference(p, torch.tanh, MIXES["sum"], x, everything, t, h_t)[0][t + k], h[t])
    E, F = path_factors(blocks, t, k)
    torch.testing.assert_close(total_derivatives(E, F)[k], truth, rtol=1e-10, atol=1e-10)
    printed = F.clone()
    for i in range(k):
        for j in range(i + 1):
            J = hidden_partial(blocks, t + j + 1, t + j)
            printed[i + 1, j] = hidden_partial(blocks, t + i + 1, t + j + 1) @ J
        printed[i + 1, i] += macro_partial(blocks, t + i + 1)
    assert (total_derivatives(E, printed)[k] - truth).norm() > 0.1 * truth.norm()


@pytest.mark.parametrize(("t", "k"), [(-1, 2), (0, -1), (3, 3)])
def test_spans_outside_the_run_are_named(t, k):
    _, _, blocks = instance(2, 6, seed=0)
    for ask in (decompose, path_factors, split_factors):
        with pytest.raises(MnemoscopeError, match=f"t \\+ k < 6; got t={t}, k={k}"):
            ask(blocks, t, k)


def test_bad_hops_and_gradients_are_named():
    _, _, blocks = instance(2, 6, seed=0)
    with pytest.raises(MnemoscopeError, match="at least 0; got -1"):
        decompose(blocks, 0, 3, hops=-1)
    with pytest.raises(MnemoscopeError, match=r"\(6, 2\) here; got \[2\]"):
        gradient_by_hops(blocks, torch.zeros(2, dtype=torch.float64))
