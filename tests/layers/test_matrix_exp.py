"""The matrix exponential and the orthogonal parametrization of ExpRNN."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize

import mnemoscope as ms
from mnemoscope.layers._matrix_exp import SkewExponential, matrix_exp, matrix_exp_of_unread_norm


def skew(n: int, scale: float, seed: int = 0) -> torch.Tensor:
    matrix = torch.randn(n, n, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return scale * (matrix - matrix.mT) / (2 * n) ** 0.5


@pytest.mark.parametrize("n", [1, 2, 7, 64])
@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e-4, 0.1, 1.0, 3.0, 10.0])
def test_value_and_gradient_are_those_of_torch_in_float64(n: int, scale: float) -> None:
    exact = skew(n, scale).requires_grad_()
    single = exact.detach().float().requires_grad_()
    outer = torch.randn(n, n, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    truth, found = torch.linalg.matrix_exp(exact), matrix_exp(single)
    assert (found - truth).norm() <= 1e-6 * (1 + scale) * truth.norm()
    (by_truth,) = torch.autograd.grad(truth, exact, outer)
    (by_found,) = torch.autograd.grad(found, single, outer.float())
    assert (by_found - by_truth).norm() <= 2e-6 * (1 + scale) * by_truth.norm()


@pytest.mark.parametrize("scale", [0.0, 1e-30, 0.1, 1.0, 10.0, 100.0])
def test_without_reading_the_norm_as_in_a_cuda_graph(scale: float) -> None:
    exact = skew(16, scale)
    truth, found = torch.linalg.matrix_exp(exact), matrix_exp_of_unread_norm(exact.float())
    assert (found - truth).norm() <= 1e-6 * (1 + scale) * truth.norm()
    assert matrix_exp_of_unread_norm(torch.full((3, 3), 1e4)).isnan().all()


def test_of_a_matrix_that_is_not_skew() -> None:
    matrix = torch.tensor([[1.0, 2.0], [0.0, 1.0]])
    expected = torch.e * torch.tensor([[1.0, 2.0], [0.0, 1.0]])  # exp(1 + N) = e (1 + N) for N^2 = 0
    torch.testing.assert_close(matrix_exp(matrix), expected)


def test_nan_stays_nan() -> None:
    assert matrix_exp(torch.full((3, 3), torch.nan)).isnan().all()


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_parametrization_is_torchs_and_loads_its_state_dict(dynamic: bool, dtype: torch.dtype) -> None:
    """Runs were written with torch's own parametrization: the same names, the same matrix."""
    torch.manual_seed(0)
    ours, theirs = nn.Linear(8, 8, bias=False, dtype=dtype), nn.Linear(8, 8, bias=False, dtype=dtype)
    parametrizations.orthogonal(theirs, orthogonal_map="matrix_exp", use_trivialization=dynamic)
    with torch.no_grad():
        theirs.parametrizations.weight.original += 0.3 * torch.randn(8, 8, dtype=dtype)
    parametrize.register_parametrization(ours, "weight", SkewExponential(dynamic), unsafe=True)
    assert set(ours.state_dict()) == set(theirs.state_dict())
    ours.load_state_dict(theirs.state_dict())
    torch.testing.assert_close(ours.weight, theirs.weight, atol=2e-6, rtol=0)


def test_dynamic_map_can_be_assigned_and_the_static_one_cannot() -> None:
    torch.manual_seed(0)
    layer = ms.ExpRNN(3, 8, trivialization="dynamic")
    rotation = torch.linalg.qr(torch.randn(8, 8))[0]
    layer.weight_hh_l0 = rotation
    torch.testing.assert_close(layer.weight_hh_l0, rotation)
    layer.weight_hh_l0 = 2 * rotation  # the nearest factor Q of Q R
    torch.testing.assert_close(layer.weight_hh_l0, rotation)
    with pytest.raises(NotImplementedError, match="use trivialization='dynamic'"):
        ms.ExpRNN(3, 8).weight_hh_l0 = rotation


def test_entries_on_and_above_the_diagonal_do_not_count() -> None:
    layer = ms.ExpRNN(3, 4)
    before = layer.weight_hh_l0.detach().clone()
    with torch.no_grad():
        layer.parametrizations.weight_hh_l0.original += torch.randn(4, 4).triu()
    assert torch.equal(layer.weight_hh_l0, before)


def test_inside_vmap() -> None:
    """torch.func asks for no decision on a value: torch's own exponential serves it."""
    matrices = torch.stack([skew(4, 1.0, seed).float() for seed in range(3)])
    together = torch.func.vmap(matrix_exp)(matrices)
    torch.testing.assert_close(together, torch.stack([matrix_exp(m) for m in matrices]), atol=2e-6, rtol=0)
