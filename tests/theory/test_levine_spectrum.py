"""The Start-End spectrum of any model, against circuits and functions whose rank is known."""

import numpy as np
import pytest
import torch
from torch import nn

import mnemoscope
from mnemoscope.errors import MnemoscopeError
from mnemoscope.theory.separation import (
    Circuit,
    effective_rank,
    grid_matrix,
    separable_distance,
    separation_spectrum,
    start_end_matrices,
)


def test_a_circuits_matrices_are_its_grid_tensors():
    torch.manual_seed(0)
    layer = mnemoscope.RAC(2, 3, num_layers=2, dtype=torch.float64)
    weights = {name: value.detach().numpy() for name, value in layer.named_parameters()}
    matrices, whole = start_end_matrices(layer, torch.eye(2, dtype=torch.float64), 6, batch=10)
    assert whole
    for channel in range(3):
        circuit = Circuit(
            tuple(weights[f"weight_ih_l{l}"] for l in range(2)),
            tuple(weights[f"weight_hh_l{l}"] for l in range(2)),
            np.eye(3)[channel],
            np.ones((2, 3)),
        )
        np.testing.assert_allclose(matrices[channel], grid_matrix(circuit, 6), rtol=1e-9)


def test_a_shallow_circuits_rank_is_its_width_at_any_length():
    torch.manual_seed(1)
    layer, head = mnemoscope.RAC(2, 3, dtype=torch.float64), torch.randn(3, 2, dtype=torch.float64)
    for length in (4, 6, 8, 10):
        found = separation_spectrum(lambda x: layer(x)[0] @ head, torch.eye(2, dtype=torch.float64), length)
        assert found.rank.tolist() == [3, 3]
        assert found.shape == (2 ** (length // 2),) * 2


def test_a_separable_function_has_rank_one():
    def model(x):  # (T, B, 2): the product of all sums
        return x.sum(-1).prod(0)

    templates = torch.rand(4, 2, dtype=torch.float64)
    found = separation_spectrum(model, templates, 4, readout=lambda y: y)
    assert found.rank.tolist() == [1]
    assert found.effective_rank[0] == pytest.approx(1, abs=1e-6)
    assert found.distance[0] == pytest.approx(0, abs=1e-7)


def test_a_sum_over_time_has_rank_two():
    found = separation_spectrum(lambda x: x.cumsum(0), torch.rand(5, 1, dtype=torch.float64), 6)
    assert found.rank.tolist() == [2]
    assert 0 < found.distance[0] < 1


def test_equality_of_the_halves_has_full_rank():
    def model(tokens):  # (T, B)
        half = len(tokens) // 2
        return (tokens[:half] == tokens[half:]).all(0).float()

    found = separation_spectrum(model, torch.arange(3), 4, readout=lambda y: y)
    assert found.rank.tolist() == [9]
    assert found.effective_rank[0] == pytest.approx(9)
    assert found.distance[0] == pytest.approx(np.sqrt(8 / 9))
    np.testing.assert_allclose(found.singular_values, np.ones((1, 9)))


def test_token_models_and_torchs_own_layers():
    torch.manual_seed(0)
    embedding, lstm = nn.Embedding(3, 4), nn.LSTM(4, 5)
    found = separation_spectrum(lambda tokens: lstm(embedding(tokens)), torch.arange(3), 4)
    assert found.singular_values.shape == (5, 9)
    assert (found.rank >= 2).all()
    assert found.whole
    assert found.tolerance == pytest.approx(9 * np.finfo(np.float32).eps)
    assert lstm.weight_hh_l0.grad is None


def test_long_grids_are_sampled_and_the_seed_decides():
    torch.manual_seed(0)
    model, templates = nn.GRU(2, 3), torch.randn(4, 2)
    first, again, other = (separation_spectrum(model, templates, 12, limit=20, seed=seed) for seed in (1, 1, 2))
    assert first.shape == (20, 20)
    assert not first.whole
    assert (first.singular_values == again.singular_values).all()
    assert not (first.singular_values == other.singular_values).all()


def test_half_precision_outputs_are_widened():
    found = separation_spectrum(lambda x: x.cumsum(0).to(torch.bfloat16), torch.rand(3, 1), 4)
    assert found.singular_values.dtype == np.float64
    assert found.tolerance == 9 * np.finfo(np.float32).eps  # that of what the outputs were widened to first


def test_effective_rank_and_distance_in_closed_form():
    spectra = np.array([[1.0, 1.0, 0.0], [3.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    entropy = -(0.75 * np.log(0.75) + 0.25 * np.log(0.25))
    np.testing.assert_allclose(effective_rank(spectra), [2, np.exp(entropy), 0])
    np.testing.assert_allclose(separable_distance(spectra), [np.sqrt(0.5), np.sqrt(0.1), 0])


def test_odd_lengths_are_refused():
    with pytest.raises(MnemoscopeError, match="even number"):
        separation_spectrum(nn.RNN(2, 2), torch.randn(2, 2), 5)
