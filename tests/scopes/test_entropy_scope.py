"""The change of entropy of maps whose determinant is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import mnemoscope
from mnemoscope.scopes import entropy


def linear(V: torch.Tensor) -> mnemoscope.LinearSystem:
    layer = mnemoscope.LinearSystem(2, len(V), bias=False, dtype=torch.float64)
    with torch.no_grad():
        layer.weight_hh_l0.copy_(V)
    return layer


def x(T: int = 24, B: int = 3) -> torch.Tensor:
    return torch.randn(T, B, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_entropy_change_is_the_log_determinant() -> None:
    V = torch.tensor([[2.0, 1.0], [0.0, 0.25]], dtype=torch.float64)
    found = entropy(linear(V), x())
    assert found.figures["change"] == pytest.approx(math.log(0.5))
    np.testing.assert_allclose(found.series["change"], math.log(0.5))
    assert found.figures["change"] <= found.figures["hadamard"] <= found.figures["bound"] + 1e-12


def test_entropy_of_a_rotation_and_of_a_singular_map() -> None:
    kept = entropy(linear(torch.linalg.qr(torch.randn(3, 3).double()).Q), x())
    assert "keeps the entropy" in kept.sentence
    shut = entropy(linear(torch.diag(torch.tensor([1.0, 0.0]))), x())
    assert shut.figures["singular"] == 1
    assert shut.figures["change"] == -math.inf


def test_entropy_singular_at_some_states() -> None:
    layer = mnemoscope.RNN(2, 1, nonlinearity="relu", dtype=torch.float64)
    found = entropy(layer, torch.randn(40, 4, 2, dtype=torch.float64))
    assert 0 < found.figures["singular"] < 1
    assert found.figures["change"] == -math.inf
    assert f"{100 * found.figures['singular']:.2g} % of these states" in found.sentence


@pytest.mark.parametrize("seed", range(5))
def test_entropy_bound_is_above_the_change(seed: int) -> None:
    torch.manual_seed(seed)
    found = entropy(mnemoscope.GRU(2, 6, dtype=torch.float64), x())
    assert (found.series["change"] <= found.series["hadamard"] + 1e-9).all()
    assert (found.series["change"] <= found.series["log_norm"] + 1e-9).all()


def test_entropy_not_applicable_with_a_memory() -> None:
    assert entropy(mnemoscope.RelLSTM(2, 3), x().float()).status == "not applicable"
