"""What the horizon says exactly at its limits: equality, gaps, growth, and what a task needs."""

from __future__ import annotations

import math
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from mnemoscope.scopes import _horizon
from mnemoscope.scopes._measures import decay


def test_horizon_and_first_below_at_equality():
    profile = np.array([9.0, 4.0, 2.0, 1.0, 0.5])
    assert decay.horizon(profile, 0.25) == 3
    assert decay.first_below(profile, 0.25) == 4
    assert decay.horizon(profile, 0.125) == 4
    assert decay.first_below(profile, 0.125) == math.inf


def test_horizon_is_the_last_of_several_crossings():
    profile = np.array([0.0, 1.0, 0.001, 0.5, 0.001])
    assert decay.horizon(profile, 0.01) == 3
    assert decay.first_below(profile, 0.01) == 2


def test_first_below_begins_where_the_past_is_first_felt():
    assert decay.first_below(np.array([1.0, 0.001, 1.0, 0.001]), 0.01) == 3
    assert decay.first_below(np.array([1.0, 0.5, 0.001, 1.0]), 0.01) == 2  # before the largest
    assert decay.first_below(np.array([1.0]), 0.01) == math.inf


@pytest.mark.parametrize(
    ("past", "expected"),
    [
        ([1.0, 0.5, 0.02, 0.005], math.inf),  # it falls and does not come back
        ([1.0, 0.5, 0.005, 0.02], math.inf),  # it wavers around the line
        ([1.0, 0.5, 0.001, 0.02], math.inf),  # a tenth of the line is no gap yet
        ([1.0, 0.5, 0.0009, 0.009, 0.01, 0.5], 5),  # there again from the line on
        ([0.5, 0.0, 0.1, 0.0, 0.0, 1.0], 6),  # the last of two gaps
        ([0.0, 0.0, 1.0, 0.5], math.inf),  # a delay line: nothing nearer, and no gap
        ([0.0, 0.0], math.inf),
    ],
)
def test_a_gap_is_deep_and_ends(past, expected):
    assert decay.returns_at(np.array([2.0, *past]), 0.01) == expected


@pytest.mark.parametrize(
    ("profile", "rounding", "horizon"),
    [
        ([0.0, 0.0], 0.0, -1),
        ([1.0, 0.0], 0.0, 0),
        ([1.0, 1e-3], 1e-3, 0),
        ([1.0, 1.1e-3], 1e-3, 1),
        ([0.0, 1.0], 0.1, 1),
    ],
)
def test_horizon_of_no_past_gradient(profile, rounding, horizon):
    assert decay.horizon(np.array(profile), 0.01, rounding) == horizon


@pytest.mark.parametrize(
    ("profile", "lag"),
    [
        ([1.0, 100.0, 50.0], math.inf),
        ([1.0, 101.0, 101.0], 1.0),
        ([1.0, 101.0, 100.0], math.inf),  # it comes back
        ([1.0, 101.0, 1.0, 101.0], 3.0),
        ([0.0, 0.0, 1.0, 200.0], 3.0),
        ([1.0, math.inf, math.inf], 1.0),
        ([0.0, 0.0], math.inf),
        ([1.0] * 18 + [101.0] * 2, 18.0),
        ([1.0] * 19 + [101.0], math.inf),  # less than the last tenth
        ([1.0] * 30 + [101.0] * 29 + [0.0], 30.0),  # all units are off at the first step
        ([1.0, 9.0, 81.0, 729.0] + [0.0] * 36, math.inf),  # a receptive field that ends
    ],
)
def test_explosion_is_growth_that_does_not_come_back(profile, lag):
    assert decay.explodes_at(np.array(profile), 100.0) == lag


def horizon_figures(**changes):
    figures = {
        "horizon": 8.0,
        "lags": 20.0,
        "present": 1.0,
        "explodes_at": np.inf,
        "growth": 1.0,
        "receptive_field": np.inf,
        "returns_at": np.inf,
        "gaps": 1.0,
    }
    return figures | {"strongest_lag": 1.0} | changes


BY_GRADIENTS = SimpleNamespace(measured="gradients", reads_later=False)
NO_LAW = decay.Law("none", math.nan, math.nan, math.nan, math.nan)


