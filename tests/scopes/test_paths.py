"""Gradients through attention, taken apart by hops, are those of autograd."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import mnemoscope
from mnemoscope.scopes import paths


@pytest.mark.parametrize("kind", [mnemoscope.MemRNN, mnemoscope.RelRNN, mnemoscope.MemLSTM, mnemoscope.RelLSTM])
def test_sum_over_hops_is_the_total_derivative(kind) -> None:
    torch.manual_seed(0)
    layer, x = kind(3, 5, dtype=torch.float64), torch.randn(20, 2, 3, dtype=torch.float64)
    found = paths(layer, x, hops=30)
    assert found.figures["agreement"] < 1e-12
    np.testing.assert_allclose(found.series["share"].sum(0), 1)
    assert found.series["share"][-1].max() < 1e-10  # no path of 20 steps has more than 30 hops


def test_gradient_equals_autograd() -> None:
    torch.manual_seed(0)
    layer = mnemoscope.MemRNN(3, 5, dtype=torch.float64)
    x = torch.randn(12, 1, 3, dtype=torch.float64)
    direction = torch.randn(5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    direction /= direction.norm()

    def last(bump: torch.Tensor) -> torch.Tensor:  # bump (T, 5) is added to every h_t as it is made
        w, state = layer.weights(0), layer.initial_cell_state(layer.weights(0), 1)
        for t, x_t in enumerate(x):
            original = layer.advance
            layer.advance = lambda *a, t=t, original=original: (original(*a)[0] + bump[t],)
            try:
                _, state = layer.cell(w, layer.project(w, x_t), state)
            finally:
                del layer.advance
        return state.s[0] @ direction

    gradient = torch.autograd.functional.jacobian(last, torch.zeros(12, 5, dtype=torch.float64))
    found = paths(layer, x, sequences=1)
    np.testing.assert_allclose(found.series["gradient"], gradient.norm(dim=-1).flip(0).numpy(), rtol=1e-10)


def test_hops_without_attention_to_the_past() -> None:
    """A buffer of one attends h_t alone: from lag k the only paths have k hops."""
    torch.manual_seed(0)
    layer = mnemoscope.RelRNN(3, 5, buffer=1, relevant=0, dtype=torch.float64)
    found = paths(layer, torch.randn(6, 1, 3, dtype=torch.float64), hops=6)
    np.testing.assert_allclose(found.series["share"][:6], np.eye(6), atol=1e-12)
    np.testing.assert_array_equal(found.series["depth"], np.arange(6))
    assert found.figures["kappa"] == pytest.approx(1)


def test_not_applicable_to_other_attention() -> None:
    found = paths(mnemoscope.SAB(3, 5), torch.randn(20, 2, 3))
    assert found.status == "not applicable"
    assert "v^T tanh(W_a s + U_a h)" in found.why


def test_not_applicable_without_attention() -> None:
    found = paths(mnemoscope.LSTM(3, 4), torch.randn(5, 2, 3))
    assert found.status == "not applicable"
    assert "does not attend" in found.why
