"""Questions 5 and 6: two forms of a recurrence, vanishing gradients, bidirectional gradients."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mnemoscope import theory
from mnemoscope.layers import RNN
from mnemoscope.theory._statement import STATEMENTS
from mnemoscope.theory.foundations import (
    Direction,
    activation_states,
    bidirectional_gradients,
    common_spectrum,
    computational_graph,
    gradient_bound,
    may_explode,
    preactivation_states,
)
from mnemoscope.theory.foundations._bidirectional import outputs, states
from mnemoscope.theory.foundations._vanishing import long_jacobian

seeds = st.integers(0, 10**6)


def random_tensors(seed, *shapes):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 5), st.integers(1, 10), st.sampled_from([torch.sigmoid, torch.tanh, torch.relu]), seeds)
def test_the_two_recurrences_are_one(n, T, phi, seed):
    W, drive, h = random_tensors(seed, (n, n), (T, n), (n,))
    assert torch.allclose(phi(preactivation_states(W, drive, h, phi)), activation_states(W, drive, phi(h), phi))


def test_the_layers_have_both_forms():
    W, drive, h = random_tensors(0, (3, 3), (6, 3), (3,))
    for preactivation, expected in ((True, preactivation_states), (False, activation_states)):
        layer = RNN(3, 3, bias=False, nonlinearity="sigmoid", preactivation=preactivation, dtype=torch.float64)
        with torch.no_grad():
            layer.weight_hh_l0.copy_(W)
            layer.weight_ih_l0.copy_(torch.eye(3))
            output, _ = layer(drive[:, None], h[None, None])
        assert torch.allclose(output[:, 0], expected(W, drive, h))


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 4), st.integers(1, 12), st.floats(0.1, 6), seeds)
def test_gradient_bound_holds(n, T, scale, seed):
    W, drive, h = random_tensors(seed, (n, n), (T, n), (n,))
    for phi, slope in ((torch.sigmoid, 0.25), (torch.tanh, 1.0)):
        size = float(torch.linalg.matrix_norm(long_jacobian(scale * W, drive, h, phi), ord=2))
        assert size <= gradient_bound(scale * W, slope, T) * (1 + 1e-9)


def test_gradient_bound_is_reached():
    """A scaled rotation and linear units; or tanh at the origin."""
    Q = 0.9 * torch.linalg.qr(random_tensors(1, (3, 3))[0])[0]
    zero = torch.zeros(7, 3).double()
    for phi in (torch.tanh, lambda z: z):
        size = float(torch.linalg.matrix_norm(long_jacobian(Q, zero, zero[0], phi), ord=2))
        assert size == pytest.approx(gradient_bound(Q, 1.0, 7)) == pytest.approx(0.9**7)


def test_a_large_singular_value_is_necessary_and_not_sufficient():
    zero = torch.zeros(100, 2).double()

    def size(W):
        return float(long_jacobian(W, zero, zero[0], lambda z: z).norm())

    rotation = torch.tensor([[0.0, -1.0], [1.0, 0.0]]).double()
    assert size(1.1 * rotation) > 1e4
    assert may_explode(1.1 * rotation, 1.0)
    between = 0.95 * rotation  # above the text's delta/gamma for delta = 0.9, and gradients vanish
    assert size(between) < 0.01
    assert not may_explode(between, 1.0)
    nilpotent = torch.tensor([[0.0, 50.0], [0.0, 0.0]]).double()
    assert may_explode(nilpotent, 1.0)
    assert size(nilpotent) == 0.0
    assert may_explode(5 * rotation, 0.25)
    assert not may_explode(3 * rotation, 0.25)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 5), st.integers(1, 5), seeds)
def test_common_spectrum(n, m, seed):
    (W,) = random_tensors(seed, (n, m))
    left, right = torch.linalg.eigvalsh(W @ W.T).flip(0), torch.linalg.eigvalsh(W.T @ W).flip(0)
    shared = common_spectrum(W)
    assert torch.allclose(left[: len(shared)], shared)
    assert torch.allclose(right[: len(shared)], shared)
    assert len(left) == len(right) or abs(len(left) - len(right)) == abs(n - m)


def test_the_printed_lemma_5_1_fails_for_a_wide_matrix():
    wide = torch.tensor([[1.0, 2.0]]).double()
    assert torch.linalg.eigvalsh(wide @ wide.T).tolist() == pytest.approx([5])
    assert torch.linalg.eigvalsh(wide.T @ wide).tolist() == pytest.approx([0, 5], abs=1e-12)
    assert common_spectrum(wide).tolist() == pytest.approx([5])


def directions(seed, n=3, d=2, m=2):
    return [Direction(*random_tensors(seed + i, (n, d), (n, n), (m, n))) for i in range(2)]


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 7), seeds)
def test_bidirectional_gradients(T, seed):
    """Any loss on the outputs: here sum cos(o_t). The gradient of a state is that of a zero added to it."""
    (x,) = random_tensors(seed, (T, 2))
    forward, backward = directions(seed)
    moves = torch.zeros(2, T, 3, dtype=torch.float64, requires_grad=True)
    h_f, h_b = moved_states(x, forward, moves[0]), moved_states(x.flip(0), backward, moves[1].flip(0)).flip(0)
    o = h_f @ forward.V.T + h_b @ backward.V.T
    assert torch.allclose(o, outputs(x, forward, backward)[0])
    (exact,) = torch.autograd.grad(o.cos().sum(), moves)
    slope = -o.detach().sin()
    assert torch.allclose(bidirectional_gradients(h_f.detach(), forward, slope), exact[0])
    assert torch.allclose(bidirectional_gradients(h_b.detach(), backward, slope, reverse=True), exact[1])


def moved_states(x, weights, moves):
    h, found = x.new_zeros(len(weights.U)), []
    for x_t, move in zip(x, moves, strict=True):
        h = torch.sigmoid(weights.W @ x_t + weights.U @ h) + move
        found.append(h)
    return torch.stack(found)


def test_equations_31_and_32_as_printed_lose_the_loss():
    """Without V^T grad_o the recursion, started from the last state's gradient, forgets all other outputs."""
    (x,) = random_tensors(0, (6, 2))
    forward, backward = directions(0)
    o, h, _ = outputs(x, forward, backward)
    exact = bidirectional_gradients(h, forward, o)
    printed = [exact[-1]]
    for t in reversed(range(5)):
        printed.insert(0, forward.U.T @ (h[t + 1] * (1 - h[t + 1]) * printed[0]))
    assert torch.allclose(printed[-1], exact[-1])
    assert float((torch.stack(printed)[:-1] - exact[:-1]).norm() / exact[:-1].norm()) > 0.5


