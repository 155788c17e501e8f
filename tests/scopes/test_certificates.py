"""Certificates: known counterexamples to the plain norms of layers, starts, norms, and the guard in the frame."""

import dataclasses
import re
import sys

import numpy as np
import pytest
import torch
from certified_models import attack_pairs, noise, starting_at, with_spectral_norms
from torch import nn

from mnemoscope import LSTM, RNN, LinearSystem, examine
from mnemoscope.scopes import stability, truncation
from mnemoscope.scopes._measures.certificates import StateNorm, certify
from mnemoscope.scopes._measures.state_vectors import jacobians, unflatten
from mnemoscope.scopes._stability import round_up
from mnemoscope.theory.stability import prediction_gap

# Stacks


def strong_coupling(seed=0):
    torch.manual_seed(seed)
    layer = with_spectral_norms(RNN(3, 5, 2).double(), 0.5)
    with torch.no_grad():
        layer.weight_ih_l1.mul_(20)
    return layer


def test_stack_with_large_weights_between_layers_is_not_certified_by_its_layers():
    """Each layer contracts by .5; an explicit pair of states of the stack is moved apart more than 3 times."""
    layer = strong_coupling()
    found = stability(layer, noise(20, 4, 3))
    ratios = attack_pairs(layer, StateNorm("Euclidean norm", torch.ones(1).double()), noise(1, 4, 3))
    assert ratios > 3
    assert found.series["factor"].tolist() == pytest.approx([0.5, 0.5])
    assert 0.5 < found.figures["lambda"] < 1
    assert "max over layers of ||h_l|| / w_l" in found.sentence
    assert found.figures["bound"] >= ratios
    assert found.figures["euclidean_constant"] * found.figures["lambda"] >= ratios


def test_stack_factor_is_that_of_the_matrix_of_layers():
    layer = strong_coupling()
    mu = float(torch.linalg.matrix_norm(layer.weight_ih_l1.detach(), ord=2))
    certificate = certify(layer, noise(5, 2, 3))
    matrix = np.array([[0.5, 0.0], [0.5 * mu, 0.5]])
    assert certificate.bound == pytest.approx(np.linalg.norm(matrix, 2))
    w = certificate.norm.weights.numpy()
    assert certificate.lam == pytest.approx((matrix @ w / w).max())
    assert certificate.norm.euclidean == pytest.approx(np.linalg.norm(w) / w.min())


def test_preactivation_stack_does_not_shrink_what_the_next_layer_reads():
    """V phi(h) + U x itself is read by the next layer: a sigmoid's 1/4 does not stand between them."""
    layer = with_spectral_norms(RNN(2, 3, 2, nonlinearity="sigmoid", preactivation=True).double(), 2.0)
    mu = float(torch.linalg.matrix_norm(layer.weight_ih_l1.detach(), ord=2))
    matrix = np.array([[0.5, 0.0], [0.5 * mu, 0.5]])
    assert certify(layer, noise(5, 2, 2)).bound == pytest.approx(np.linalg.norm(matrix, 2))


# Start states


def test_truncation_bound_counts_the_start_state():
    """.9 I that starts at 50: the truncated model starts there too, far from where the whole one is by then."""
    layer = starting_at(LinearSystem, 50.0)(2, 2, bias=False).double()
    layer.weight_hh_l0.data = 0.9 * torch.eye(2, dtype=torch.float64)
    layer.weight_ih_l0.data.fill_(0.01)
    found = truncation(layer, 0.01 * noise(40, 3, 2), windows=40)
    assert "certified_window" in found.certified
    assert found.series["output_error"].max() > 1
    assert (found.series["output_error"] <= found.series["output_bound"] * (1 + 1e-9)).all()


def test_lstm_bound_counts_the_start_of_its_cells():
    """With c_0 = 200 a step moves states apart many times, which small weights alone would exclude."""
    torch.manual_seed(1)
    layer = starting_at(LSTM, 200.0)(3, 4).double()
    with torch.no_grad():
        for p in layer.parameters():
            p.mul_(0.1)
    x = noise(20, 4, 3)
    found = stability(layer, x)
    assert found.figures["largest_jacobian"] > 1
    assert found.status == "estimated"
    assert stability(started_at_zero(layer), x).status == "certified"


def started_at_zero(layer):
    plain = LSTM(layer.input_size, layer.hidden_size, layer.num_layers).double()
    plain.load_state_dict(layer.state_dict(), strict=False)
    return plain


@pytest.mark.parametrize("kind", [LSTM, RNN])
def test_random_start_states_are_not_bounded(kind):
    layer = with_spectral_norms(starting_at(kind, 5.0, "random")(2, 3).double(), 0.05)
    assert not truncation(layer, 0.1 * noise(20, 3, 2)).certified
    if kind is LSTM:
        assert certify(layer, 0.1 * noise(20, 3, 2)) is None


