"""The change of entropy of maps whose determinant is known."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest
import torch

import mnemoscope
from mnemoscope.scopes import entropy
from mnemoscope.scopes._entropy import _finding, _sentence
from mnemoscope.systems import LeakySum, LogisticMap


def linear(V: torch.Tensor) -> mnemoscope.LinearSystem:
    layer = mnemoscope.LinearSystem(2, len(V), bias=False, dtype=torch.float64)
    with torch.no_grad():
        layer.weight_hh_l0.copy_(V)
    return layer


def x(T: int = 24, B: int = 3) -> torch.Tensor:
    return torch.randn(T, B, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_entropy_change_is_the_log_determinant() -> None:
    V = torch.tensor([[2.0, 1.0], [0.0, 0.25]], dtype=torch.float64)
    found = entropy(linear(V), x())
    assert found.figures["change"] == pytest.approx(math.log(0.5))
    np.testing.assert_allclose(found.series["change"], math.log(0.5))
    assert found.figures["change"] <= found.figures["hadamard"] <= found.figures["bound"] + 1e-12


def test_entropy_of_a_rotation_and_of_a_singular_map() -> None:
    kept = entropy(linear(torch.linalg.qr(torch.randn(3, 3).double()).Q), x())
    assert "keeps the volume" in kept.sentence
    shut = entropy(linear(torch.diag(torch.tensor([1.0, 0.0]))), x())
    assert shut.figures["singular"] == 1
    assert shut.figures["change"] == -math.inf


@pytest.mark.parametrize(
    ("system", "words"),
    [
        (LogisticMap(4.0), "pulls neighboring states apart: on average the volume of a small cloud"),
        (LeakySum(0.5), "presses neighboring states together: on average the volume of a small cloud"),
        (LeakySum(0.5), "is multiplied by 0.5 (logarithm of the volume -0.693"),
    ],
    ids=["logistic", "leaky", "factor"],
)
def test_entropy_sentence_speaks_of_the_volume_of_a_cloud(system, words) -> None:
    assert words in entropy(system, system.inputs()).sentence


def test_entropy_standard_error_covers_the_known_change() -> None:
    system = LogisticMap(4.0)
    found = entropy(system, system.inputs())
    assert 0 < found.figures["standard_error"] < 0.5
    assert abs(found.figures["change"] - math.log(2)) < 4 * found.figures["standard_error"]


def test_entropy_of_a_large_state_is_told_without_overflow() -> None:
    found = entropy(linear(0.01 * torch.eye(200, dtype=torch.float64)), x())
    assert "changes by -921 ± 0, as if each of 200 dimensions were multiplied by 0.01" in found.sentence


def test_entropy_singular_at_some_states() -> None:
    layer = mnemoscope.RNN(2, 1, nonlinearity="relu", dtype=torch.float64)
    found = entropy(layer, torch.randn(40, 4, 2, dtype=torch.float64))
    assert 0 < found.figures["singular"] < 1
    assert found.figures["change"] == -math.inf
    assert f"{100 * found.figures['singular']:.2g} % of these states" in found.sentence


@pytest.mark.parametrize("seed", range(5))
def test_entropy_bound_is_above_the_change(seed: int) -> None:
    torch.manual_seed(seed)
    found = entropy(mnemoscope.GRU(2, 6, dtype=torch.float64), x())
    assert (found.series["change"] <= found.series["hadamard"] + 1e-9).all()
    assert (found.series["change"] <= found.series["log_norm"] + 1e-9).all()


def test_a_large_state_is_looked_at_less_often_and_all_along_the_run(monkeypatch) -> None:
    system = linear(torch.eye(2, dtype=torch.float64))
    assert entropy(system, x(24, 8)).figures["change"] == pytest.approx(0)
    monkeypatch.setattr(sys.modules["mnemoscope.scopes._measures.state_samples"], "JACOBIAN_NUMBERS", 4 * 16)
    found = entropy(system, x(24, 8))
    assert "at 16 states" in found.method
    assert len(found.series["steps"]) == 8


def test_entropy_not_applicable_with_a_memory() -> None:
    assert entropy(mnemoscope.RelLSTM(2, 3), x().float()).status == "not applicable"


def test_identical_sequences_do_not_shrink_the_standard_error():
    torch.manual_seed(0)
    change = torch.randn(12, 3, dtype=torch.float64)
    rows = [0, 0, 0, 1, 1, 2]
    once, often = (
        _finding(np.arange(12), one, one + 1, one.exp(), 2).figures["standard_error"]
        for one in (change, change[:, rows])
    )
    assert often == pytest.approx(once)


@pytest.mark.parametrize(
    ("error", "beginning"),
    [(0.01, "A step pulls"), (0.02, "A step keeps the volume"), (0.3, "These states are too few to tell")],
)
def test_a_change_within_two_standard_errors_is_none(error, beginning):
    figures = {"singular": 0.0, "change": 0.03, "standard_error": error, "per_dimension": 0.03}
    assert _sentence(figures, 1).startswith(beginning)


def test_a_step_that_now_stretches_and_now_compresses_is_not_said_to_keep_the_volume() -> None:
    class Breathing(mnemoscope.Recurrence):
        input_size = hidden_size = 1

        def initial_state(self, batch):
            return torch.zeros(1, batch, 1, dtype=torch.float64)

        def step(self, x, state):
            state = state * (3 * x).exp()
            return state[0], state

    inputs = x()[..., :1]
    found = entropy(Breathing(), inputs - inputs.mean())
    assert abs(found.figures["change"]) < 2 * found.figures["standard_error"]
    assert "too few to tell" in found.sentence


def test_the_change_has_the_digits_of_its_error():
    figures = {"singular": 0.0, "change": -264.3, "standard_error": 6.0, "per_dimension": -0.5}
    assert "changes by -260 ± 10, as if each of 529 dimensions" in _sentence(figures, 529)


@pytest.mark.parametrize("steps", [127, 253, 505, 2017])
def test_a_cycle_is_met_in_all_its_phases(steps: int) -> None:
    """At r = 3.2 one state of the cycle of two pulls neighbors apart, and the mean of both presses them together.

    Every second step, every fourth and every eighth are steps of one phase.
    """
    system = LogisticMap(3.2)
    figures = entropy(system, system.inputs(steps=steps)).figures
    known = math.log(abs(4 + 2 * 3.2 - 3.2**2)) / 2
    assert figures["change"] == pytest.approx(known, abs=3 * figures["standard_error"])
