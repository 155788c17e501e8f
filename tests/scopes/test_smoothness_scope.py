"""Slopes of costs and Lipschitz constants with known answers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

import mnemoscope
from mnemoscope.scopes import smoothness
from mnemoscope.scopes._measures.singular_values import largest_singular_value
from mnemoscope.scopes._smoothness import _sentence


def linear(V: torch.Tensor) -> mnemoscope.LinearSystem:
    layer = mnemoscope.LinearSystem(2, len(V), bias=False, dtype=torch.float64)
    with torch.no_grad():
        layer.weight_hh_l0.copy_(V)
    return layer


def x(T: int = 24, B: int = 3) -> torch.Tensor:
    return torch.randn(T, B, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("scale", "name"), [(0.5, "constant"), (1.0, "polynomial"), (1.3, "exponential")])
def test_regimes_of_a_linear_system(scale: float, name: str, seed: int) -> None:
    torch.manual_seed(seed)
    rotation = torch.linalg.qr(torch.randn(4, 4, generator=torch.Generator().manual_seed(1)).double()).Q
    found = smoothness(linear(scale * rotation), x(40))
    assert found.labels["regime"] == name
    assert found.labels["seen"] == name
    assert found.figures["L_x"] == pytest.approx(scale)
    if name == "exponential":  # V's slope grows like the square of the states
        assert found.figures["growth"] == pytest.approx(1.3**2, rel=0.1)
        assert found.warnings


def test_joint_lipschitz_constant() -> None:
    """For h' = V h + U x the derivative by the weights has the Gram matrix (|h|^2 + |x|^2) I."""
    torch.manual_seed(0)
    layer = linear(0.7 * torch.eye(3))
    found = smoothness(layer, x(10), points=10)
    h, largest = layer.initial_state(3), 0.0
    states = [h]
    for x_t in x(10):
        states.append(layer.step(x_t, states[-1])[1])
    inputs = x(10)
    for t in range(10):
        for row in range(3):
            sizes = states[t][0, row].square().sum() + inputs[t, row].square().sum()
            largest = max(largest, math.sqrt(0.49 + sizes.item()))
    assert found.figures["L_f"] <= largest + 1e-9
    reachable = [
        math.sqrt(0.49 + (states[t][0, r].square().sum() + inputs[t, r].square().sum()).item())
        for t in range(10)
        for r in range(3)
    ]
    for norm in found.series["norms"]:
        assert min(abs(norm - r) for r in reachable) < 1e-6


@pytest.mark.parametrize("model", [mnemoscope.LSTM(2, 7), nn.GRU(2, 5), mnemoscope.RelRNN(2, 4)])
def test_constants_of_a_large_step_are_found_without_its_jacobian(model, monkeypatch) -> None:
    """The work of n = 256 is that of a few steps; below, J J^T is formed and its eigenvalues are exact."""
    exact = smoothness(model, x().float(), lengths=2)
    monkeypatch.setattr("mnemoscope.scopes._smoothness.EXACT", 0)
    found = smoothness(model, x().float(), lengths=2)
    for name in ("L_f", "L_g", "L_x"):
        assert found.figures[name] == pytest.approx(exact.figures[name], rel=1e-3)


