"""What scopes say exactly at their limits: equality, order and ties."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from mnemoscope.finding import Finding
from mnemoscope.scopes import SCOPES, _lyapunov, _recurrence, _separation, _signal, _stability
from mnemoscope.scopes import scope as register
from mnemoscope.scopes._frame.examine import _choose

# Order of an examination


@pytest.fixture
def ties():
    """Two scopes of equal cost, registered against the order of their names."""
    for name in ("zz_second", "aa_first"):
        body = lambda subject: None  # noqa: E731
        body.__name__ = name
        register("What?", needs="outputs", cost=0.25)(body)
    yield
    for name in ("zz_second", "aa_first"):
        del SCOPES[name]


def test_scopes_run_recurrence_first_then_by_cost_then_by_name(ties):
    names = [scope.name for scope in _choose(["landscape", "horizon", "zz_second", "recurrence", "aa_first"])]
    assert names == ["recurrence", "aa_first", "zz_second", "horizon", "landscape"]


def test_all_scopes_in_order_of_their_cost():
    assert [scope.name for scope in _choose(None)] == [
        "recurrence",
        "attention",
        "horizon",
        "signal",
        "stability",
        "separation",
        "truncation",
        "entropy",
        "lyapunov",
        "smoothness",
        "paths",
        "attractors",
        "landscape",
    ]


# Dynamics


@pytest.mark.parametrize(
    ("largest", "typical", "mean_stretch", "ratios", "regime"),
    [
        (1.0, 1.0, 1.0, None, "isometric"),
        (1.0, 1.0, 1.0, (1.0, 1.01), "isometric"),
        (1.0, 1.0, 0.9, None, "non-expansive on these sequences"),  # as a shift register, which forgets the oldest
        (1.0, 1.0, 1.0, (0.75, 0.9), "non-expansive on these sequences"),
        (1.0, 1.0, 0.9, (0.75, 1.2), "not contractive"),  # pairs that are far apart go further apart
        (1.0, 0.9, 0.9, None, "non-expansive on these sequences"),
        (0.99, 0.99, 0.9, None, "contractive on these sequences"),
        (0.9, 0.8, 0.8, (0.9, 1.1), "contractive on average"),
        (0.9, 0.8, 0.8, (1.0, 1.1), "not contractive"),
        (1.2, 1.0, 1.0, None, "not contractive"),
        (1.2, 0.9999, 0.9, None, "contractive on average"),
    ],
)
def test_stability_regimes(largest, typical, mean_stretch, ratios, regime):
    figures = {"largest_jacobian": largest, "typical_jacobian": typical}
    figures |= {} if ratios is None else {"typical_ratio": ratios[0], "largest_ratio": ratios[1]}
    assert _stability._regime(False, figures, mean_stretch) == regime
    assert _stability._regime(True, figures, mean_stretch) == "contractive"


@pytest.mark.parametrize(
    ("largest", "error", "regime"),
    [
        (0.5, 0.25, "unclear"),
        (-0.5, 0.25, "unclear"),
        (0.05, 0.025, "marginally stable"),
        (-0.05, 0.025, "marginally stable"),
        (0.5001, 0.25, "chaotic"),
        (-0.5001, 0.25, "contractive"),
        (-0.0101, 1e-17, "contractive"),
        (1e-15, 0.0, "marginally stable"),
        (-0.01, math.nan, "contractive"),
    ],
)
def test_lyapunov_regimes_at_two_standard_errors(largest, error, regime):
    wandering = _lyapunov.Orbit(torch.ones(10, 1), torch.ones(10, 1))
    assert _lyapunov._regime(largest, error, wandering, torch.float64) == regime


@pytest.mark.parametrize(
    ("growth", "move", "regime"),
    [(0.0, 0.0, "unstable fixed point"), (0.3, 1.0, "diverging"), (0.24, 1.0, "chaotic"), (0.0, 1.0, "chaotic")],
)
def test_lyapunov_regime_by_the_orbit_itself(growth, move, regime):
    sizes = torch.exp(growth * torch.arange(20.0, dtype=torch.float64))[:, None]
    assert _lyapunov._regime(0.5, 0.01, _lyapunov.Orbit(sizes, move * sizes), torch.float64) == regime


def test_kaplan_yorke_where_a_sum_is_zero():
    assert _lyapunov.kaplan_yorke(np.array([1.0, -1.0, -2.0]), 3) == 2.0
    assert _lyapunov.kaplan_yorke(np.array([0.0, -1.0]), 2) == 1.0  # a limit cycle
    assert _lyapunov.kaplan_yorke(np.array([1.0, -1.0]), 2) == 2.0
    assert math.isnan(_lyapunov.kaplan_yorke(np.array([1.0, -1.0]), 3))
    assert _lyapunov.kaplan_yorke(np.array([-1.0, -2.0]), 2) == 0.0
    assert _lyapunov.kaplan_yorke(np.array([1.0, -2.0]), 2) == 1.5


@pytest.mark.parametrize(
    ("figures", "starts"),
    [
        ({"saturated": 0.5, "silent": 0.5}, []),
        ({"saturated": 0.51, "silent": 0.51}, ["most units are saturated", "most units are silent"]),
    ],
)
def test_signal_warnings_at_one_half(figures, starts):
    assert [said[: len(start)] for said, start in zip(_signal._warnings(figures), starts, strict=True)] == starts


@pytest.mark.parametrize(
    ("rank", "effective", "word"), [(0, 0.0, "is zero"), (1, 1.04, "separately"), (2, 1.2, "effective rank 1.2")]
)
def test_separation_sentence_at_rank_one(rank, effective, word):
    figures = {"numerical_rank": float(rank), "effective_rank": effective, "full_rank": 16.0}
    assert word in _separation._sentence(figures, 8)


# Recurrence


def response(strength, step=2, sequence=1):
    return _recurrence.Response(torch.tensor(strength), step, sequence)


def test_response_before_after_and_others():
    answer = response([[0.1, 0.4, 0.0], [0.0, 0.5, 0.0], [0.0, 1.0, 0.3], [0.0, 0.25, 0.0]])
    assert (answer.before, answer.after) == (pytest.approx(0.5), pytest.approx(0.25))
    assert answer.others.tolist() == pytest.approx([0.1, 0.0, 0.3])


LIMIT = 0.125
SILENT = [[0.0] * 3 for _ in range(4)]


def kind(gradient, change, model=None):
    subject = SimpleNamespace(steps=4, model=model)
    return _recurrence._kind(subject, response(gradient), response(change), LIMIT, LIMIT)


def probe(**at):
    """A response of 1 at the probe, and of the given strengths at `t<step>s<sequence>`."""
    strength = [row[:] for row in SILENT]
    strength[2][1] = 1.0
    for key, value in at.items():
        strength[int(key[1])][int(key[3])] = value
    return strength


@pytest.mark.parametrize(
    ("gradient", "change", "expected"),
    [
        ({}, {}, "memoryless"),
        ({"t1s1": LIMIT}, {"t3s1": LIMIT}, "memoryless"),  # at the tolerance there is no response
        ({"t1s1": 0.13}, {}, "recurrent"),
        ({}, {"t3s1": 0.13}, "detached"),
        ({"t1s1": 0.5, "t3s1": LIMIT}, {"t1s1": LIMIT}, "recurrent"),
        ({"t1s1": 0.5, "t3s1": 0.13}, {}, "reads the future"),
        ({"t1s1": 0.5}, {"t1s1": 0.13}, "reads the future"),
        ({"t1s1": 0.5, "t2s0": LIMIT}, {"t2s2": LIMIT}, "recurrent"),
        ({"t2s0": 0.13}, {}, "runs over the batch"),  # each sequence reads the one before it
        ({}, {"t2s2": 0.13}, "runs over the batch"),
        ({"t2s2": 0.13}, {}, "mixes sequences"),
        ({}, {"t2s0": 0.13}, "mixes sequences"),
        ({"t2s0": 0.13, "t1s1": 0.13}, {}, "mixes sequences"),
        ({"t2s0": 0.13}, {"t3s1": 0.13}, "mixes sequences"),
    ],
)
def test_kinds_at_the_tolerance(gradient, change, expected):
    assert kind(probe(**gradient), probe(**change)) == expected


def test_kind_of_a_bidirectional_layer():
    model = torch.nn.LSTM(3, 4, bidirectional=True)
    assert kind(probe(t1s1=0.5, t3s1=0.5), probe(), model) == "bidirectional"


def test_finding_has_a_result_if_certified_or_estimated():
    statuses = ["certified", "estimated", "not applicable", "skipped", "failed"]
    assert [Finding("x", "X.", status).has_result for status in statuses] == [True, True, False, False, False]


# Stability


def test_pairs_that_come_nearer_do_not_contradict_small_differences_that_grow():
    figures = {"typical_jacobian": 1.2, "largest_jacobian": 1.42, "typical_ratio": 0.834, "largest_ratio": 0.967}
    assert _stability._sentence(figures, None, "not contractive") == (
        "It is not contractive in every direction: a step multiplied small differences by up to 1.2 at the median "
        "state, by up to 1.42 at the worst (spectral norm of the Jacobian), although it multiplied the distance of "
        "sampled pairs of states by 0.834 in the median, by 0.967 at most; no proof applies to it."
    )
    apart = _stability._sentence(figures | {"largest_ratio": 1.0}, None, "not contractive")
    assert apart.startswith("It is not contractive: a step multiplied the distance")
    isometric = figures | {"typical_jacobian": 1.0, "largest_jacobian": 1.0}
    kept = _stability._sentence(isometric, None, "non-expansive on these sequences")
    assert kept.startswith("It is non-expansive on these sequences: a step multiplied the distance of sampled pairs")
