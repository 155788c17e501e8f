"""What a page says first: exact values, at equality too."""

from dataclasses import replace

import numpy as np
import pytest
from specimens import made

from mnemoscope.finding import Finding
from mnemoscope.report._headline import (
    Alarm,
    HeadlineValue,
    ScopeWarning,
    alarms,
    headlines,
    mixed_layouts,
    verdict,
    warnings,
)


def horizon(reach=10.0, lags=100.0, explodes_at=np.inf, gradient=(2.0, 1.0)):
    figures = {"horizon": reach, "lags": lags, "explodes_at": explodes_at}
    return Finding("horizon", "H.", "estimated", figures=figures, series={"input_gradient": np.array(gradient)})


def examined(needs=None, **findings):
    examination = made(**findings)
    return replace(examination, about={} if needs is None else {"needs": str(needs)})


def headline(number, examination):
    value = headlines({"m": examination})[number].values[0]
    return value.value, value.remark, value.tone


@pytest.mark.parametrize(
    ("reach", "needs", "shown"),
    [
        (29, 30, ("29 steps", "the task needs 30", "bad")),
        (30, 30, ("30 steps", "the task needs 30", "good")),
        (99, 150, ("99 steps", "the task needs 150", "bad")),
        (100, 100, ("all 100 steps", "the task needs 100", "good")),
        (100, 150, ("all 100 steps", "the task needs 150", "")),  # no longer lags could be looked at
        (99, None, ("99 steps", "of 100 looked at", "")),
        (100, None, ("all 100 steps", "", "")),
        (-1, None, ("0 steps", "of 100 looked at", "")),
    ],
)
def test_horizon_headline_at_equality(reach, needs, shown):
    assert headline(0, examined(needs, horizon=horizon(reach))) == shown


@pytest.mark.parametrize(("lags", "value"), [(1, "the one step"), (2, "both steps"), (1200, "all 1,200 steps")])
def test_a_horizon_of_all_steps_is_good_english(lags, value):
    assert headline(0, examined(None, horizon=horizon(lags, lags=lags)))[0] == value


def test_a_model_that_runs_over_the_batch_has_no_horizon():
    """Its lags are sequences, not steps; what is said of its step holds all the same."""
    turned = Finding("recurrence", "It does.", "estimated", labels={"kind": "runs over the batch"})
    figures = {"largest": -0.1, "standard_error": 0.02}
    lyapunov = Finding("lyapunov", "L.", "estimated", figures=figures, labels={"regime": "contractive"})
    found = examined(30, recurrence=turned, horizon=horizon(100), lyapunov=lyapunov)
    blank = ("–", "it runs over the batch", "bad")
    assert [headline(number, found) == blank for number in range(4)] == [True, False, True, True]
    assert spreads(found)[0] == ""


def spreads(examination):
    return [headline.values[0].spread for headline in headlines({"m": examination})]


def test_headlines_have_their_own_spread():
    reached = horizon(10.0, gradient=(2.0, 4.0, 2.0))
    reached = replace(
        reached, spread={"horizon": np.array([7.0, 12.0]), "input_gradient": np.array([[1, 3, 1.6], [3, 5, 2.4]])}
    )
    figures = {"largest": -0.1, "standard_error": 0.02}
    lyapunov = Finding("lyapunov", "L.", "estimated", figures=figures, labels={"regime": "contractive"})
    figures = {"bptt_window": 31.0, "bptt_window_measured": 20.0, "steps": 100.0}
    groups = {"bptt_window": np.array([31.0, 31.0]), "bptt_window_measured": np.array([14.0, 25.0])}
    over = {"over": "4 groups of sequences"}
    truncation = Finding("truncation", "T.", "estimated", figures=figures, spread=groups, labels=over)
    assert spreads(examined(30, horizon=reached, lyapunov=lyapunov, truncation=truncation)) == [
        "7 to 12 over sequences and output steps",
        "± two standard errors",
        "20 were measured, 14 to 25 over 4 groups of sequences",
        "0.4 to 0.6 in the middle half",
    ]