def test_largest_singular_value_of_nests_and_of_what_is_not_finite() -> None:
    A = torch.randn(40, 30, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    at = (torch.zeros(30, dtype=torch.float64), {"b": torch.zeros(40, dtype=torch.float64)})
    found = largest_singular_value(lambda v, theta: A @ v + 2 * theta["b"], at)
    assert found == pytest.approx(math.sqrt(torch.linalg.matrix_norm(A, 2) ** 2 + 4), rel=1e-5)
    assert largest_singular_value(lambda v, theta: 0 * theta["b"], at) == 0
    assert largest_singular_value(lambda v, theta: math.inf * (A @ v), at) == math.inf


def test_cost_slope_equals_autograd() -> None:
    torch.manual_seed(0)
    layer = mnemoscope.RNN(2, 3, dtype=torch.float64)
    found = smoothness(layer, x(12))
    for N, slope in zip(found.series["lengths"], found.series["cost_slope"], strict=True):
        gradient = torch.autograd.grad(layer(x(12)[:N])[0].square().mean(), list(layer.parameters()))
        assert slope == pytest.approx(math.sqrt(sum(g.square().sum().item() for g in gradient)), rel=1e-8)


def test_gradient_slope_is_below_the_largest_curvature() -> None:
    torch.manual_seed(0)
    layer = mnemoscope.RNN(2, 2, bias=False, dtype=torch.float64)
    found = smoothness(layer, x(8), probes=4)
    flat = torch.cat([p.detach().flatten() for p in layer.parameters()])

    def cost(theta: torch.Tensor) -> torch.Tensor:
        parts = theta.split([p.numel() for p in layer.parameters()])
        named = {k: v.view_as(p) for (k, p), v in zip(layer.named_parameters(), parts, strict=True)}
        return torch.func.functional_call(layer, named, (x(8),))[0].square().mean()

    H = torch.autograd.functional.hessian(cost, flat)
    largest = torch.linalg.matrix_norm(H, ord=2).item()
    assert 0.1 * largest < found.series["gradient_slope"][-1] <= largest * (1 + 1e-9)


@pytest.mark.parametrize("model", [nn.LSTM(2, 5), mnemoscope.RelRNN(2, 5), nn.GRU(2, 4, num_layers=2)], ids=str)
def test_smoothness_of_any_recurrence(model) -> None:
    found = smoothness(model, x().float())
    assert np.isfinite(found.series["cost_slope"]).all()


class Leaky(mnemoscope.Recurrence):
    """h' = decay h + x, with a parameter without dimensions, or with none."""

    input_size = hidden_size = 2

    def __init__(self, has_parameter: bool) -> None:
        super().__init__()
        decay = torch.tensor(0.5, dtype=torch.float64)
        self.decay = nn.Parameter(decay) if has_parameter else decay

    def initial_state(self, batch: int) -> torch.Tensor:
        return torch.zeros(1, batch, 2, dtype=torch.float64)

    def step(self, x: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        state = self.decay * state + x
        return state[0], state


def test_smoothness_with_a_parameter_without_dimensions() -> None:
    found = smoothness(Leaky(True), x())
    assert found.figures["L_x"] == pytest.approx(0.5)
    assert found.figures["L_f"] > 0.5
    assert found.labels["regime"] == "constant"


def test_smoothness_without_parameters_is_not_applicable() -> None:
    found = smoothness(Leaky(False), x())
    assert found.status == "not applicable"
    assert "no parameters" in found.why


def test_what_theorem_1_promises_depends_on_more_than_was_seen() -> None:
    """The largest L_f of some states is not the Lipschitz constant: the sentence says so."""
    said = _sentence({"L_x": 0.9, "growth": 1.0}, "constant", "constant")
    assert said == (
        "The slope of the cost does not grow with the length of the sequences; Theorem 1 promises as much, if "
        "L_f in the state is nowhere above the 0.9 that was seen."
    )
    polynomial = _sentence({"L_x": 1.0, "growth": 1.0}, "polynomial", "unknown")
    assert "if L_f in the state is nowhere above the 1 that was seen" in polynomial
    assert "if" not in _sentence(
        {"L_x": 2.0, "growth": 1.5}, "exponential", "exponential"
    )  # a larger one allows it too


@pytest.mark.parametrize(("L_x", "allowed", "said"), [(1.0012, "exponential", "1.001"), (0.9988, "constant", "0.999")])
def test_a_constant_that_decides_is_told_from_one(L_x: float, allowed: str, said: str) -> None:
    figures = {"L_x": L_x, "growth": 1.0}
    assert f" {said} " in _sentence(figures, allowed, "polynomial")
