"""Eigenvalues block by block, and what powers of a Jacobian show without them."""

from __future__ import annotations

import pytest
import torch

from mnemoscope import LSTM
from mnemoscope.scopes._measures.certificates import certify
from mnemoscope.scopes._measures.eigenvalues import diagonal_blocks, eigenvalues, surely_contracts
from mnemoscope.scopes._measures.fixed_points import fixed_points


def random(size: int) -> torch.Tensor:
    return torch.randn(size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(size))


def shuffled_stack() -> tuple[torch.Tensor, torch.Tensor]:
    """Two dense blocks, the second of which reads the first, in a shuffled order; and each row's block."""
    matrix = torch.block_diag(random(4), random(7))
    matrix[4:, :4] = 1.0
    order = torch.randperm(11, generator=torch.Generator().manual_seed(0))
    return matrix[order][:, order], (order >= 4).long()


def test_blocks_of_a_stack_are_found_in_any_order() -> None:
    matrix, block = shuffled_stack()
    found = diagonal_blocks(matrix)
    assert sorted(len(rows) for rows in found) == [4, 7]
    assert all(len(block[rows].unique()) == 1 for rows in found)


@pytest.mark.parametrize("matrix", [shuffled_stack()[0], random(6), torch.zeros(3, 3), torch.ones(4, 4).tril()])
def test_eigenvalues_by_blocks_are_those_of_the_whole(matrix: torch.Tensor) -> None:
    found = eigenvalues(matrix)
    assert bool((found.abs().diff() <= 0).all())
    # The characteristic polynomial at a few points: order and multiplicity do not matter to it.
    for z in torch.tensor([0.3 + 2j, -1.7 + 0.4j, 3.1 + 0j], dtype=torch.complex128):
        whole = torch.linalg.det(z * torch.eye(len(matrix), dtype=z.dtype) - matrix.to(z.dtype))
        torch.testing.assert_close((z - found).prod(), whole)


def test_a_cycle_through_all_numbers_is_one_block() -> None:
    assert len(diagonal_blocks(torch.eye(9).roll(1, 0))) == 1
    assert len(diagonal_blocks(torch.eye(9))) == 9


@pytest.mark.parametrize(("radius", "known"), [(0.9, True), (0.999, False), (1.0, False), (1.5, False)])
def test_powers_show_contraction_and_never_invent_it(radius: float, known: bool) -> None:
    matrix = random(12)
    matrix *= radius / torch.linalg.eigvals(matrix).abs().max()
    assert surely_contracts(matrix) == known
    assert not surely_contracts(matrix * torch.nan)


def test_a_stable_fixed_point_takes_no_eigenvalues(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    layer = LSTM(3, 8, num_layers=2)
    calls = []
    monkeypatch.setattr(torch.linalg, "eigvals", lambda matrix: calls.append(matrix) or torch.zeros(len(matrix)))
    found = fixed_points(layer, torch.randn(3), torch.zeros(1, 32))
    assert found.stable.tolist() == [True]
    assert not calls
    assert found.eigenvalues.shape == (1, 32)
    assert [matrix.shape for matrix in calls] == [(16, 16), (16, 16)]  # layer by layer


def test_an_lstm_that_no_weighted_norm_contracts_takes_no_eigenvalues(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(torch.linalg, "eigvals", lambda matrix: pytest.fail("of no use to the certificate"))
    layer = LSTM(3, 8, num_layers=2)
    assert not certify(layer, torch.randn(5, 2, 3)).stable