@pytest.mark.parametrize(
    ("changes", "horizons", "sentence"),
    [
        ({"horizon": 20.0}, (20, 20), "Gradients reach back over all 20 steps that were looked at."),
        ({"horizon": 1.0, "lags": 1.0}, (1, 1), "Gradients reach back over the one step that was looked at."),
        ({"horizon": 2.0, "lags": 2.0}, (2, 2), "Gradients reach back over both steps that were looked at."),
        ({"horizon": 19.0}, (19, 19), "Gradients reach 19 steps back, then fall under 1 % of their largest."),
        ({"horizon": 1.0}, (1, 1), "Gradients reach 1 step back, then fall under 1 % of their largest."),
        (
            {},
            (6, 11),
            "Gradients reach 8 steps back (6 to 11 over sequences and output steps), then fall under 1 % of their "
            "largest.",
        ),
        (
            {},
            (-1, 11),
            "Gradients reach 8 steps back (0 to 11 over sequences and output steps), then fall under 1 % of their "
            "largest.",
        ),
        (
            {"present": 101.0},
            (8, 8),
            "Gradients reach 8 steps back, then fall under 1 % of their largest; the present input weighs 101 times "
            "the strongest earlier one.",
        ),
        ({"horizon": 0.0, "present": np.inf}, (0, 0), "Gradients reach the present input only, none earlier."),
        ({"horizon": -1.0}, (-1, -1), "No gradient reaches any input."),
        (
            {"horizon": 20.0, "explodes_at": 3.0, "growth": 200.0, "strongest_lag": 7.0},
            (20, 20),
            "Gradients explode: 7 steps back they have grown to 200 times their size.",
        ),
        (
            {"horizon": 20.0, "explodes_at": 1.0, "growth": 200.0, "strongest_lag": 1.0},
            (20, 20),
            "Gradients explode: 1 step back they have grown to 200 times their size.",
        ),
        (
            {"explodes_at": 3.0, "growth": math.inf, "strongest_lag": 7.0},
            (8, 8),
            "Gradients explode: 7 steps back they have grown to infinity.",
        ),
    ],
)
def test_horizon_sentence(changes, horizons, sentence):
    subject = SimpleNamespace(needs=None)
    assert (
        _horizon._sentence(
            horizon_figures(**changes), NO_LAW, {"horizon": np.array(horizons)}, subject, 0.01, BY_GRADIENTS
        )
        == sentence
    )


def test_horizon_sentence_with_needs_and_law():
    law = decay.Law("exponential", 0.5, -1.0, 0.99, 3.0)
    sentence = _horizon._sentence(
        horizon_figures(), law, {"horizon": np.array([8, 8])}, SimpleNamespace(needs=12), 0.05, BY_GRADIENTS
    )
    assert sentence == (
        "Gradients reach 8 steps back, then fall under 5 % of their largest (exponential, times 0.5 per step); the "
        "task needs 12."
    )


def test_horizon_sentence_of_a_curve_with_a_gap():
    figures = horizon_figures(horizon=20.0, first_below=6.0, returns_at=18.0, at_need=0.0012)
    spread = {"horizon": np.array([20, 20]), "first_below": np.array([5, 8])}
    sentence = _horizon._sentence(figures, NO_LAW, spread, SimpleNamespace(needs=12), 0.01, BY_GRADIENTS)
    assert sentence == (
        "Gradients reach 5 steps back (4 to 7 over sequences and output steps), then fall under 1 % of their largest, "
        "and rise above it again 18 to 20 steps back, where the sequences begin; the task needs 12, where they are at "
        "0.12 % of their largest."
    )
    beyond = _horizon._sentence(figures, NO_LAW, spread, SimpleNamespace(needs=21), 0.01, BY_GRADIENTS)
    assert beyond.endswith("the task needs 21.")  # at_need is that of the last lag
    figures |= {"horizon": 18.0}
    spread = {"horizon": np.array([18, 18]), "first_below": np.array([6, 6])}
    sentence = _horizon._sentence(figures, NO_LAW, spread, SimpleNamespace(needs=None), 0.01, BY_GRADIENTS)
    assert sentence.endswith(
        "reach 5 steps back, then fall under 1 % of their largest, and rise above it again 18 steps back."
    )


@pytest.mark.parametrize(("at_need", "count"), [(0.01, 0), (0.0099, 1)])
def test_horizon_warning_of_a_gap_at_the_need(at_need, count):
    figures = horizon_figures(horizon=20.0, at_need=at_need)
    said = _horizon._warnings(figures, SimpleNamespace(needs=12), 0.01, "gradients")
    assert [text.split(",")[0] for text in said] == ["the gradient is gone 12 steps back"] * count


@pytest.mark.parametrize(
    ("needs", "warning"),
    [
        (None, ""),
        (8, ""),
        (9, "gradients do not reach"),
        (20, "gradients do not reach"),
        (21, "gradients do not reach"),
    ],
)
def test_horizon_warning_at_equality_with_the_need(needs, warning):
    said = _horizon._warnings(horizon_figures(), SimpleNamespace(needs=needs), 0.01, "gradients")
    assert [text[: len(warning)] for text in said] == ([warning] if warning else [])


@pytest.mark.parametrize(("needs", "count"), [(20, 0), (21, 1)])
def test_horizon_warning_of_sequences_that_are_too_short(needs, count):
    said = _horizon._warnings(horizon_figures(horizon=20.0), SimpleNamespace(needs=needs), 0.01, "gradients")
    assert [text.split(":")[0] for text in said] == ["the sequences are shorter than what the task needs"] * count


def test_a_profile_that_ends_as_nan_has_a_law_without_a_warning():
    profile = np.append(0.5 ** np.arange(30.0), [np.nan] * 20)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        law = decay.fit(profile, torch.float64)
    assert (law.name, round(law.rate, 6)) == ("exponential", 0.5)
