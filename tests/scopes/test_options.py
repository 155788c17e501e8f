"""Options that make no sense are refused by name, and what is said of a result is no more than was looked for."""

from __future__ import annotations

import pytest
import torch

from mnemoscope import LSTM, MnemoscopeError, RelRNN, examine
from mnemoscope.scopes import SCOPES, _attractors, _landscape, attractors
from mnemoscope.systems import CatMap


@pytest.mark.parametrize(
    ("scope", "option", "value", "least"),
    [
        ("horizon", "ends", 0, 1),
        ("horizon", "directions", 1.5, 1),
        ("entropy", "points", 0, 1),
        ("stability", "points", -1, 1),
        ("smoothness", "points", 0, 1),
        ("smoothness", "lengths", 0, 1),
        ("smoothness", "probes", True, 1),
        ("lyapunov", "sequences", 0, 1),
        ("lyapunov", "steps", 10.5, 1),
        ("lyapunov", "discard", -1, 0),
        ("lyapunov", "exponents", 2.5, 1),
        ("truncation", "updates", 0, 1),
        ("truncation", "windows", 1, 2),
        ("paths", "hops", 0, 1),
        ("paths", "steps", 1, 2),
        ("separation", "length", 0, 2),
        ("separation", "limit", 0, 1),
        ("attractors", "starts", 0, 1),
        ("attractors", "recorded", 1, 2),
    ],
)
def test_a_count_that_is_too_small_is_refused(scope, option, value, least):
    model = RelRNN(2, 3, buffer=2, relevant=1) if scope == "paths" else LSTM(2, 3)
    with pytest.raises(MnemoscopeError, match=f"^{option} must be a whole number of at least {least}; got {value!r}$"):
        SCOPES[scope].measure(model, torch.randn(4, 2, 2), **{option: value})


@pytest.mark.parametrize(
    ("scope", "option", "value"),
    [("recurrence", "tolerance", -1), ("truncation", "rate", -1), ("truncation", "error", "1")],
)
def test_a_number_that_makes_no_sense_is_refused(scope, option, value):
    with pytest.raises(MnemoscopeError, match=f"^{option} must .*; got {value!r}$"):
        SCOPES[scope].measure(LSTM(2, 3), torch.randn(4, 2, 2), **{option: value})


def test_the_factor_of_stable_weights_is_checked():
    with pytest.raises(MnemoscopeError, match="lam must be above 0 and at most 1; got 2"):
        SCOPES["stability"].measure(LSTM(2, 3), torch.randn(4, 2, 2), lam=2)


def test_the_sentence_of_a_failure_names_its_scope_once(monkeypatch):
    found = examine(LSTM(2, 3), torch.randn(1, 2, 2), scopes=["horizon"])["horizon"]
    assert found.sentence == "horizon failed: give sequences of at least 2 steps; got 1."
    monkeypatch.setattr("mnemoscope.scopes._horizon.by_inputs_and_states", lambda *_: 1 // 0)
    found = examine(LSTM(2, 3), torch.randn(4, 2, 2), scopes=["horizon"])["horizon"]
    assert found.sentence.startswith("horizon failed: ZeroDivisionError: ")
    assert found.sentence.endswith("; check that the model runs on these inputs.")


@pytest.mark.parametrize(
    ("cost", "lowest", "said"),
    [(-1.0, -1.0, ", the lowest that was seen."), (-1.0, -1.2, "; -1.2 was seen nearby."), (0.0, 0.0, ", the lowest")],
)
def test_the_lowest_cost_may_be_negative(cost, lowest, said):
    figures = {"cost": cost, "lowest": lowest, "highest": 3.0, "roughness": 1.0, "resolution": 0.01}
    assert said in _landscape._sentence(figures, between=False)


def test_few_recorded_steps_show_short_periods_only():
    found = attractors(
        CatMap(), torch.zeros(4, 1, 1, dtype=torch.float64), steps=20, recorded=10, starts=2, fixed=False
    )
    assert found.figures["aperiodic"] == 1
    assert "none has a period of up to 5 steps" in found.sentence
    assert "what has no period of up to 5 after" in found.assumptions[1]


@pytest.mark.parametrize(
    ("periods", "said"),
    [
        ([0, 0], "Along the path no orbit has a period."),
        ([1, 1], "Along the path orbits have the period 1."),
        ([1, 2], "Along the path orbits have the periods 1, 2."),
        (range(1, 9), "Along the path orbits have the periods 1, 2, 3, 4, 5, 6 and others."),
    ],
)
def test_periods_along_a_path(periods, said):
    period = torch.tensor(list(periods)).numpy()
    figures = {"attractors": 1.0, "periods": float(period.max()), "aperiodic": float((period == 0).all())}
    assert _attractors._sentence({"period": period}, figures, over_parameters=True) == said
