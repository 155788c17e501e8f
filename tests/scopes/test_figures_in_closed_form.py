"""Figures of findings against what their series or a closed form say they must be, to the last digits."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mnemoscope import LSTM
from mnemoscope.scopes import signal, smoothness
from mnemoscope.systems import LeakySum


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
    assert found.figures["variance_over_depth"] < 0.5  # of these fresh layers, each is quieter than the one below
    early = variance[:, :4].mean()  # the first tenth
    assert found.figures["variance_over_time"] == pytest.approx(variance[:, -1].mean() / early, rel=1e-6)
    over_time = gradient[:, 0].mean() / gradient[:, -1].mean()
    assert found.figures["gradient_over_time"] == pytest.approx(over_time, rel=1e-6)
    assert over_time < 0.1
