from __future__ import annotations

import pytest
import torch

import mnemoscope as ms
from mnemoscope.layers._matrix_exp import exponential


def skew(n: int, scale: float, seed: int = 0) -> torch.Tensor:
    matrix = torch.randn(n, n, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return scale * (matrix - matrix.mT) / (2 * n) ** 0.5


@pytest.mark.parametrize("n", [1, 2, 7, 64])
@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e-4, 0.1, 1.0, 3.0, 10.0])
def test_value_and_gradient_are_those_of_torch_in_float64(n: int, scale: float) -> None:
    exact = skew(n, scale).requires_grad_()
    single = exact.detach().float().requires_grad_()
    outer = torch.randn(n, n, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    truth, found = torch.linalg.matrix_exp(exact), exponential(single)
    assert (found - truth).norm() <= 1e-6 * (1 + scale) * truth.norm()
    (by_truth,) = torch.autograd.grad(truth, exact, outer)
    (by_found,) = torch.autograd.grad(found, single, outer.float())
    assert (by_found - by_truth).norm() <= 2e-6 * (1 + scale) * by_truth.norm()


def test_of_a_matrix_that_is_not_skew() -> None:
    matrix = torch.tensor([[1.0, 2.0], [0.0, 1.0]])
    expected = torch.e * torch.tensor([[1.0, 2.0], [0.0, 1.0]])  # exp(1 + N) = e (1 + N) for N^2 = 0
    torch.testing.assert_close(exponential(matrix), expected)


def test_what_is_no_number_stays_none() -> None:
    assert exponential(torch.full((3, 3), torch.nan)).isnan().all()


@pytest.mark.parametrize("trivialization", ["static", "dynamic"])
def test_the_layer_reads_what_its_parametrization_says(trivialization: str) -> None:
    torch.manual_seed(0)
    layer = ms.ExpRNN(3, 8, num_layers=2, trivialization=trivialization)
    with torch.no_grad():
        for parameter in layer.slow_parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    for place, name in enumerate(("weight_hh_l0", "weight_hh_l1")):
        torch.testing.assert_close(layer.weights(place).weight_hh, getattr(layer, name), atol=2e-6, rtol=0)


def test_inside_a_transform() -> None:
    """torch.func asks for no decision on a value: torch's own exponential serves it."""
    matrices = torch.stack([skew(4, 1.0, seed).float() for seed in range(3)])
    together = torch.func.vmap(exponential)(matrices)
    torch.testing.assert_close(together, torch.stack([exponential(m) for m in matrices]), atol=2e-6, rtol=0)
