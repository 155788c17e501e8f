"""Recurrent arithmetic circuits: their equations, their start, and what they compute."""

from __future__ import annotations

import pytest
import torch

import mnemoscope


@pytest.mark.parametrize("bias", [False, True])
def test_the_start_multiplies_by_ones(bias: bool) -> None:
    torch.manual_seed(0)
    layer = mnemoscope.RAC(3, 5, bias=bias, dtype=torch.float64)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    x = torch.randn(1, 2, 3, dtype=torch.float64)
    first = x[0] @ layer.weight_ih_l0.mT + (layer.bias_ih_l0 if bias else 0)
    torch.testing.assert_close(layer(x)[0][0], first)


def test_the_first_step_does_not_depend_on_the_recurrent_matrix() -> None:
    """W_H h_0 = 1 for every W_H, so no gradient reaches it before the second step."""
    layer = mnemoscope.RAC(3, 5, dtype=torch.float64)
    layer(torch.randn(1, 2, 3, dtype=torch.float64))[0].sum().backward()
    assert layer.weight_hh_l0.grad.abs().max() < 1e-10


def test_a_deep_circuit_by_hand() -> None:
    """h_t^l = (W_H^l h_{t-1}^l) * (W_I^l h_t^{l-1}), h_t^0 = f(x_t)."""
    torch.manual_seed(0)
    layer = mnemoscope.RAC(3, 4, num_layers=2, feature=torch.sin, dtype=torch.float64)
    x = torch.randn(5, 3, dtype=torch.float64)
    h = [torch.linalg.solve(getattr(layer, f"weight_hh_l{k}"), torch.ones(4, dtype=torch.float64)) for k in (0, 1)]
    outputs = []
    for x_t in x:
        below = torch.sin(x_t)
        for k in (0, 1):
            h[k] = (getattr(layer, f"weight_hh_l{k}") @ h[k]) * (getattr(layer, f"weight_ih_l{k}") @ below)
            below = h[k]
        outputs.append(below)
    torch.testing.assert_close(layer(x)[0], torch.stack(outputs))


def test_a_shallow_circuit_is_linear_in_every_input() -> None:
    torch.manual_seed(0)
    layer = mnemoscope.RAC(3, 4, dtype=torch.float64)
    x, other = torch.randn(2, 6, 1, 3, dtype=torch.float64)
    for t in range(6):
        mixed, swapped = x.clone(), x.clone()
        swapped[t] = other[t]
        mixed[t] = 2 * x[t] - 3 * other[t]
        torch.testing.assert_close(layer(mixed)[0][-1], 2 * layer(x)[0][-1] - 3 * layer(swapped)[0][-1])


def test_one_hot_sequences_neither_vanish_nor_explode_at_the_start() -> None:
    torch.manual_seed(0)
    layer = mnemoscope.RAC(8, 64)
    x = torch.nn.functional.one_hot(torch.randint(8, (10, 32)), 8).float()
    assert 0.1 < layer(x)[0][-1].square().mean().sqrt() < 10


def test_a_singular_matrix_starts_from_its_pseudo_inverse() -> None:
    """Footnote 4 of Levine et al. 2018: the start that comes nearest to multiplying by ones."""
    layer = mnemoscope.RAC(2, 2, dtype=torch.float64)
    with torch.no_grad():
        layer.weight_hh_l0.copy_(torch.tensor([[1.0, 1.0], [1.0, 1.0]]))
    torch.testing.assert_close(layer.initial_state(1)[0, 0], torch.tensor([0.5, 0.5], dtype=torch.float64))