def test_trained_start_state_has_no_gradient_bound():
    layer = with_spectral_norms(starting_at(RNN, 0.5, "learned")(2, 3).double(), 0.5)
    found = truncation(layer, noise(20, 3, 2))
    assert found.certified == ("certified_window",)
    assert "gradient_bound" not in found.series
    assert (found.series["output_error"] <= found.series["output_bound"] * (1 + 1e-9)).all()


class OwnState(nn.Module):
    """Hands its LSTM a state that the LSTM would not start from."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.layer = nn.LSTM(3, 4)
        with torch.no_grad():
            for p in self.layer.parameters():
                p.mul_(0.1)

    def forward(self, x):
        c = torch.full((1, x.shape[1], 4), 200.0)
        return self.layer(x, (torch.zeros_like(c), c))[0]


def test_lstm_that_is_handed_a_state_is_not_certified():
    assert stability(OwnState(), noise(12, 4, 3).float(), batch_first=False).status == "estimated"
    assert stability(OwnState().layer, noise(12, 4, 3).float()).status == "certified"


# Norms


def test_weighted_norm_is_named_with_its_euclidean_constant():
    """The distance in the weighted norm shrinks, the Euclidean one may grow at first: the sentence says both."""
    layer = started_at_zero(LSTM(2, 3).double())
    with torch.no_grad():
        for p in layer.parameters():
            p.mul_(0.1)
        layer.weight_hh_l0[6, 1] = 5.0  # g of unit 0 reads h of unit 1
    found = stability(layer, 0.1 * noise(12, 4, 2))
    assert found.status == "certified"
    assert found.figures["lambda"] < 1 < found.figures["bound"]
    assert "weighted infinity norm" in found.sentence
    assert found.labels["norm"] in found.sentence
    assert f"{round_up(found.figures['euclidean_constant'])} x" in found.sentence
    euclidean = attack_pairs(layer, StateNorm("Euclidean norm", torch.ones(1).double()), 0.1 * noise(1, 4, 2))
    assert 1 < euclidean <= found.figures["euclidean_constant"] * found.figures["lambda"]


def test_sentence_says_what_was_measured():
    """Spectral norms are stretches of small differences, not ratios of the distances of sampled pairs."""
    torch.manual_seed(0)
    layer = with_spectral_norms(nn.RNN(3, 8), 1.2)
    found = stability(layer, torch.randn(20, 4, 3))
    assert found.status == "estimated"
    assert found.figures["largest_ratio"] < 0.95 < found.figures["largest_jacobian"]
    assert f"by {found.figures['typical_ratio']:.3g} in the median" in found.sentence
    assert f"by {found.figures['largest_ratio']:.3g} at most" in found.sentence
    assert "spectral norm of the Jacobian" in found.sentence
    assert found.figures["typical_ratio"] == pytest.approx(np.median(found.series["ratio"]), rel=0.2)


@pytest.mark.parametrize("norm", [1, 2, 6])
def test_stretch_in_a_norm_is_that_of_a_direction(norm):
    """No direction is stretched more than the induced norm, and the reported stretch is reached by one."""
    w = torch.rand(norm, generator=torch.Generator().manual_seed(norm), dtype=torch.float64) + 0.5
    measured = StateNorm("n", w)
    J = noise(3, 6, 6, seed=norm)
    directions = noise(20000, 6, seed=9)
    moved = torch.einsum("bij,kj->bki", J, directions)
    seen = (measured.of(moved) / measured.of(directions)).amax(1)
    found = measured.stretch(J)
    if norm in (1, 6):
        assert bool((seen <= found * (1 + 1e-12)).all())
    assert bool((found >= 0.7 * seen).all())


@pytest.mark.parametrize(("value", "shown"), [(0.5, "0.5"), (0.5004, "0.501"), (0.9996, "1"), (12.31, "12.4")])
def test_rounding_of_an_upper_bound_is_upwards(value, shown):
    assert round_up(value) == shown


# The name of a non-linearity, and half precision


def test_renamed_nonlinearity_is_not_believed():
    layer = with_spectral_norms(RNN(2, 3).double(), 2.0)
    layer.nonlinearity = "sigmoid"  # still tanh: 2 / 4 would be below 1
    assert certify(layer, noise(5, 2, 2)) is None


def test_half_precision_is_not_certified():
    layer = with_spectral_norms(RNN(2, 3), 0.5).bfloat16()
    assert certify(layer, noise(5, 2, 2).bfloat16()) is None


def test_readout_that_does_not_say_it_is_affine_has_no_bound():
    class Model(nn.Module):
        output_size = 3

        def __init__(self):
            super().__init__()
            self.layer = with_spectral_norms(RNN(2, 3).double(), 0.5)

        def embed(self, x):
            return x

        def read(self, h, x):
            return torch.where(h.abs() > 50, 1e6 * h, h)  # as good as linear on any sample

    assert not truncation(Model(), noise(20, 3, 2)).certified


# The guard


def halved(certificate):
    return dataclasses.replace(certificate, lam=certificate.lam / 2, bound=certificate.bound / 2)


@pytest.mark.parametrize("kind", [LinearSystem, LSTM])
@pytest.mark.parametrize("layers", [1, 2])
def test_false_certificate_fails_loudly(monkeypatch, kind, layers):
    """A factor that is half of what was proved: measurements in the same run exceed it."""
    torch.manual_seed(0)
    layer = kind(2, 3, layers).double()
    with torch.no_grad():
        for p in layer.parameters():
            p.mul_(0.2)
    x = noise(12, 4, 2)
    assert stability(layer, x).status == "certified"
    module = sys.modules["mnemoscope.scopes._stability"]
    monkeypatch.setattr(module, "certify", lambda *args: halved(halved(certify(*args))))
    found = stability(layer, x)
    assert found.status == "failed"
    assert "certified to be at most" in found.why
    assert "please report it" in found.sentence
    assert "please report it" in found.warnings[0]
    assert examine(layer, x, scopes=["stability"])["stability"].status == "failed"


def test_certificate_that_lyapunov_exponents_contradict_fails(monkeypatch):
    """.9 I passed off as .5, with nothing measured in `stability` itself: its exponents of ln .9 give it away."""
    layer = LinearSystem(2, 2).double()
    layer.weight_hh_l0.data = 0.9 * torch.eye(2, dtype=torch.float64)
    scopes = ["stability", "lyapunov"]
    assert examine(layer, noise(60, 4, 2), scopes=scopes)["stability"].status == "certified"
    module = sys.modules["mnemoscope.scopes._stability"]
    monkeypatch.setattr(module, "_check", lambda *args: None)
    monkeypatch.setattr(module, "certify", lambda *args: dataclasses.replace(certify(*args), lam=0.5, bound=0.5))
    found = examine(layer, noise(60, 4, 2), scopes=scopes)["stability"]
    assert found.status == "failed"
    assert "Lyapunov exponent is certified" in found.why


def test_false_truncation_bound_fails_loudly(monkeypatch):
    layer = with_spectral_norms(LinearSystem(1, 1, bias=False).double(), 0.9)
    module = sys.modules["mnemoscope.scopes._measures.truncation_bounds"]
    monkeypatch.setattr(module, "prediction_gap", lambda *args: prediction_gap(*args) / 30)
    assert truncation(layer, torch.ones(30, 2, 1, dtype=torch.float64)).status == "failed"


def test_jacobian_in_the_norm_of_a_stack_is_below_its_factor():
    layer = strong_coupling()
    certificate = certify(layer, noise(5, 2, 3))
    like = unflatten(noise(8, 10), layer.initial_state(8))
    matrices = jacobians(layer, noise(8, 3, seed=4), like)
    assert float(certificate.norm.stretch(matrices).max()) <= certificate.lam
    assert float(certificate.plain.stretch(matrices).max()) <= certificate.bound


@pytest.mark.parametrize("make", [nn.LSTM, LSTM])
def test_an_lstm_with_projections_is_measured_and_not_certified(make):
    layer = make(2, 4, proj_size=3).double()
    found = examine(layer, noise(12, 2, 2), scopes=["stability", "truncation"])
    assert [finding.status for finding in found] == ["estimated", "estimated"]
    assert not any(finding.certified for finding in found)


@pytest.mark.parametrize("factor", [0.9994, 0.99999])
def test_a_factor_near_one_is_not_said_to_be_one(factor):
    torch.manual_seed(0)
    layer = RNN(3, 4)
    with torch.no_grad():
        layer.weight_hh_l0.copy_(factor * torch.linalg.qr(torch.randn(4, 4)).Q)
    found = stability(layer, torch.randn(20, 2, 3))
    assert found.status == "certified"
    said = re.search(r"at most ([\d.]+) of", found.sentence)
    assert said is not None
    assert found.figures["lambda"] <= float(said[1]) < 1


def test_an_orthogonal_matrix_whose_norm_rounds_below_one_is_not_stable():
    """In exact fractions the matrix of seed 174 stretches a direction; LAPACK's norm of it is a last digit below 1."""
    inputs = noise(20, 2, 3)
    layer = RNN(3, 4).double()
    for seed in range(200):
        draw = torch.randn(4, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        with torch.no_grad():
            layer.weight_hh_l0.copy_(torch.linalg.qr(draw).Q)
        assert not certify(layer, inputs).stable
    with torch.no_grad():
        layer.weight_hh_l0.mul_(1 - 1e-15)
    assert not truncation(layer, inputs).certified
