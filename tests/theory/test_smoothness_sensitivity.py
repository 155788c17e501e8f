"""Derivatives carried forward equal those carried backward (eqs 12, 13, 22)."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd.functional import jacobian

from mnemoscope.theory.smoothness._sensitivity import cost_gradient, sensitivities, simulate, tanh_network, unrolled


def network(n, d, m, seed, steps):
    generator = torch.Generator().manual_seed(seed)
    f, g, size = tanh_network(n, d, m)
    shapes = ((size,), (n,), (steps, d), (steps, m))
    return f, g, *(torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 3), st.integers(1, 3), st.integers(2, 6), st.integers(0, 10**6))
def test_forward_sensitivities_equal_backpropagation(n, m, steps, seed):
    f, g, theta, x, u, y = network(n, 2, m, seed, steps)
    run = sensitivities(f, g, theta, x, u)
    states, outputs = simulate(f, g, theta, x, u)
    assert torch.equal(run.states, states)
    assert torch.equal(run.outputs, outputs)
    assert torch.allclose(run.D, jacobian(lambda theta: simulate(f, g, theta, x, u)[0], theta), atol=1e-10)
    assert torch.allclose(run.J, jacobian(lambda theta: simulate(f, g, theta, x, u)[1], theta), atol=1e-10)
    leaf = theta.clone().requires_grad_()
    V = (simulate(f, g, leaf, x, u)[1] - y)[1:].square().sum(1).mean()
    assert torch.allclose(cost_gradient(run.J[1:], 2 * (outputs - y)[1:]), torch.autograd.grad(V, leaf)[0], atol=1e-9)


def test_an_lstm_step_is_carried_forward_too():
    """Any f and g: here an LSTM's (c, h) with all of its recurrent weights in theta."""
    cell = torch.nn.LSTMCell(1, 2).double()
    weights = {name: p.detach() for name, p in cell.named_parameters()}

    def f(s, u, theta):
        moved = {**weights, "weight_hh": theta.view(8, 2)}
        h, c = torch.func.functional_call(cell, moved, (u[None], (s[None, :2], s[None, 2:])))
        return torch.cat([h[0], c[0]])

    theta, s, u = weights["weight_hh"].flatten(), torch.zeros(4).double(), torch.randn(5, 1).double()
    run = sensitivities(f, lambda s, u, theta: s[:2], theta, s, u)
    exact = jacobian(lambda theta: simulate(f, lambda s, u, theta: s[:2], theta, s, u)[1], theta)
    assert torch.allclose(run.J, exact, atol=1e-10)


def test_equation_22_and_its_printed_form():
    f, g, theta, x, u, _ = network(3, 2, 2, 0, 5)
    run = sensitivities(f, g, theta, x, u)

    def partials(m):
        steps = zip(run.states, u, strict=True)
        found = [jacobian(lambda x, theta, v=v: m(x, v, theta), (s, theta)) for s, v in steps]
        return [torch.stack(parts) for parts in zip(*found, strict=True)]

    (A, B), (C, F) = partials(f), partials(g)
    assert torch.allclose(unrolled(A, B, C, F), run.J, atol=1e-10)
    t = 3
    printed = torch.zeros_like(B[0])
    for l in range(1, t + 1):  # the text: l = 1 .. t over A_t ... A_{l+1} B_l
        term = B[l]
        for j in range(l + 1, t + 1):
            term = A[j] @ term
        printed = printed + term
    assert float((C[t] @ printed + F[t] - run.J[t]).norm() / run.J[t].norm()) > 0.05


def test_equation_13_needs_the_transpose():
    """J_t is (outputs, parameters): J_t l' as printed does not even have the shape of a gradient."""
    J, slopes = torch.randn(4, 2, 5).double(), torch.randn(4, 2).double()
    expected = sum(J[t].T @ slopes[t] for t in range(4)) / 4
    assert torch.allclose(cost_gradient(J, slopes), expected)
    with pytest.raises(RuntimeError):
        J[0] @ slopes[0]
