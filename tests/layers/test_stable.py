"""Projections onto stable sets: no-ops inside, nearest points outside, right gradients, certified by the theory."""

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.autograd import gradcheck, gradgradcheck
from torch.func import jacrev
from torch.utils._python_dispatch import TorchDispatchMode

from mnemoscope.errors import MnemoscopeError
from mnemoscope.layers import GRU, LSTM, RNN, ExpRNN, LinearSystem, MemLSTM, MemRNN
from mnemoscope.layers._spectral import cut_by_products
from mnemoscope.layers._stable import RowBalls, SpectralBall, project_, project_rows, stable
from mnemoscope.theory.stability import lstm_certificate, rnn_constants, satisfies_proposition_5

PLAIN = [LinearSystem, RNN, nn.RNN]
GATED = [LSTM, nn.LSTM]


def make(kind, n=5, d=3, scale=3.0, **options):
    torch.manual_seed(0)
    layer = kind(d, n, **options)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.mul_(scale)
    return layer


def weights(layer, suffix="l0"):
    names = [f"{kind}_{suffix}" for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
    return [getattr(layer, name) for name in names if hasattr(layer, name)]


def norm(layer):
    return float(torch.linalg.matrix_norm(layer.weight_hh_l0.detach(), ord=2))


def snapshot(layer):
    return {name: value.clone() for name, value in layer.state_dict().items()}


@pytest.mark.parametrize("kind", PLAIN)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_projected_rnn_is_certified(kind, dtype):
    layer = make(kind, num_layers=2, bidirectional=True).to(dtype)
    assert project_(layer, 0.9) is layer
    for suffix in ("l0", "l1", "l0_reverse", "l1_reverse"):
        U, V, *biases = weights(layer, suffix)
        system = rnn_constants(U, V, *biases, input_bound=1.0, nonlinearity="identity")
        assert system.lam <= 0.9
        assert system.lam == pytest.approx(0.9, rel=1e-5)  # it was far outside: now it lies on the boundary


@pytest.mark.parametrize("kind", GATED)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("lam", "forget"), [(0.99, 2 / 3), (0.95, 0.8), (0.9, 0.6)])
def test_projected_lstm_is_certified(kind, bias, lam, forget):
    """The theory's factor, computed from the weights by itself, is below the lam that was asked for."""
    layer = project_(make(kind, bias=bias, num_layers=2), lam, input_bound=2.0, forget=forget)
    for suffix, bound in (("l0", 2.0), ("l1", 1.0)):
        found = lstm_certificate(*weights(layer, suffix), input_bound=bound)
        assert found.forget <= forget + 1e-6
        assert found.proposition_5 <= lam + 1e-6
        assert found.proposition_5 > 0.97 * lam  # no more is taken than the condition asks
        assert satisfies_proposition_5(*weights(layer, suffix), input_bound=bound)


@pytest.mark.parametrize("kind", PLAIN + GATED)
def test_weights_inside_the_set_are_unchanged_bitwise(kind):
    layer = make(kind, scale=0.01)
    before = snapshot(layer)
    versions = [p._version for p in layer.parameters()]
    project_(layer)
    assert all(torch.equal(before[name], value) for name, value in layer.state_dict().items())
    assert versions == [p._version for p in layer.parameters()]
    if kind not in (nn.RNN, nn.LSTM):
        x = torch.randn(6, 2, 3)
        output = layer(x)[0]
        stable(layer)
        assert torch.equal(layer.weight_hh_l0, before["weight_hh_l0"])
        assert torch.equal(layer(x)[0], output)


@pytest.mark.parametrize("kind", PLAIN + GATED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n", [1, 3, 64])
def test_projecting_twice_is_projecting_once(kind, dtype, n):
    layer = project_(make(kind, n=n, scale=5.0).to(dtype))
    before = snapshot(layer)
    project_(layer)
    assert all(torch.equal(before[name], value) for name, value in layer.state_dict().items())


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 6), st.floats(0.01, 5), st.integers(0, 10**6))
def test_rows_go_to_their_nearest_point(m, radius, seed):
    """The projection p of v satisfies (v - p) . (q - p) <= 0 for every q of the ball: its corners suffice."""
    draw = torch.Generator().manual_seed(seed)
    v = 3 * torch.randn(4, m, generator=draw, dtype=torch.float64)
    p = project_rows(v, radius)
    assert bool((p.abs().sum(1) <= radius).all())
    corners = radius * torch.cat([torch.eye(m), -torch.eye(m)]).double()
    moves = ((v - p)[:, None] * (corners[None] - p[:, None])).sum(-1)
    assert float(moves.max()) <= 1e-9 * radius
    inside = v.abs().sum(1) <= radius
    assert torch.equal(p[inside], v[inside])


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 5), st.floats(0.05, 3), st.integers(0, 10**6))
def test_matrices_go_to_their_nearest_point(n, radius, seed):
    """<X - P, Q - P> <= 0 for every Q of the spectral ball; the worst Q is radius times the polar factor of X - P."""
    draw = torch.Generator().manual_seed(seed)
    X = torch.randn(n, n, generator=draw, dtype=torch.float64)
    P = SpectralBall(radius)(X)
    assert float(torch.linalg.matrix_norm(P, ord=2)) <= radius * (1 + 1e-12)
    away = X - P
    worst = radius * torch.linalg.matrix_norm(away, ord="nuc") - (away * P).sum()
    assert float(worst) <= 1e-9