def test_computational_graph_is_what_depends_on_what():
    """An input reaches an output by the graph exactly where the Jacobian is not zero; so for the states."""
    T = 4
    (x,) = random_tensors(0, (T, 2))
    forward, backward = directions(3)
    edges = computational_graph(T)
    reachable = {name: {name} for edge in edges for name in edge}
    for _ in reachable:
        for a, b in edges:
            reachable[a] |= reachable[b]
    kinds = {"f": lambda x: states(x, forward), "b": lambda x: states(x.flip(0), backward).flip(0)}
    kinds["o"] = lambda x: outputs(x, forward, backward)[0]
    for kind, run in kinds.items():
        J = torch.autograd.functional.jacobian(run, x)  # (T, ., T, d)
        for s in range(T):
            for t in range(T):
                assert (f"{kind}{s + 1}" in reachable[f"x{t + 1}"]) == bool(J[s, :, t].abs().max() > 0)


theory.load()
NAMES = [name for name, found in STATEMENTS.items() if found.paper == "Nabli 2019"]


def test_all_six_questions_are_there():
    assert sorted(NAMES) == [f"nabli-question-{i}" for i in range(1, 7)]


@pytest.mark.parametrize("name", NAMES)
def test_statement_holds(name):
    rows = list(STATEMENTS[name].check())
    assert rows
    assert [row for row in rows if not row.holds] == []
    assert all(math.isfinite(row.measured) for row in rows)
