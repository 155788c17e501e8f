"""Norms of gradients whose squares leave the range of float32."""

from __future__ import annotations

import pytest
import torch

from mnemoscope.scopes._measures.gradients import _row_norms


@pytest.mark.parametrize("size", [1.0, 1e-14, 1e-16, 1e-22, 1e-30, 1e-40, 1e18, 1e25, 1e37])
def test_row_norms_over_the_range_of_float32(size: float) -> None:
    gradient = (size * torch.randn(3, 4, 5, dtype=torch.float64)).float()
    torch.testing.assert_close(_row_norms(gradient), gradient.double().norm(dim=2), rtol=2e-6, atol=0.0)


def test_row_norms_of_mixed_sizes_and_zero() -> None:
    gradient = torch.randn(4, 2, 3)
    gradient[0], gradient[1, 0] = 0, 0
    gradient[2, 1] *= 1e-25  # one row of a step beside a usual one
    truth = gradient.double().norm(dim=2)
    found = _row_norms(gradient)
    torch.testing.assert_close(found, truth, rtol=2e-6, atol=0.0)
    assert found[2, 1] > 0


def test_row_norms_of_nan() -> None:
    gradient = torch.ones(2, 2, 2)
    gradient[0, 0, 0], gradient[1, 1, 1] = torch.nan, torch.inf
    found = _row_norms(gradient)
    assert found[0, 0].isnan()
    assert found[1, 1].isinf()
    torch.testing.assert_close(torch.stack([found[0, 1], found[1, 0]]), torch.full((2,), 2**0.5, dtype=torch.float64))