def matrix_of(values, seed=0):
    """A matrix with these singular values, in random directions."""
    draw = torch.Generator().manual_seed(seed)
    n = len(values)
    U, V = (torch.linalg.qr(torch.randn(n, n, generator=draw, dtype=torch.float64))[0] for _ in range(2))
    return (U * torch.tensor(values, dtype=torch.float64)) @ V


SPECTRA = {
    "one": [1.5],
    "some above": [3.0, 1.2, 1.0001, 0.9999, 0.5, 0.01],
    "rank-deficient": [2.0, 0.5, 0.0, 0.0, 0.0],
    "zero but one": [1.1, 0.0, 0.0],
    "all at the radius": [1.0] * 6,
    "all just above": [1.0 + 1e-6] * 6,
    "all above": [2.0] * 6,
    "near the radius": [1 + d for d in (1e-3, 1e-5, 1e-7, 1e-9, -1e-9, -1e-7, -1e-5)],
    "wide": [2.5, 1.0, 1e-4, 1e-8, 1e-12],
    "an update of a network on the border": [1.01] * 20 + [1.0] * 20 + [0.3] * 40,
}


@pytest.mark.parametrize("spectrum", SPECTRA.values(), ids=SPECTRA)
@pytest.mark.parametrize("radius", [1.0, 0.03, 40.0])
def test_matrix_products_cut_the_spectrum_as_an_svd_does(spectrum, radius):
    for seed in range(3):
        X = radius * matrix_of(spectrum, seed)
        U, S, V = torch.linalg.svd(X)
        P = cut_by_products(X, radius, radius)
        assert P is not None
        torch.testing.assert_close(P, (U * S.clamp(max=radius)) @ V, rtol=0, atol=1e-7 * radius)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 12), st.floats(0.4, 3), st.integers(0, 10**6))
def test_matrix_products_give_the_projection_of_float32(n, size, seed):
    """As `project_` calls them on a GPU: never outside afterwards, unchanged inside, and the nearest to rounding."""
    draw = torch.Generator().manual_seed(seed)
    X = size * torch.randn(n, n, generator=draw) / math.sqrt(n)
    onto = 1 - 2e-6
    P = cut_by_products(X, 1.0, onto)
    if P is None:  # far outside
        assert float(torch.linalg.matrix_norm(X, ord=2)) > 2
        return
    assert P.dtype == torch.float32
    assert float(torch.linalg.matrix_norm(P.double(), ord=2)) <= 1
    assert torch.equal(cut_by_products(P, 1.0, onto), P)
    torch.testing.assert_close(P, SpectralBall(1.0)(X), rtol=0, atol=1e-5)
    if float(torch.linalg.matrix_norm(X.double(), ord=2)) < 1 - 1e-6:
        assert torch.equal(P, X)


@pytest.mark.parametrize("size", [0.0, 1e-30, 1e-3, 0.606, 0.9])  # 0.606: just too small for its own scale
def test_matrix_products_change_nothing_far_inside(size):
    X = size * torch.linalg.qr(torch.randn(6, 6, generator=torch.Generator().manual_seed(0))).Q
    assert torch.equal(cut_by_products(X, 1.0, 1 - 2e-6), X)


