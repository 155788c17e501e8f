"""The compiled loops never index by a number that they have not brought into range; `make sanitize` watches them."""

from __future__ import annotations

import hostile_numbers
import pytest
import torch
from hostile_numbers import CLOCKS, LENGTHS

from mnemoscope.kernels._cpu import library

pytestmark = pytest.mark.skipif(not library.available(torch.float32), reason="no compiled CPU kernels here")

LAYERS = sorted(hostile_numbers.layers())


@pytest.mark.parametrize("name", LAYERS)
def test_clocks_and_origins_out_of_range(name: str, monkeypatch) -> None:
    hostile_numbers.unchecked(monkeypatch)
    for clock in CLOCKS:
        hostile_numbers.check_clock(hostile_numbers.layers()[name], clock)


@pytest.mark.parametrize("name", LAYERS)
def test_lengths_out_of_range(name: str) -> None:
    for length in LENGTHS:
        hostile_numbers.check_lengths(hostile_numbers.layers()[name], length)


@pytest.mark.parametrize("name", LAYERS)
def test_saved_slots_out_of_range(name: str) -> None:
    for seed in range(20):
        hostile_numbers.check_saved_slots(hostile_numbers.layers()[name], seed)
