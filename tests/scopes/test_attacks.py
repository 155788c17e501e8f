"""No certified figure is ever exceeded: gradient ascent on pairs of states and on inputs against random models."""

import copy
import math
import random

import pytest
import torch
from certified_models import attack_pairs, noise, starting_at

from mnemoscope import LSTM, RNN, LinearSystem
from mnemoscope.scopes import stability
from mnemoscope.scopes._frame.subject import subject_of
from mnemoscope.scopes._measures.certificates import StateNorm, certify
from mnemoscope.scopes._measures.truncation_bounds import truncation_bounds
from mnemoscope.theory.stability import gradient_gap, prediction_gap


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
@pytest.mark.timeout(3600)
def test_no_certified_figure_of_500_models_is_exceeded_by_ascent():
    assert sum(attack(seed, rounds=60) for seed in range(100, 600)) >= 150