class Operations(TorchDispatchMode):
    """Keeps the names of all operations, in order."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def test_matrix_products_are_all_queued_before_a_gpu_is_waited_for():
    """`_local_scalar_dense` is a number that Python reads: there is one, at the end."""
    with Operations() as seen:
        assert cut_by_products(1.1 * torch.eye(4), 1.0, 1.0) is not None
    assert "mm" in seen.names
    assert seen.names.index("_local_scalar_dense") == len(seen.names) - 1


@pytest.mark.parametrize("kind", GATED)
def test_rows_are_projected_on_a_gpu_without_waiting_for_it(kind):
    """Of a tensor without data nothing can be read: whatever would wait for a GPU fails."""
    project_(make(kind).to("meta"))
    ball = RowBalls(0.5, math.inf)
    weight = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    assert torch.equal(ball(weight), ball.nearest(weight))  # what a GPU does, and the CPU


@pytest.mark.parametrize("bad", [1e30, math.inf, math.nan])
def test_matrix_products_leave_what_is_far_outside_to_others(bad):
    X = torch.eye(4)
    X[1, 2] = bad
    assert cut_by_products(X, 1.0, 1.0) is None


@pytest.mark.cuda
@pytest.mark.parametrize("kind", PLAIN + GATED)
@pytest.mark.parametrize("scale", [0.01, 2.0, 1e3])
def test_a_gpu_projects_as_the_cpu_does(kind, scale):
    layer = make(kind, n=32, scale=scale)
    on_gpu = project_(copy.deepcopy(layer).cuda())
    for name, value in project_(layer).state_dict().items():
        torch.testing.assert_close(on_gpu.state_dict()[name].cpu(), value, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", PLAIN + GATED)
def test_weights_that_are_not_finite_stay_as_they_are(kind):
    """The loss tells of them: a run ends as diverged, not with an error of the projection."""
    layer = make(kind)
    with torch.no_grad():
        layer.weight_hh_l0[0, 0] = math.nan
    project_(layer)
    assert bool(layer.weight_hh_l0[0, 0].isnan())


def test_gradients_of_the_projections():
    torch.manual_seed(1)
    X = 2 * torch.randn(4, 4, dtype=torch.float64)
    for radius in (0.5, 1.5, 3.0, 100.0):
        point = X.clone().requires_grad_()
        assert gradcheck(SpectralBall(radius), point, check_forward_ad=True)
        assert gradgradcheck(SpectralBall(radius), point)
        assert gradcheck(RowBalls(radius, math.inf), point)


def test_gradient_where_singular_values_are_equal():
    """Twice an orthogonal matrix: differentiating through the SVD gives NaN, the projection has a derivative."""
    Q = torch.linalg.qr(torch.randn(4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))[0]
    J = jacrev(SpectralBall(1.0))(2 * Q).flatten(2).flatten(0, 1)
    assert bool(torch.isfinite(J).all())
    move = 1e-6 * torch.randn(4, 4, dtype=torch.float64)
    moved = SpectralBall(1.0)(2 * Q + move) - SpectralBall(1.0)(2 * Q)
    assert torch.allclose(moved.flatten(), J @ move.flatten(), atol=1e-11)


def test_gradient_inside_is_the_identity():
    G = torch.randn(3, 3, dtype=torch.float64)
    for ball in (SpectralBall(50.0), RowBalls(50.0)):
        X = torch.randn(3, 3, dtype=torch.float64, requires_grad=True)
        assert torch.equal(torch.autograd.grad(ball(X), X, G)[0], G)


@pytest.mark.parametrize("kind", [LinearSystem, RNN, LSTM])
def test_a_parametrized_layer_trains_inside_its_set(kind):
    layer = stable(make(kind), 0.9, forget=0.7)
    x, target = torch.randn(8, 4, 3), torch.randn(8, 4, 5)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.02)
    losses = []
    for _ in range(15):
        optimizer.zero_grad()
        loss = (layer(x)[0] - target).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    if kind is LSTM:
        assert lstm_certificate(*weights(layer), input_bound=1.0).proposition_5 <= 0.9 + 1e-6
    else:
        assert rnn_constants(*weights(layer), input_bound=1.0).lam <= 0.9 + 1e-6


def test_projection_after_the_optimizer_keeps_a_layer_stable():
    layer = make(nn.LSTM, scale=1.0)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        layer(torch.rand(6, 2, 3))[0].square().sum().neg().backward()
        optimizer.step()
        assert lstm_certificate(*weights(project_(layer)), input_bound=1.0).stable


def test_lipschitz_constants_widen_the_ball():
    assert norm(project_(make(RNN, nonlinearity="sigmoid", scale=9.0))) == pytest.approx(4 * 0.99, rel=1e-5)
    own = make(RNN, nonlinearity=lambda z: torch.sin(2 * z))
    with pytest.raises(MnemoscopeError, match="Lipschitz constant"):
        project_(own)
    assert norm(project_(own, 0.8, lipschitz=2.0)) == pytest.approx(0.4, rel=1e-5)


def test_states_above_the_first_layer_count_with_their_dropout():
    layer = make(LSTM, num_layers=2, dropout=0.5, scale=9.0)
    project_(layer)
    first, second = (getattr(layer, f"weight_ih_l{i}")[5:10].abs().sum(1).max().item() for i in range(2))
    assert second == pytest.approx(first / 2, rel=1e-5)


OTHERS = [GRU(2, 3), nn.GRU(2, 3), MemRNN(2, 3), MemLSTM(2, 3), nn.LSTM(2, 4, proj_size=3), nn.Linear(2, 2)]


@pytest.mark.parametrize("layer", OTHERS, ids=lambda layer: type(layer).__name__)
def test_other_layers_are_refused(layer):
    with pytest.raises(TypeError, match=f"got {type(layer).__name__}"):
        project_(layer)


def test_stable_errors():
    with pytest.raises(TypeError, match="use project_"):
        stable(nn.LSTM(2, 3))
    with pytest.raises(MnemoscopeError, match="parametrized already"):
        project_(stable(RNN(2, 3)))
    with pytest.raises(MnemoscopeError, match="parametrized already"):
        project_(ExpRNN(2, 4, nonlinearity="tanh"))
    with pytest.raises(MnemoscopeError, match="Lipschitz constant"):
        project_(RNN(2, 3, nonlinearity="modrelu"))
    with pytest.raises(MnemoscopeError, match=r"got 1\.1"):
        project_(RNN(2, 3), 1.1)
    with pytest.raises(MnemoscopeError, match="forget must lie between"):
        project_(LSTM(2, 3), 0.9, forget=0.95)
    for bound in (0.0, math.inf, math.nan):  # no set of an LSTM is stable for unbounded inputs
        with pytest.raises(MnemoscopeError, match=f"input_bound must be positive and finite; got {bound}"):
            project_(LSTM(2, 3), input_bound=bound)
    for constant in (0, -1.0, math.inf, math.nan):
        with pytest.raises(MnemoscopeError, match=f"lipschitz must be positive and finite; got {constant}"):
            stable(RNN(2, 3, nonlinearity=torch.sin), lipschitz=constant)


def test_a_stable_layer_is_saved_and_loaded():
    first, second = stable(make(LSTM)), stable(LSTM(3, 5))
    second.load_state_dict(first.state_dict())
    assert torch.equal(first.weight_hh_l0, second.weight_hh_l0)
    assert "RowBalls(0.323" in repr(first)


@pytest.mark.parametrize("kind", [RNN, LSTM])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("n", [8, 300])
def test_half_precision_stays_in_the_set_and_moves_once(kind, dtype, n):
    layer = kind(3, n)
    with torch.no_grad():
        layer.weight_hh_l0.mul_(10)
    layer = project_(layer.to(dtype))
    weight = layer.weight_hh_l0.detach()
    if kind is RNN:
        size = torch.linalg.matrix_norm(weight.double(), 2)
        assert 0.85 < size <= 0.99
    else:
        size = weight.double().abs().sum(-1)[:n]  # the input gate's rows, within lam - forget
        assert (size <= 0.99 - 2 / 3 + 1e-9).all()
        assert size.min() > 0.28
    assert torch.equal(project_(layer).weight_hh_l0, weight)


@pytest.mark.parametrize("kind", [RNN, LSTM])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_parametrized_layer_trains_in_half_precision(kind, dtype):
    parametrized = stable(make(kind).to(dtype))
    parametrized(torch.randn(4, 2, 3).to(dtype))[0].sum().backward()
    assert parametrized.parametrizations.weight_hh_l0.original.grad.isfinite().all()


def test_nan_row_spoils_no_other_row():
    layer = LSTM(3, 4)
    with torch.no_grad():
        layer.weight_hh_l0.mul_(10)
        expected = project_(copy.deepcopy(layer)).weight_hh_l0
        layer.weight_hh_l0[1, 2] = float("nan")
    project_(layer)
    assert layer.weight_hh_l0[1].isnan().any()
    assert torch.equal(layer.weight_hh_l0[[0, *range(2, 16)]], expected[[0, *range(2, 16)]])


def test_a_subclass_with_equations_of_its_own_is_refused():
    class Thrice(RNN):
        def advance(self, w, u, h):
            return super().advance(w, u, 3 * h)

    with pytest.raises(TypeError, match="the stable sets are known for"):
        stable(Thrice(3, 4))


def test_dropout_of_everything_bounds_what_is_left_in_evaluation():
    layer = project_(LSTM(3, 4, num_layers=2, dropout=1.0))
    assert layer.weight_ih_l1.isfinite().all()
