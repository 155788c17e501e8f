"""Precision: which type weights, inputs, new tensors and the loss have."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from mnemoscope.tasks import Batch
from mnemoscope.training._placement import Placement

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("precision", "weights", "inputs", "created"),
    [
        ("32-true", torch.float32, torch.float32, torch.float32),
        ("tf32-true", torch.float32, torch.float32, torch.float32),
        ("64-true", torch.float64, torch.float64, torch.float64),
        ("bf16-true", torch.bfloat16, torch.bfloat16, torch.bfloat16),
        ("bf16-mixed", torch.float32, torch.bfloat16, torch.float32),
    ],
)
def test_types_of_a_precision(precision, weights, inputs, created):
    placement = Placement(precision, CPU)
    model = nn.Linear(2, 2)
    model.register_buffer("frequencies", torch.tensor([1 + 2j]))
    placement.move_model(model)
    assert model.weight.dtype == weights
    assert model.frequencies.tolist() == [1 + 2j]
    batch = placement.move_batch(Batch(torch.zeros(1, 2), torch.zeros(1, dtype=torch.long)))
    assert (batch.inputs.dtype, batch.targets.dtype) == (inputs, torch.long)
    with placement.computing():
        assert torch.is_autocast_enabled("cpu") == (precision == "bf16-mixed")
        assert torch.zeros(1).dtype == created
        loss = model(batch.inputs).mean()
    assert placement.to_loss(loss).dtype == torch.float32
    assert torch.get_default_dtype() == torch.float32


def test_the_type_of_new_tensors_is_put_back_after_an_error():
    with pytest.raises(ZeroDivisionError), Placement("64-true", CPU).computing():
        raise ZeroDivisionError
    assert torch.get_default_dtype() == torch.float32


def test_without_a_conversion_numbers_stay_as_they_are():
    placement = Placement("32-true", CPU)
    assert placement.move_batch(Batch(torch.zeros(1).double(), torch.zeros(1))).inputs.dtype == torch.float64
    assert placement.to_loss(torch.zeros(()).double()).dtype == torch.float64
