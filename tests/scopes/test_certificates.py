"""No certified figure is ever exceeded: known counterexamples, and gradient ascent against random models."""

import copy
import dataclasses
import math
import random
import sys

import numpy as np
import pytest
import torch
from torch import nn

from mnemoscope import LSTM, RNN, LinearSystem, examine
from mnemoscope.recurrence import leaves, rebuild
from mnemoscope.scopes import stability, truncation
from mnemoscope.scopes._frame.subject import subject_of
from mnemoscope.scopes._measures.certificates import StateNorm, certify
from mnemoscope.scopes._measures.state_vectors import advance, flatten, jacobians, unflatten
from mnemoscope.scopes._measures.truncation_bounds import truncation_bounds
from mnemoscope.scopes._stability import round_up
from mnemoscope.theory.stability import gate_bounds, gradient_gap, prediction_gap


def starting_at(kind, value, how="constant"):
    """A subclass whose states begin elsewhere than at zero."""

    class Started(kind):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            if how == "learned":
                self.start = nn.Parameter(torch.full((self.hidden_size,), float(value)))

        def initial_state(self, batch):
            zeros = super().initial_state(batch)
            tensors = []
            for tensor in leaves(zeros):
                shift = torch.full_like(tensor, value)
                if how == "learned":
                    shift = self.start.to(tensor).expand_as(tensor)
                elif how == "random":
                    shift = value * torch.randn_like(tensor)
                tensors.append(tensor + shift)
            return rebuild(zeros, tensors)

    return Started


def with_spectral_norms(layer, norm):
    with torch.no_grad():
        for name, weight in layer.named_parameters():
            if "weight_hh" in name:
                weight.mul_(norm / torch.linalg.matrix_norm(weight, ord=2))
    return layer