@pytest.mark.parametrize(
    ("measured", "found", "said"),
    [
        (31.0, [25.0, 40.0], "25 to 40 over 3 sequences"),
        (31.0, [31.0, 31.0], "the same for all 3 sequences"),
        (20.0, [20.0, 20.0], "20 were measured, the same for all 3 sequences"),
        (31.0, None, ""),  # one sequence
        (20.0, None, "20 were measured"),
    ],
)
def test_spread_of_the_bptt_window(measured, found, said):
    figures = {"bptt_window": 31.0, "bptt_window_measured": measured, "steps": 100.0}
    spread = {} if found is None else {"bptt_window_measured": np.array(found)}
    finding = Finding("truncation", "T.", "estimated", figures=figures, spread=spread, labels={"over": "3 sequences"})
    assert spreads(examined(truncation=finding))[2] == said


def test_a_horizon_that_all_sequences_agree_on():
    agreed = replace(horizon(10.0), spread={"horizon": np.array([10.0, 10.0])})
    assert spreads(examined(horizon=agreed))[0] == "the same for all sequences and output steps"


def test_what_is_proved_or_not_known_has_no_spread():
    assert spreads(examined()) == ["", "", "", ""]
    assert spreads(examined(horizon=horizon(100, explodes_at=7.0)))[0] == ""
    figures = {"lambda": 0.5, "typical_jacobian": 0.3}
    proved = Finding("stability", "S.", "estimated", figures=figures, certified=("lambda",))
    assert spreads(examined(stability=proved))[1] == ""
    seen = Finding("stability", "S.", "estimated", figures=figures)
    assert spreads(examined(stability=seen))[1] == "the largest; 0.3 in the median"


@pytest.mark.parametrize(
    ("reached", "figures", "shown"),
    [
        (1.0, {}, "1 step"),
        (8.0, {}, "8 steps"),
        (18.0, {"returns_at": 18.0, "first_below": 6.0}, "5, and 18 steps"),
        (20.0, {"returns_at": 18.0, "first_below": 6.0}, "5, and 18 to 20 steps"),
    ],
)
def test_steps_of_the_horizon(reached, figures, shown):
    finding = horizon(reached)
    assert headline(0, examined(horizon=replace(finding, figures={**finding.figures, **figures})))[0] == shown


def test_horizon_headline_of_an_exploding_gradient():
    shown = headline(0, examined(30, horizon=horizon(100, explodes_at=7.0)))
    assert shown == ("explodes", "from 7 steps back", "bad")


@pytest.mark.parametrize(
    ("status", "exponent", "regime", "shown"),
    [
        ("certified", -0.1, "contractive", ("expansive", "λ = 2", "")),
        ("estimated", -0.1, "contractive", ("contractive", "exponent -0.1 per step", "")),
        ("estimated", 0.5, "chaotic", ("chaotic", "exponent 0.5 per step", "bad")),
        (
            "estimated",
            0.0,
            "marginally stable between remembered states",
            ("marginally stable", "exponent 0 per step, between remembered states", ""),
        ),
        (
            "estimated",
            0.0,
            "marginally stable beside its memory",
            ("marginally stable", "exponent 0 per step, between remembered states", ""),
        ),
        ("estimated", np.nan, "", ("expansive", "λ ≈ 2", "")),
    ],
)
def test_dynamics_headline_takes_what_is_proved_then_the_exponent_then_the_norm(status, exponent, regime, shown):
    certified = ("lambda",) if status == "certified" else ()
    labels = {"regime": "expansive"}
    stability = Finding("stability", "S.", status, figures={"lambda": 2.0}, certified=certified, labels=labels)
    lyapunov = Finding("lyapunov", "L.", "estimated", figures={"largest": exponent}, labels={"regime": regime})
    assert headline(1, examined(stability=stability, lyapunov=lyapunov)) == shown


def test_an_exponent_has_the_digits_that_its_error_leaves():
    figures = {"largest": -0.0695, "standard_error": 0.033}
    lyapunov = Finding("lyapunov", "L.", "estimated", figures=figures, labels={"regime": "unclear"})
    assert headline(1, examined(lyapunov=lyapunov)) == ("unclear", "exponent -0.07 ± 0.07 per step", "")


