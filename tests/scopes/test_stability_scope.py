import math
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from mnemoscope import GRU, LSTM, RNN, ExpRNN, LinearSystem, MemRNN
from mnemoscope.layers import project_
from mnemoscope.recurrence import leaves
from mnemoscope.scopes import stability
from mnemoscope.scopes._frame.subject import subject_of
from mnemoscope.scopes._measures.state_samples import sample_states
from mnemoscope.scopes._measures.state_vectors import flatten, jacobians, spectral_norms, unflatten
from mnemoscope.systems import DelayLine


def drawn(kind, n, scale, seed, **options):
    torch.manual_seed(seed)
    layer = kind(3, n, **options).double()
    with torch.no_grad():
        for p in layer.parameters():
            p.mul_(scale)
    return layer


@torch.no_grad()
def measured_ratios(layer, x, order):
    """One step from states of different sequences and times, both reading the same input: by the layer itself."""
    states = [layer(x[:t])[1] for t in (1, len(x) // 2, len(x))]
    ratios = []
    for one in states:
        for other in states:
            apart = torch.cat([a - b.roll(1, 1) for a, b in zip(leaves(one), leaves(other), strict=True)], -1)
            shifted = type(other)(t.roll(1, 1) for t in other) if isinstance(other, tuple) else other.roll(1, 1)
            moved = [leaves(layer.step(x[0], state)[1]) for state in (one, shifted)]
            after = torch.cat([a - b for a, b in zip(*moved, strict=True)], -1)
            norms = [torch.linalg.vector_norm(t[0], ord=order, dim=-1) for t in (after, apart)]
            ratios.append(float((norms[0] / norms[1].clamp(min=1e-9)).max()))
    return max(ratios)


@settings(deadline=None, max_examples=40)
@given(
    st.sampled_from([LinearSystem, RNN, LSTM]),
    st.integers(1, 8),
    st.floats(0.05, 3.0),
    st.integers(0, 999),
    st.sampled_from(["tanh", "relu", "sigmoid"]),
)
def test_certified_factor_bounds_measured_ratios(kind, n, scale, seed, phi):
    layer = drawn(kind, n, scale, seed, **({"nonlinearity": phi} if kind is RNN else {}))
    x = torch.randn(12, 4, 3, dtype=torch.float64)
    found = stability(layer, x, points=12)
    order = math.inf if kind is LSTM else 2
    assert found.figures["bound"] * (1 + 1e-9) >= measured_ratios(layer, x, order)
    if found.status == "certified":
        assert found.figures["lambda"] * (1 + 1e-9) >= found.figures.get("largest_ratio", 0.0)  # none if states are one
    assert (found.status == "certified") == (found.status_of("lambda") == "certified")
    assert found.status_of("bound") == "certified"


class OwnAdvance(RNN):
    def advance(self, w, u, h):
        return (super().advance(w, u, h)[0] + 2 * h,)


class OwnPhi(RNN):
    def phi(self, w, z):
        return 9 * super().phi(w, z)


class OwnProjection(LSTM):
    def project(self, w, x):
        return super().project(w, x) + 9


@pytest.mark.parametrize("kind", [OwnAdvance, OwnPhi, OwnProjection])
def test_not_certified_if_a_subclass_changes_the_equations(kind):
    found = stability(drawn(kind, 4, 0.1, 0), 0.1 * torch.randn(12, 4, 3, dtype=torch.float64))
    assert found.status == "estimated"
    assert "bound" not in found.figures


@pytest.mark.parametrize("nonlinearity", ["identity", "tanh"])
def test_rnn_certificate_is_the_spectral_norm(nonlinearity):
    layer = drawn(RNN, 6, 0.5, 0, nonlinearity=nonlinearity)
    found = stability(layer, torch.randn(10, 4, 3, dtype=torch.float64))
    norm = float(torch.linalg.matrix_norm(layer.weight_hh_l0.detach(), ord=2))
    assert found.status == "certified"
    assert found.figures["lambda"] == pytest.approx(norm)
    if nonlinearity == "identity":
        np.testing.assert_allclose(found.series["jacobian_norm"], norm)
    else:
        assert found.figures["largest_jacobian"] < norm


def test_unstable_linear_system():
    layer = drawn(LinearSystem, 4, 1.0, 0, bias=False)
    layer.weight_hh_l0.data = 2 * torch.eye(4, dtype=torch.float64)
    found = stability(layer, torch.randn(10, 4, 3, dtype=torch.float64))
    assert found.status == "estimated"
    assert found.labels["regime"] == "not contractive"
    assert found.figures["lambda"] == pytest.approx(2)
    size = math.sqrt(float(layer.weight_ih_l0.detach().square().sum()) + 16)
    assert found.figures["distance"] == pytest.approx(4**0.5 * (2 - 0.99) / size)
    assert found.figures["output_change"] > 0.1


def test_projected_lstm_is_certified():
    layer, x = drawn(LSTM, 6, 1.0, 0), torch.randn(10, 4, 3, dtype=torch.float64)
    assert stability(layer, x).status == "estimated"
    project_(layer, 0.9, input_bound=float(x.abs().max()))
    found = stability(layer, x, lam=0.9)
    assert found.status == "certified"
    assert found.figures["lambda"] <= 0.9
    assert found.figures["distance"] == found.figures["output_change"] == 0


def test_stack_is_certified_as_one_system():
    found = stability(drawn(RNN, 5, 0.5, 0, num_layers=3), torch.randn(10, 4, 3, dtype=torch.float64))
    assert found.status == "certified"
    assert len(found.series["factor"]) == 3
    assert found.series["factor"].max() < found.figures["lambda"] < 1
    assert found.labels["norm"] == "Euclidean norm"
    assert "Euclidean distance" in found.sentence


@pytest.mark.parametrize("layer", [GRU(3, 4), nn.GRU(3, 4), MemRNN(3, 4), nn.RNNCell(3, 4)], ids=str)
def test_other_models_are_estimated(layer):
    found = stability(layer, torch.randn(10, 4, 3))
    assert found.status == "estimated"
    assert "proofs are known for" in found.why
    assert len(found.series["jacobian_norm"]) == len(found.series["step"]) > 8


def test_orthogonal_recurrence_is_isometric():
    found = stability(ExpRNN(3, 6, nonlinearity="identity"), torch.randn(10, 4, 3))
    assert found.labels["regime"] == "isometric"


def test_torch_layer_has_the_same_certificate():
    ours = drawn(LSTM, 4, 0.1, 0)
    torchs = nn.LSTM(3, 4).double()
    torchs.load_state_dict(ours.state_dict())
    x = torch.randn(10, 4, 3, dtype=torch.float64)
    one, other = stability(ours, x), stability(torchs, x)
    assert one.figures == pytest.approx(other.figures)
    assert one.status == other.status == "certified"


def test_modrelu_is_certified_only_if_continuous():
    layer = drawn(RNN, 4, 0.5, 0, nonlinearity="modrelu")
    x = torch.randn(10, 4, 3, dtype=torch.float64)
    layer.bias_modrelu_l0.data.fill_(-0.01)
    assert stability(layer, x).status == "certified"
    layer.bias_modrelu_l0.data[0] = 0.01
    assert stability(layer, x).status == "estimated"


@pytest.mark.parametrize("layer", [RNN(3, 4, 2), LSTM(3, 4), MemRNN(3, 4)], ids=str)
def test_jacobians_equal_autograd(layer):
    layer = layer.double()
    x = torch.randn(6, 3, 3, dtype=torch.float64)
    with torch.no_grad():
        state = layer(x[:-1])[1]
    found = jacobians(layer, x[-1], state, rows=20)

    def move(vector):
        return flatten(layer.step(x[-1], unflatten(vector, state))[1])

    whole = torch.autograd.functional.jacobian(move, flatten(state))  # (B, D, B, D)
    for row in range(3):
        torch.testing.assert_close(found[row], whole[row, :, row])


def test_fewer_jacobians_for_large_states(monkeypatch):
    monkeypatch.setattr(sys.modules["mnemoscope.scopes._measures.state_samples"], "JACOBIAN_NUMBERS", 100)
    found = stability(nn.GRUCell(2, 5), torch.randn(40, 8, 2), points=30)
    assert len(found.series["jacobian_norm"]) == 4  # of 25 numbers each


@pytest.mark.parametrize("kind", [LSTM, MemRNN])
def test_sampled_states_are_those_of_the_steps_they_name(kind):
    torch.manual_seed(0)
    layer, x = kind(3, 8, dtype=torch.float64), torch.randn(20, 4, 3, dtype=torch.float64)
    state = layer.initial_state(4)
    states = []
    for x_t in x:
        states.append(flatten(state))
        state = layer.step(x_t, state)[1]
    samples = list(sample_states(subject_of(layer, x), 10, rows=2))
    assert [sample.step // 4 for sample in samples] == [0, 1, 2, 3, 4]  # one of each fifth
    for sample in samples:
        rows = [int((x[sample.step] == x_t).all(1).nonzero()) for x_t in sample.x]
        torch.testing.assert_close(flatten(sample.state), states[sample.step][rows])


def test_flatten_and_unflatten():
    state = tuple(torch.randn(2, 3, 4) for _ in range(2))
    for a, b in zip(state, unflatten(flatten(state), state), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(("count", "size"), [(3, 90), (4, 1024)])
def test_spectral_norms_without_svd_are_close_to_it(count, size):
    generator = torch.Generator().manual_seed(0)
    matrices = torch.randn(count, size, size, dtype=torch.float64, generator=generator)
    exact = torch.linalg.matrix_norm(matrices, ord=2)
    found = spectral_norms(matrices)
    assert bool((found <= exact * (1 + 1e-12)).all())
    torch.testing.assert_close(found, exact, rtol=1e-3, atol=0)


def test_spectral_norms_without_svd_of_matrices_that_end_a_krylov_space_early():
    zero = torch.zeros(100, 100, dtype=torch.float64)
    identity = torch.eye(100, dtype=torch.float64)
    rank_one = 2 * identity[:, :1] @ identity[3:4]
    shift = identity.roll(1, 0).tril()  # nilpotent
    found = spectral_norms(torch.stack([zero, identity, rank_one, shift]))
    assert found.tolist() == pytest.approx([0, 1, 2, 1])


def test_numbers_that_no_step_reads_belong_to_the_distance_of_states():
    """h = (x_1 + h_2, x_2): no step reads h_1, but a difference in h_2 is there again in h_1, as large as it was."""
    layer = RNN(2, 2, nonlinearity="relu", bias=False)
    with torch.no_grad():
        layer.weight_ih_l0.copy_(torch.eye(2))
        layer.weight_hh_l0.copy_(torch.tensor([[0.0, 1.0], [0.0, 0.0]]))
    found = stability(layer, torch.rand(20, 3, 2))
    assert found.figures["largest_jacobian"] == found.figures["typical_jacobian"] == 1
    assert found.labels["regime"] == "non-expansive on these sequences"


def test_a_shift_register_is_not_isometric():
    """It forgets its oldest number: one singular value of the Jacobian is 0, the others are 1."""
    found = stability(DelayLine(5), torch.randn(20, 3, 1, dtype=torch.float64))
    assert found.labels["regime"] == "non-expansive on these sequences"
    assert found.figures["largest_jacobian"] == pytest.approx(1)


def test_pairs_that_differ_by_rounding_alone_are_left_out():
    """Equal sequences lead through equal states; what the kernel rounds differently is no pair."""
    torch.manual_seed(0)
    layer = nn.RNN(2, 16)
    found = stability(layer, torch.zeros(60, 4, 2))
    assert found.figures["largest_ratio"] <= found.figures["bound"]
    assert found.figures["largest_ratio"] < 0.95


def test_an_infinite_bound_is_not_called_proved():
    found = stability(LSTM(2, 3), torch.full((10, 2, 2), 1e38))
    assert found.figures["bound"] == math.inf
    assert found.certified == ()


def test_a_stable_layer_inside_a_model_that_forgets_nothing():
    class Sum(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = RNN(3, 4, batch_first=True)
            self.layer.weight_hh_l0.data.mul_(0.1)

        def forward(self, x):
            return self.layer(x)[0].cumsum(1)

    model, x = Sum(), torch.randn(3, 20, 3)
    assert stability(model.layer, x).sentence.startswith("It is stable, and so forgets")
    found = stability(model, x)
    assert found.status == "certified"
    assert found.sentence.startswith("Its recurrent layer is stable, and so forgets")
