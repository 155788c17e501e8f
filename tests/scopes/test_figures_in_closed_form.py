"""Figures of findings against what their series or a closed form say they must be, to the last digits."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from mnemoscope import LSTM, RAC, LinearSystem
from mnemoscope.scopes import SCOPES, signal, smoothness
from mnemoscope.scopes._measures.certificates import StateNorm
from mnemoscope.scopes._measures.truncation_bounds import TruncationBounds
from mnemoscope.scopes._truncation import _fit_lambda
from mnemoscope.systems import LeakySum
from mnemoscope.theory.separation import separation_ceiling
from mnemoscope.theory.stability import linear_constants


def growth(lengths: np.ndarray, slopes: np.ndarray) -> float:
    """The factor per step of slopes over the longer half of the lengths, by a straight line through the logarithms."""
    half = len(lengths) // 2
    return float(np.exp(np.polyfit(lengths[half:], np.log(slopes[half:]), 1)[0]))


def test_smoothness_of_a_leaky_sum() -> None:
    """h' = a h + x has L_x = a, and L_f^2 = L_g^2 = a^2 + h^2; Theorem 1 allows S(N)^2 = 1 + a^2 + ... + a^(2N)."""
    system = LeakySum(decay=0.7)
    x = system.inputs(steps=40)
    found = smoothness(system, x, points=40)
    lengths = found.series["lengths"]
    allowed = (1 - 0.7 ** (2 * (lengths + 1))) / (1 - 0.49)
    np.testing.assert_allclose(found.series["promised"], allowed / allowed[0], rtol=1e-10)
    assert found.figures["L_x"] == pytest.approx(0.7, rel=1e-10)

    # The states before each step, of all sequences; those looked at are among them.
    states = torch.cat([x[:1] * 0, system(x)[0]])[:-1]
    reachable = (0.49 + states.square()).sqrt().flatten().detach().numpy()
    assert np.abs(reachable - found.figures["L_f"]).min() < 1e-9
    assert found.figures["L_f"] > 1.2
    assert found.figures["L_g"] == pytest.approx(found.figures["L_f"], rel=1e-10)


def test_growth_of_slopes_is_that_of_their_series() -> None:
    torch.manual_seed(0)
    found = smoothness(LSTM(1, 3, dtype=torch.float64), torch.randn(60, 2, 1, dtype=torch.float64))
    lengths = found.series["lengths"]
    assert found.figures["growth"] == pytest.approx(growth(lengths, found.series["cost_slope"]), rel=1e-9)
    by_gradient = growth(lengths, found.series["gradient_slope"])
    assert found.figures["gradient_growth"] == pytest.approx(by_gradient, rel=1e-9)
    assert by_gradient != pytest.approx(found.figures["growth"], rel=1e-6)


def test_signal_figures_are_ratios_of_their_series() -> None:
    torch.manual_seed(0)
    found = signal(LSTM(3, 6, 3), torch.randn(40, 5, 3))
    variance = found.series["activation_variance"]  # (layers, T)
    gradient = found.series["gradient_variance"]
    assert found.figures["variance_over_depth"] == pytest.approx(variance[-1].mean() / variance[0].mean(), rel=1e-6)
    early = variance[:, :4].mean()  # the first tenth
    assert found.figures["variance_over_time"] == pytest.approx(variance[:, -1].mean() / early, rel=1e-6)
    over_time = gradient[:, 0].mean() / gradient[:, -1].mean()
    assert found.figures["gradient_over_time"] == pytest.approx(over_time, rel=1e-6)
    assert over_time < 0.1


def test_entropy_per_number_and_its_bound_by_the_norm() -> None:
    layer = LinearSystem(2, 2, bias=False, dtype=torch.float64)
    with torch.no_grad():
        layer.weight_hh_l0.copy_(torch.diag(torch.tensor([2.0, 0.25])))
    found = SCOPES["entropy"].measure(layer, torch.randn(8, 2, 2, dtype=torch.float64))
    assert found.figures["per_dimension"] == pytest.approx(math.log(0.5) / 2)
    np.testing.assert_allclose(found.series["log_norm"], 2 * math.log(2))


def test_landscape_of_a_parabola() -> None:
    """y = w x from w = 1 to w = 3: the cost is (1 + 2t)^2 for t from -1/4 to 5/4, from 1/4 to 49/4."""
    model = nn.Linear(1, 1, bias=False, dtype=torch.float64)
    with torch.no_grad():
        model.weight.fill_(1.0)
    x = torch.ones(5, 2, 1, dtype=torch.float64)
    measure = SCOPES["landscape"].measure
    end = {"weight": torch.full((1, 1), 3.0, dtype=torch.float64)}
    found = measure(model, x, targets=0 * x, loss=nn.functional.mse_loss, to=end, line=True)
    assert found.figures["cost"] == pytest.approx(1)
    assert found.figures["rise"] == pytest.approx((0.25 + 12.25) / 2)
    assert found.figures["roughness"] == pytest.approx(1.5**2 / 12)  # a parabola's bend would be 8 (1/2)^2 of its range


def test_fitted_lambda_of_k_lambda_to_the_k() -> None:
    k = np.array([2, 3, 5, 9, 17, 30])
    assert _fit_lambda(k, 7 * k * 0.8**k) == pytest.approx(0.8)


def test_output_bound_has_the_spectral_norm_of_the_readout() -> None:
    system = linear_constants(torch.ones(1, 1), torch.full((1, 1), 0.9, dtype=torch.float64), input_bound=1.0)
    bounds = TruncationBounds(system, torch.diag(torch.tensor([3.0, 4.0], dtype=torch.float64)), None, "")
    lengths = np.array([1, 10])
    np.testing.assert_allclose(bounds.bounds(lengths, 2.0, 1.0)["output_bound"], 4 * 0.9**lengths * 10 / 2)


def test_ceiling_counts_the_values_that_inputs_take() -> None:
    torch.manual_seed(0)
    circuit = RAC(3, 4, 2, dtype=torch.float64)
    found = SCOPES["separation"].measure(
        circuit, torch.eye(3, dtype=torch.float64).expand(4, 3, 3), templates=torch.eye(3)[:2].double(), length=4
    )
    assert found.figures["ceiling"] == separation_ceiling(2, 4, 3, 4, 2) < separation_ceiling(2, 4, 3, 4)


def test_a_certified_factor_costs_the_norm_of_the_weights_in_the_euclidean_norm() -> None:
    """A unit distance in every block is ||w|| long; one of ||s|| = 1 in the smallest block counts 1 / min w."""
    norm = StateNorm("", torch.tensor([1.0, 2.0], dtype=torch.float64))
    assert norm.euclidean == pytest.approx(math.sqrt(5))
    states = torch.tensor([[1.0, 2.0], [1.0, 0.0]], dtype=torch.float64)
    assert norm.of(states).tolist() == [1, 1]
    assert float(states[0].norm()) / 1 == pytest.approx(norm.euclidean)  # both have N(s) = 1: kappa is reached