def noise(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


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


# Gradient ascent against random models


def random_model(seed):
    """A layer whose certificate may hold, and inputs: all kinds, depths, starts and dtypes."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    kind = rng.choice([LinearSystem, RNN, RNN, RNN, LSTM, LSTM])
    options = {}
    if kind is RNN:
        options["nonlinearity"] = rng.choice(["tanh", "relu", "sigmoid", "identity", "modrelu"])
        options["preactivation"] = rng.random() < 0.2 and options["nonlinearity"] != "modrelu"
    start = rng.choice(["zero", "zero", "constant", "learned"])
    if start != "zero":
        kind = starting_at(kind, rng.choice([0.3, 3.0, 40.0]), start)
    d, n, layers = rng.randint(1, 4), rng.randint(1, 5), rng.randint(1, 3)
    layer = kind(d, n, layers, bias=rng.random() < 0.7, **options).double()
    is_lstm = isinstance(layer, LSTM)
    with torch.no_grad():
        for name, p in layer.named_parameters():
            if "weight_hh" in name and not is_lstm:
                p.mul_(rng.uniform(0.05, 1.0) / torch.linalg.matrix_norm(p, ord=2))
            elif "modrelu" in name:
                p.copy_(-p.abs())
            elif name != "start":
                p.mul_(10 ** (rng.uniform(-1.5, 0.2) if is_lstm else rng.uniform(-1, 1)))
    dtype = rng.choice([torch.float32, torch.float64])
    x = 10 ** rng.uniform(-1, 0.7) * noise(10, 3, d, seed=seed)
    return layer.to(dtype), x.to(dtype)


def reachable_box(layer, x):
    """Bounds (D,) of a flat state of an LSTM: its certificate holds inside. None for an RNN: it holds everywhere."""
    if not isinstance(layer, LSTM):
        return None
    h_0, c_0 = (t.detach().abs().amax(1).double() for t in layer.initial_state(x.shape[1]))
    bound = float(x.abs().max())
    h, c = [], []
    for index in range(layer.num_layers):
        at = gate_bounds(*vars(layer.weights(index)).values(), input_bound=bound, start=(c_0[index], h_0[index]))
        h.append(at.h)
        c.append(at.c)
        bound = float(at.h.max())
    return torch.cat([*h, *c]).detach()


def attack_pairs(layer, norm, x, rounds=60, pairs=24, steps=1):
    """The largest ratio N(after) / N(before) that gradient ascent finds over pairs of states and inputs."""
    layer = copy.deepcopy(layer).double().requires_grad_(False)
    size = float(x.abs().max())
    like = layer.initial_state(pairs)
    dim = flatten(like).shape[1]
    box = reachable_box(layer, x)
    a, b = noise(pairs, dim, seed=1), noise(pairs, dim, seed=2)
    b = a + b * 10 ** torch.linspace(-3, 0.5, pairs, dtype=torch.float64)[:, None]
    u = noise(pairs, layer.input_size, seed=3)
    variables = [t.clone().requires_grad_() for t in (a, b, u)]
    optimizer = torch.optim.Adam(variables, lr=0.1)
    best = 0.0
    for _ in range(rounds):
        a, b, u = variables
        one, other = (a, b) if box is None else (box * a.tanh(), box * b.tanh())
        inputs = size * u.tanh()
        before = norm.of(one - other)
        for _ in range(steps):
            one, other = (advance(layer, inputs, state, like) for state in (one, other))
        ratio = norm.of(one - other) / before.clamp(min=1e-6)
        best = max(best, float(ratio.detach().max()))
        optimizer.zero_grad()
        ratio.clamp(min=1e-12).log().sum().neg().backward()
        optimizer.step()
    return best


def attack_windows(layer, bounds, x, rounds=25, ks=(1, 3, 8)):
    """The largest ratio of a window's output error to its bound, by ascent on inputs of the same size."""
    layer = copy.deepcopy(layer).double().requires_grad_(False)
    x = x.double()
    entries = isinstance(layer, LSTM)
    size = x.abs().max() if entries else torch.linalg.vector_norm(x, dim=-1).max()
    free = x.clone().requires_grad_()
    optimizer = torch.optim.Adam([free], lr=float(0.2 * size))
    worst = 0.0
    for _ in range(rounds):
        inputs = free.clamp(-size, size)
        if not entries:
            inputs = free * (size / torch.linalg.vector_norm(free, dim=-1, keepdim=True)).clamp(max=1)
        whole = layer(inputs)[0][-1]
        total = 0.0
        for k in ks:
            gap = torch.linalg.vector_norm(whole - layer(inputs[-k:])[0][-1], ord=bounds.order, dim=-1)
            promise = prediction_gap(bounds.system, bounds.readout_lipschitz, k)
            worst = max(worst, float(gap.detach().max()) / (promise + 1e-12))
            total = total + gap.sum() / (promise + 1e-12)
        optimizer.zero_grad()
        total.neg().backward()
        optimizer.step()
    return worst, inputs.detach()


def gradient_excess(layer, bounds, x, ks=(1, 3, 8)):
    """The largest ratio of a truncated gradient's error to Lemma 2's bound."""
    layer = copy.deepcopy(layer).double().requires_grad_()

    def gradient(inputs):
        y = layer(inputs)[0][-1]
        parts = torch.autograd.grad(
            y.square().sum() / (2 * len(y)), list(layer.parameters()), materialize_grads=True, allow_unused=True
        )
        return torch.cat([part.flatten() for part in parts])

    whole = gradient(x)
    gaps = [float((gradient(x[-k:]) - whole).norm()) for k in ks]
    return max(gap / (gradient_gap(bounds.system, bounds.loss, k) + 1e-12) for gap, k in zip(gaps, ks, strict=True))


def attack(seed, rounds):
    """Certified figures of one random model against ascent; returns whether it was certified."""
    layer, x = random_model(seed)
    found = stability(layer, x, points=8)
    assert found.status in ("certified", "estimated"), found.why
    certificate = certify(layer, x)
    assert certificate is not None
    assert found.figures["bound"] == certificate.bound
    if not math.isfinite(certificate.bound):
        return False
    slack = 1 + 1e-6
    assert attack_pairs(layer, certificate.plain, x, rounds) <= certificate.bound * slack + 1e-9
    if found.status != "certified":
        return False
    lam, norm = found.figures["lambda"], certificate.norm
    assert lam < 1
    assert attack_pairs(layer, norm, x, rounds) <= lam * slack + 1e-9
    euclidean = StateNorm("Euclidean norm", torch.ones(1, dtype=torch.float64))
    for steps in (1, 4):
        allowed = found.figures["euclidean_constant"] * lam**steps
        assert attack_pairs(layer, euclidean, x, rounds // steps, steps=steps) <= allowed * slack + 1e-9
    bounds = truncation_bounds(subject_of(layer, x))
    if bounds is not None:
        worst, inputs = attack_windows(layer, bounds, x, rounds // 3)
        assert worst <= slack
        if bounds.loss is not None:
            for sequences in (x.double(), inputs):
                assert gradient_excess(layer, bounds, sequences) <= slack
    return True


def test_no_certified_figure_is_exceeded_by_ascent():
    assert sum(attack(seed, rounds=12) for seed in range(24)) >= 8


@pytest.mark.slow
def test_no_certified_figure_of_500_models_is_exceeded_by_ascent():
    assert sum(attack(seed, rounds=60) for seed in range(100, 600)) >= 150


def test_jacobian_in_the_norm_of_a_stack_is_below_its_factor():
    layer = strong_coupling()
    certificate = certify(layer, noise(5, 2, 3))
    like = unflatten(noise(8, 10), layer.initial_state(8))
    matrices = jacobians(layer, noise(8, 3, seed=4), like)
    assert float(certificate.norm.stretch(matrices).max()) <= certificate.lam
    assert float(certificate.plain.stretch(matrices).max()) <= certificate.bound