@pytest.mark.parametrize(
    ("factor", "shown"), [(0.9996, "0.9996"), (0.999993, "0.99999"), (0.99412, "0.994"), (1.0, "1")]
)
def test_a_stable_factor_is_not_shown_as_one(factor, shown):
    known = {"figures": {"lambda": factor}, "certified": ("lambda",), "labels": {"regime": "stable"}}
    stability = Finding("stability", "S.", "certified", **known)
    assert headline(1, examined(stability=stability)) == ("stable", f"λ = {shown}", "")


@pytest.mark.parametrize(
    ("window", "shown"),
    [
        (63.0, ("63 steps", "keep the gradient within 1 %", "")),
        (64.0, ("all 64 steps", "no fewer keep the gradient within 1 %", "")),
        (np.inf, ("all 64 steps", "no fewer keep the gradient within 1 %", "")),
    ],
)
def test_bptt_window_headline_at_equality(window, shown):
    truncation = Finding("truncation", "T.", "estimated", figures={"bptt_window": window, "steps": 64.0})
    assert headline(2, examined(truncation=truncation)) == shown
    truncation.figures["bptt_window_coarse"] = 20.0
    value, remark, tone = shown
    assert headline(2, examined(truncation=truncation)) == (value, f"{remark}; 20 keep it within 10 %", tone)
    truncation.figures["bptt_window_measured"] = 30.0  # the task needs more than that
    assert headline(2, examined(truncation=truncation)) == shown


@pytest.mark.parametrize(
    ("needs", "gradient", "shown"),
    [
        (2, (40.0, 4.0, 2.0, 1.0), ("0.5", "times the largest, 2 steps back", "good")),
        (3, (40.0, 4.0, 2.0, 1.0), ("0.25", "times the largest, 3 steps back", "good")),
        (9, (40.0, 4.0, 2.0, 1.0), ("0.25", "times the largest, 3 steps back", "")),  # 9 were not looked at
        (None, (0.0, 4.0, 2.0, 1.0), ("0.25", "times the largest, 3 steps back", "")),
        (2, (1.0, 100.0, 1.0), ("0.01", "times the largest, 2 steps back", "good")),
        (2, (1.0, 100.0, 0.99), ("0.0099", "times the largest, 2 steps back", "bad")),
        (2, (9.0, 9.0, 1.41567), ("0.157", "times the largest, 2 steps back", "good")),
        (2, (1.0, 1.0, np.nan), ("not known", "times the largest, 2 steps back", "bad")),
    ],
)
def test_far_gradient_headline_at_the_needed_lag_and_at_equality(needs, gradient, shown):
    assert headline(3, examined(needs, horizon=horizon(gradient=gradient))) == shown


def test_headlines_follow_the_fraction_and_the_error_that_were_asked_for():
    gradient = horizon(2.0, 2.0, gradient=(1.0, 100.0, 3.0))
    gradient.figures["fraction"] = 0.05
    truncation = Finding("truncation", "T.", "estimated", figures={"bptt_window": 8.0, "steps": 64.0, "error": 0.05})
    truncation.figures["bptt_window_coarse"] = 2.0
    found = examined(2, horizon=gradient, truncation=truncation)
    assert headline(2, found) == ("8 steps", "keep the gradient within 5 %; 2 keep it within 50 %", "")
    assert headline(3, found) == ("0.03", "times the largest, 2 steps back", "bad")


def test_missing_findings_show_a_dash_and_their_status():
    failed = Finding("horizon", "horizon failed.", "failed", "boom")
    assert headline(0, examined(horizon=failed)) == ("–", "failed", "")
    assert headline(0, examined()) == ("–", "not measured", "")


def test_headlines_keep_the_order_of_titles_and_models():
    found = headlines({"b": examined(horizon=horizon(3)), "a": examined(horizon=horizon(5))})
    titles = ["Memory horizon", "Dynamics", "Safe BPTT length", "Gradient at the far end"]
    assert [one.title for one in found] == titles
    assert found[0].values == (
        HeadlineValue("b", 0, "3 steps", "of 100 looked at", status="estimated"),
        HeadlineValue("a", 1, "5 steps", "of 100 looked at", status="estimated"),
    )


