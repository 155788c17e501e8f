"""Options that make no sense are refused by name, and what is said of a result is no more than was looked for."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from mnemoscope import LSTM, ExpRNN, MnemoscopeError, RelRNN, examine
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


@pytest.mark.parametrize(
    ("scope", "option", "value", "rule"),
    [
        ("horizon", "fraction", "a", "fraction must lie between 0 and 1"),
        ("stability", "lam", None, "lam must be above 0 and at most 1"),
        ("attention", "layer", "a", "attention has layers 0 to 1 and sequences 0 to 1"),
        ("paths", "threshold", math.nan, "threshold must be at least 0 and less than 1"),
        ("paths", "layer", 2, "layer must lie between -2 and 1"),
        ("paths", "layer", "a", "layer must lie between -2 and 1"),
        ("landscape", "span", math.nan, "span must be a number above 0"),
        ("landscape", "span", 0, "span must be a number above 0"),
        ("landscape", "held_out", 3, "held_out must be a pair of tensors, (inputs, targets)"),
        ("separation", "templates", 3, "templates must be a tensor (M, 2)"),
        ("attractors", "spread", "a", "spread must be a number of at least 0"),
        ("attractors", "unit", 0.5, "unit must be a whole number of at least 0"),
        ("attractors", "path", 3, "path must be a function of s or 'scale'"),
    ],
)
def test_a_wrong_value_is_refused_by_the_name_of_its_option(scope, option, value, rule):
    model = RelRNN(2, 3, num_layers=2, buffer=2, relevant=1) if scope in ("paths", "attention") else LSTM(2, 3)
    trained = {"targets": torch.zeros(4, 2, 3), "loss": F.mse_loss} if scope == "landscape" else {}
    with pytest.raises(MnemoscopeError, match=f"^{re.escape(rule)}; got "):
        SCOPES[scope].measure(model, torch.randn(4, 2, 2), **{option: value}, **trained)


def test_the_weights_that_are_scaled_must_be_there():
    with pytest.raises(MnemoscopeError, match=r"path='scale' multiplies weight_hh, and the model has no parameters"):
        attractors(CatMap(), torch.zeros(4, 1, 1, dtype=torch.float64), path="scale")
    with pytest.raises(MnemoscopeError, match="weight_hh, which is parametrized"):  # expm(s A) is not s expm(A)
        attractors(ExpRNN(2, 3), torch.zeros(4, 1, 2), path="scale")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"scopes": 3}, "scopes are names, as"),
        ({"options": {"horizon": 3}}, "options are by scope, as"),
        ({"options": ["horizon"]}, "options are by scope, as"),
        ({"options": {"attention": {"leyer": 1}}}, "attention has no option 'leyer'; did you mean layer?"),
        ({"options": {"horizon": {"seed": 1}}}, "horizon has no option 'seed'; "),
        ({"seed": 1.5}, "seed must be a whole number of at least 0; got 1.5"),
        ({"kwargs": 3}, "kwargs are what forward takes beside its inputs, by name; got 3"),
        ({"progress": 3}, "progress is a function of a scope's name, a fraction and a note; got 3"),
        ({"batch_first": "yes"}, "batch_first must be True, False or None, for what the model says; got 'yes'"),
    ],
)
def test_examine_refuses_wrong_arguments_before_it_measures(wrong, said):
    with pytest.raises(MnemoscopeError, match=f"^{re.escape(said)}"):
        examine(LSTM(2, 3), torch.randn(4, 2, 2), **wrong)


def test_a_seed_of_numpy_is_a_whole_number_too():
    x = torch.randn(4, 2, 2)
    found = [SCOPES["recurrence"].measure(LSTM(2, 3), x, seed=seed) for seed in (3, np.int64(3))]
    assert found[0].has_result
    assert found[1].has_result


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


@pytest.mark.parametrize(
    ("diverged", "said"), [(0.0, "a period of up to 4 steps."), (0.75, "up to 4 steps, and 75 % leave all bounds.")]
)
def test_orbits_that_do_not_settle_are_told_once(diverged, said):
    figures = {"attractors": 1.0, "periods": 0.0, "aperiodic": 1.0, "diverged": diverged, "transient": 300.0}
    series = {"orbits": torch.zeros(1, 4, 8).numpy()}
    sentence = _attractors._sentence(series, figures, over_parameters=False)
    assert sentence.startswith("Under constant inputs no orbit settles within 300 steps: none has ")
    assert sentence.endswith(said)
