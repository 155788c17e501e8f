"""Maps that keep every distance: each start keeps an orbit of its own, and nothing attracts."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from mnemoscope.scopes import attractors


class Map(nn.Module):
    """h -> f(h), whatever the input."""

    input_size = 2

    def __init__(self, f, n):
        super().__init__()
        self.f, self.n, self.zero = f, n, nn.Parameter(torch.zeros(1))

    def initial_state(self, batch):
        return torch.zeros(batch, self.n)

    def step(self, x, h):
        h = self.f(h) + self.zero * x[:, :1]
        return h, h


def rotation(angle):
    c, s = math.cos(angle), math.sin(angle)
    matrix = torch.tensor([[c, -s], [s, c]])
    return Map(lambda h: h @ matrix.T, 2)


@pytest.fixture
def x():
    torch.manual_seed(0)
    return torch.randn(30, 4, 2)


@pytest.mark.parametrize("turns", [2, 3, 5, 8])
def test_a_rotation_by_part_of_a_turn_keeps_a_cycle_for_every_start(turns, x):
    found = attractors(rotation(2 * math.pi / turns), x)
    assert found.figures["stable_fixed_points"] == 0
    assert found.figures["attractors"] <= found.figures["starts"]
    assert found.figures["periods"] == turns
    assert f"each of 40 starts ends on a cycle of its own, of up to {turns} steps" in found.sentence


def test_the_identity_keeps_a_point_for_every_start(x):
    found = attractors(Map(lambda h: 1 * h, 2), x)
    assert "each of 40 starts ends in a fixed point of its own" in found.sentence


def test_two_starts_on_two_attractors_are_no_continuum(x):
    start = torch.tensor([[[1.0], [-1.0]]])
    found = attractors(Map(lambda h: torch.tanh(2 * h), 1), x, start=start)
    assert found.figures["attractors"] == 2
    assert "up to 2 attractors were found from 2 starts" in found.sentence
