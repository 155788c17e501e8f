"""What scopes say exactly at their limits: equality, order and ties."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from mnemoscope.finding import Finding
from mnemoscope.scopes import SCOPES, _horizon, _lyapunov, _recurrence, _separation, _signal, _stability, _truncation
from mnemoscope.scopes import scope as register
from mnemoscope.scopes._frame.examine import _choose
from mnemoscope.scopes._measures import decay, windows

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


# Horizon


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
    }
    return figures | {"strongest_lag": 1.0} | changes


NO_LAW = decay.Law("none", math.nan, math.nan, math.nan, math.nan)


@pytest.mark.parametrize(
    ("changes", "horizons", "sentence"),
    [
        ({"horizon": 20.0}, (20, 20), "Gradients reach back over all 20 steps that were looked at."),
        ({"horizon": 1.0, "lags": 1.0}, (1, 1), "Gradients reach back over the one step that was looked at."),
        ({"horizon": 19.0}, (19, 19), "Gradients reach 19 steps back, then fall under 1 % of their largest."),
        ({"horizon": 1.0}, (1, 1), "Gradients reach 1 step back, then fall under 1 % of their largest."),
        (
            {},
            (6, 11),
            "Gradients reach 8 steps back (6 to 11 over sequences and output steps), then fall under 1 % of their "
            "largest.",
        ),
        (
            {"present": 101.0},
            (8, 8),
            "Gradients reach 8 steps back, then fall under 1 % of their largest; the present input weighs 1e+02 times "
            "the strongest earlier one.",
        ),
        ({"horizon": 0.0, "present": np.inf}, (0, 0), "Gradients reach the present input only, none earlier."),
        ({"horizon": -1.0}, (-1, -1), "No gradient reaches any input."),
        (
            {"horizon": 20.0, "explodes_at": 3.0, "growth": 200.0, "strongest_lag": 7.0},
            (20, 20),
            "Gradients explode: 7 steps back they have grown to 2e+02 times their size.",
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
            horizon_figures(**changes), NO_LAW, {"horizon": np.array(horizons)}, subject, 0.01, "gradients"
        )
        == sentence
    )


def test_horizon_sentence_with_needs_and_law():
    law = decay.Law("exponential", 0.5, -1.0, 0.99, 3.0)
    sentence = _horizon._sentence(
        horizon_figures(), law, {"horizon": np.array([8, 8])}, SimpleNamespace(needs=12), 0.05, "gradients"
    )
    assert sentence == (
        "Gradients reach 8 steps back, then fall under 5 % of their largest; the task needs 12 (exponential, times "
        "0.5 per step)."
    )


def test_horizon_sentence_of_a_curve_with_a_gap():
    figures = horizon_figures(horizon=20.0, first_below=6.0, returns_at=18.0, at_need=0.0012)
    spread = {"horizon": np.array([20, 20]), "first_below": np.array([5, 8])}
    sentence = _horizon._sentence(figures, NO_LAW, spread, SimpleNamespace(needs=12), 0.01, "gradients")
    assert sentence == (
        "Gradients reach 5 steps back (4 to 7 over sequences and output steps), are then under 1 % of their largest, "
        "and are there again 18 to 20 steps back, where the sequences begin; the task needs 12, where they are 0.0012 "
        "of their largest."
    )
    figures |= {"horizon": 18.0}
    spread = {"horizon": np.array([18, 18]), "first_below": np.array([6, 6])}
    sentence = _horizon._sentence(figures, NO_LAW, spread, SimpleNamespace(needs=None), 0.01, "gradients")
    assert sentence.endswith(
        "reach 5 steps back, are then under 1 % of their largest, and are there again 18 steps back."
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


# Truncation


def test_shortest_window_at_equality():
    lengths = np.array([1, 2, 4, 8])
    assert windows.shortest(lengths, np.array([0.5, 0.1, 0.01, 0.001]), 0.01) == 4
    assert windows.shortest(lengths, np.array([0.01, 0.0, 0.0, 0.0]), 0.01) == 1
    assert windows.shortest(lengths, np.array([0.0, 0.0, 0.0, 0.02]), 0.01) == math.inf


def test_shortest_window_is_after_the_last_error_that_is_too_large():
    lengths = np.array([1, 2, 4, 8])
    assert windows.shortest(lengths, np.array([0.5, 0.001, 0.5, 0.001]), 0.01) == 8
    assert windows.shortest(lengths, np.array([0.5, math.nan, 0.001, 0.001]), 0.01) == 4


@pytest.mark.parametrize("shortest", [5, 6, 8])
def test_shortest_window_is_found_by_bisection(shortest):
    lengths = np.array([1, 2, 4, 8])
    errors = np.where(lengths >= shortest, 0.0, 1.0)
    assert windows.shortest(lengths, errors, 0.01, lambda k: float(k < shortest)) == shortest


@pytest.mark.parametrize("window", [1, 3, 4, 8, 16])
@pytest.mark.parametrize("of_part", [1, 2, 5, 8, 13, 16])
def test_the_window_of_a_part_is_found_from_that_of_the_whole(window, of_part):
    asked = []

    def error_of(k):
        asked.append(k)
        return float(k < of_part)

    lengths = np.array([1, 2, 4, 8, 16])
    assert windows.shortest_near(window, lengths, 0.01, error_of) == of_part
    assert 0 not in asked
    assert window != of_part or len(asked) <= 2
    assert windows.shortest_near(window, lengths, 0.01, lambda _: math.nan) == math.inf


def test_a_range_holds_its_figure():
    assert windows.widened(np.arange(101.0), 50).tolist() == [5, 95]
    assert windows.widened(np.arange(101.0), 2).tolist() == [2, 95]
    assert windows.widened(np.arange(101.0), 99).tolist() == [5, 99]


@pytest.mark.parametrize(
    ("figures", "needs", "sentence"),
    [
        ({"window": 20.0}, None, "No window shorter than the 20 steps looked at gives its last output to 1 %."),
        (
            {"window": 20.0, "bptt_window": 20.0, "bptt_window_measured": 20.0},
            None,
            "No window shorter than the 20 steps looked at gives its last output to 1 %; no chunks shorter than the 20 "
            "steps give the gradient to 1 %.",
        ),
        (
            {"window": 20.0, "bptt_window": 20.0, "bptt_window_measured": 20.0, "bptt_window_coarse": 12.0},
            None,
            "No window shorter than the 20 steps looked at gives its last output to 1 %; no chunks shorter than the 20 "
            "steps give the gradient to 1 %; those of 12 give it to 10 %.",
        ),
        (
            {"window": 20.0, "bptt_window": 14.0, "bptt_window_measured": 14.0, "bptt_window_coarse": 3.0},
            None,
            "No window shorter than the 20 steps looked at gives its last output to 1 %; backpropagation in chunks of "
            "14 steps gives the gradient to 1 %, of 3 to 10 %.",
        ),
        (
            {"window": 1.0, "output_variation": 0.01},
            None,
            "Its last output hardly depends on the inputs: from sequence to sequence it varies by 0.01 of its size, so "
            "no window can be told.",
        ),
        (
            {"window": 20.0, "certified_window": 24.0},
            None,
            "No window shorter than the 20 steps looked at gives its last output to 1 %; 24 are proved to be enough.",
        ),
        (
            {"window": 20.0, "bptt_window": 19.0, "bptt_window_measured": 19.0, "certified_window": math.inf},
            18,
            "No window shorter than the 20 steps looked at gives its last output to 1 %; backpropagation in chunks of "
            "19 steps gives the gradient to 1 %.",
        ),
        (
            {"window": 19.0, "bptt_window": 16.0, "bptt_window_measured": 4.0, "certified_window": 40.0},
            15,
            "The last 19 inputs give its last output to 1 %: a feed-forward network over so many inputs could replace "
            "it (proved for 40); chunks of 4 steps give the gradient to 1 %, but the task needs 15 steps back: "
            "backpropagate through at least 16.",
        ),
    ],
)
def test_truncation_sentence(figures, needs, sentence):
    assert _truncation._sentence({"steps": 20.0, **figures}, {}, {"ends": "last"}, 0.01, needs) == sentence


@pytest.mark.parametrize(
    ("figures", "sentence"),
    [
        (
            (12.0, 9.0, 9.0),
            "The last 12 inputs (3 to 12 over sequences) give its last output to 1 %: a feed-forward network over so "
            "many inputs could replace it; backpropagation in chunks of 9 steps (7 to 15 over 4 groups of sequences) "
            "gives the gradient to 1 %.",
        ),
        (
            (20.0, 16.0, 9.0),
            "No window shorter than the 20 steps looked at gives its last output to 1 % (3 to 12 over sequences); "
            "chunks of 9 steps (7 to 15 over 4 groups of sequences) give the gradient to 1 %, but the task needs 15 "
            "steps back: backpropagate through at least 16.",
        ),
    ],
)
def test_truncation_sentence_says_its_spread(figures, sentence):
    named = dict(zip(("window", "bptt_window", "bptt_window_measured"), figures, strict=True)) | {"steps": 20.0}
    spread = {"window": np.array([3, 12]), "bptt_window_measured": np.array([7, 15]), "bptt_window": np.array([7, 15])}
    labels = {"ends": "last", "over": "4 groups of sequences"}
    assert _truncation._sentence(named, spread, labels, 0.01, 15 if figures[1] == 16 else None) == sentence


def test_truncation_sentence_of_a_model_that_reads_both_directions():
    said = _truncation._sentence({"steps": 20.0, "window": 6.0}, {}, {"ends": "first and last"}, 0.01, None)
    assert said == (
        "The 6 inputs nearest to them give its first and last output to 1 %; those between, which read both "
        "directions, were not looked at."
    )


@pytest.mark.parametrize(("needs", "count"), [(None, 0), (8, 0), (9, 1), (500, 1)])
def test_truncation_warning_at_equality_with_the_need(needs, count):
    assert len(_truncation._warnings(SimpleNamespace(needs=needs), {"window": 8.0, "steps": 20.0})) == count


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
        (0.5, 0.25, "edge"),
        (-0.5, 0.25, "edge"),
        (0.5001, 0.25, "chaotic"),
        (-0.5001, 0.25, "contractive"),
        (-0.0101, 1e-17, "contractive"),
        (1e-15, 0.0, "edge"),
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
        "It is not contractive in every direction: small differences were stretched 1.2 times in the median, 1.42 "
        "times at most (spectral norm of the Jacobian), although a step multiplied the distance of sampled pairs of "
        "states by 0.834 in the median, by 0.967 at most; no proof applies to it."
    )
    apart = _stability._sentence(figures | {"largest_ratio": 1.0}, None, "not contractive")
    assert apart.startswith("It is not contractive: a step multiplied the distance")