def test_dynamics_link_to_lyapunov_if_any_model_has_it_else_to_stability():
    stability = Finding("stability", "S.", "estimated", figures={"lambda": 2.0})
    lyapunov = Finding("lyapunov", "L.", "estimated", figures={"largest": 0.0})
    failed = Finding("lyapunov", "L.", "failed")
    links = [
        headlines(examinations)[1].scope
        for examinations in (
            {"a": examined(stability=stability), "b": examined(lyapunov=lyapunov)},
            {"a": examined(stability=stability, lyapunov=failed)},
            {"a": examined()},
        )
    ]
    assert links == ["lyapunov", "stability", "lyapunov"]


def recurrence(kind, *texts):
    return Finding("recurrence", f"It {kind}.", "estimated", labels={"kind": kind}, warnings=texts)


def test_alarms_come_worst_first_and_their_warnings_only_there():
    examinations = {
        "detached": examined(recurrence=recurrence("detached", "attach it")),
        "fine": examined(recurrence=recurrence("recurrent", "short"), horizon=replace(horizon(), warnings=("low",))),
        "turned": examined(recurrence=recurrence("runs over the batch", "set batch_first=True", "or transpose")),
    }
    assert alarms(examinations) == [
        Alarm("turned", "runs over the batch", "It runs over the batch.", "set batch_first=True; or transpose"),
        Alarm("detached", "detached", "It detached.", "attach it"),
    ]
    assert warnings(examinations) == [
        ScopeWarning("fine", "recurrence", "short"),
        ScopeWarning("fine", "horizon", "low"),
    ]


@pytest.mark.parametrize(
    ("kind", "heading"),
    [("detached", "a does not remember as it should"), ("is random", "a gives other outputs for the same inputs")],
)
def test_the_heading_of_an_alarm_says_no_more_than_was_seen(kind, heading):
    (alarm,) = alarms({"a": examined(recurrence=recurrence(kind))})
    assert alarm.heading == heading


def test_verdict_of_one_model_is_its_own_and_of_several_compares_in_order():
    one = examined(30, horizon=horizon(10))
    assert verdict({"a": one}) == ["It remembers. It moves. Do nothing."]
    window = Finding("truncation", "T.", "estimated", figures={"bptt_window": 8.0, "steps": 64.0})
    lyapunov = Finding("lyapunov", "L.", "estimated", figures={"largest": -0.35254}, labels={"regime": "contractive"})
    two = {"z": one, "a": examined(30, horizon=horizon(30), truncation=window, lyapunov=lyapunov)}
    assert verdict(two) == [
        "How far back gradients reach, where the task needs 30: z 10 steps, which is not enough; a 30 steps.",
        "Dynamics: z – (not measured); a contractive (exponent -0.353 per step, estimated).",
        "Safe BPTT length: z –; a 8 steps.",
    ]


def test_verdict_names_each_need_if_they_differ():
    near, far = examined(8, horizon=horizon(10)), examined(30, horizon=horizon(10))
    compared = "How far back gradients reach: a 10 steps (the task needs 8); b 10 steps (the task needs 30)."
    assert verdict({"a": near, "b": far})[0] == compared


def test_inputs_that_were_read_in_two_layouts_are_not_compared():
    def read(inputs):
        return replace(examined(horizon=horizon()), about={"inputs": inputs})

    two = {"a": read("6 sequences of 50 steps"), "b": read("50 sequences of 6 steps")}
    assert "their figures cannot be compared" in verdict(two)[0]
    assert verdict(two)[0].startswith("a read 6 sequences of 50 steps, b 50 sequences of 6 steps")
    for other in ("6 sequences of 50 steps", "6 sequences of 40 steps", "50 sequences of 50 steps"):
        assert not mixed_layouts({"a": read("6 sequences of 50 steps"), "b": read(other)})
    assert not mixed_layouts({"a": read("5 sequences of 5 steps"), "b": examined()})
