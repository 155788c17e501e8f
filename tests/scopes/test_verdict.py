"""The verdict's three sentences, word for word, from made-up findings."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

import mnemoscope
from mnemoscope.finding import Finding
from mnemoscope.scopes._frame.verdict import BROKEN, verdict

SUBJECT = SimpleNamespace(name="Net(3, 4)", steps=20, batch=4, needs=12)
MEMORY, DYNAMICS, ADVICE = 0, 1, 2


def finding(scope, status="estimated", **fields):
    return Finding(scope, f"The {scope} sentence.", status, **fields)


def failed(scope, why="no luck"):
    return Finding(scope, f"{scope} failed.", "failed", why)


def sentences(*findings, **about):
    """Split the verdict of these findings into its three sentences; every made-up one ends with 'sentence.'"""
    text = verdict({each.scope: each for each in findings}, SimpleNamespace(**{**vars(SUBJECT), **about}))
    parts = [part if part.endswith(".") else f"{part}." for part in text.split(". ")]
    assert len(parts) == 3, text
    return parts


def test_verdict_of_nothing():
    assert sentences() == [
        "How far back Net(3, 4) remembers was not measured.",
        "Its dynamics were not measured.",
        "What to do cannot be said without its horizon.",
    ]


def test_sentences_are_in_the_order_memory_dynamics_advice():
    given = [finding("truncation", figures={"bptt_window": 7}), finding("lyapunov"), finding("horizon")]
    for order in (given, given[::-1]):
        assert sentences(*order) == [
            "The horizon sentence.",
            "The lyapunov sentence.",
            "Backpropagation may run in chunks of 7 steps.",
        ]


def test_memory_is_the_horizon_before_the_recurrence():
    recurrent = finding("recurrence", labels={"kind": "recurrent"})
    assert sentences(recurrent, finding("horizon"))[MEMORY] == "The horizon sentence."
    assert sentences(recurrent)[MEMORY] == "The recurrence sentence."


@pytest.mark.parametrize("kind", BROKEN)
def test_memory_is_the_recurrence_of_a_broken_model(kind):
    broken = finding("recurrence", labels={"kind": kind})
    assert sentences(broken, finding("horizon"))[MEMORY] == "The recurrence sentence."


@pytest.mark.parametrize("kind", ["recurrent", "bidirectional", "reads the future"])
def test_memory_is_the_horizon_of_other_kinds(kind):
    other = finding("recurrence", labels={"kind": kind})
    assert sentences(other, finding("horizon"))[MEMORY] == "The horizon sentence."


def test_broken_kinds():
    assert set(BROKEN) == {"runs over the batch", "mixes sequences", "memoryless", "detached"}


def test_failure_of_the_recurrence_comes_before_that_of_the_horizon():
    both = sentences(failed("horizon", "second"), failed("recurrence", "first"))
    assert both[MEMORY] == "How far back Net(3, 4) remembers could not be measured: first."
    assert both[ADVICE] == "What to do: fix what could not be measured first."
    alone = sentences(failed("horizon", "second"))
    assert alone[MEMORY] == "How far back Net(3, 4) remembers could not be measured: second."


def test_failures_do_not_matter_if_the_horizon_was_measured():
    parts = sentences(failed("recurrence"), finding("horizon"))
    assert (parts[MEMORY], parts[ADVICE]) == ("The horizon sentence.", "Nothing calls for a change.")


def test_failures_of_other_scopes_do_not_matter():
    assert sentences(failed("stability"), finding("horizon"), failed("signal"))[ADVICE] == "Nothing calls for a change."


@pytest.mark.parametrize("status", ["skipped", "not applicable"])
def test_what_was_not_measured_is_neither_a_result_nor_a_failure(status):
    parts = sentences(
        finding("recurrence"),
        finding("horizon", status, warnings=("unheard",)),
        finding("lyapunov", status),
        finding("truncation", status, figures={"bptt_window": 7}),
    )
    assert parts == [
        "The recurrence sentence.",
        "Its dynamics were not measured.",
        "What to do cannot be said without its horizon.",
    ]


def test_dynamics_are_lyapunov_then_stability_then_smoothness():
    ranking = ["lyapunov", "stability", "smoothness"]
    for first in range(3):
        given = [finding(name) for name in reversed(ranking[first:])]
        assert sentences(*given)[DYNAMICS] == f"The {ranking[first]} sentence."


def test_a_certified_finding_is_a_result():
    assert sentences(finding("stability", "certified"))[DYNAMICS] == "The stability sentence."


def test_advice_is_the_first_warning_recurrence_before_horizon_before_the_others():
    signal = finding("signal", warnings=("from signal",))
    horizon = finding("horizon", warnings=("from horizon", "second"))
    recurrence = finding("recurrence", warnings=("from recurrence",))
    assert sentences(signal, horizon, recurrence)[ADVICE] == "What to do: from recurrence."
    assert sentences(signal, horizon)[ADVICE] == "What to do: from horizon."
    assert sentences(signal, finding("horizon"))[ADVICE] == "What to do: from signal."


def test_warnings_of_other_scopes_are_heard_in_the_order_of_the_findings():
    one, other = (finding(name, warnings=(f"from {name}",)) for name in ("stability", "attention"))
    assert sentences(one, other)[ADVICE] == "What to do: from stability."
    assert sentences(other, one)[ADVICE] == "What to do: from attention."


def test_a_warning_comes_before_the_truncation_window():
    window = finding("truncation", figures={"bptt_window": 7}, warnings=("from truncation",))
    assert sentences(window)[ADVICE] == "What to do: from truncation."


@pytest.mark.parametrize(
    ("window", "advice"),
    [
        (10.0, "Backpropagation may run in chunks of 10 steps."),
        (11.0, "Nothing calls for a change."),  # two chunks, one of them short: hardly anything is gained
        (20.0, "Nothing calls for a change."),
        (float("inf"), "Nothing calls for a change."),
        (float("nan"), "Nothing calls for a change."),
    ],
)
def test_truncation_window_against_the_length_of_the_sequences(window, advice):
    given = finding("horizon"), finding("truncation", figures={"bptt_window": window})
    assert sentences(*given)[ADVICE] == advice


@pytest.mark.parametrize(("reach", "told"), [(6.0, True), (7.0, False), (19.0, False)])
def test_no_chunk_is_told_that_is_shorter_than_gradients_reach(reach, told):
    given = finding("horizon", figures={"horizon": reach}), finding("truncation", figures={"bptt_window": 7.0})
    assert ("chunks" in sentences(*given)[ADVICE]) == told


def test_truncation_without_a_step_gives_no_window():
    given = finding("horizon"), finding("truncation", figures={"window": 3})
    assert sentences(*given)[ADVICE] == "Nothing calls for a change."


def test_advice_without_a_warning():
    reached = finding("horizon")
    assert sentences(reached)[ADVICE] == "Nothing calls for a change."
    depends = "Whether that is enough depends on the task: say how many steps back it needs (needs)."
    assert sentences(reached, needs=None)[ADVICE] == depends
    turned = (
        "What to do: look at the layout: these are 40 sequences of 4 steps; if they are 4 of 40, pass the other "
        "batch_first."
    )
    assert sentences(reached, steps=4, batch=40)[ADVICE] == turned
    assert sentences(reached, steps=4, batch=4)[ADVICE] == "Nothing calls for a change."
    assert sentences(reached, steps=10, batch=40)[ADVICE] == "Nothing calls for a change."


@pytest.mark.parametrize("latches", [True, False])
def test_a_switch_that_keeps_its_input_is_not_told_to_reach_further(latches):
    """No gradient passes a saturated unit, and yet its sign is that of the first input, all the way to the end."""
    unit = mnemoscope.RNN(1, 1, bias=False).double()
    with torch.no_grad():
        unit.weight_hh_l0.fill_(3.0 if latches else 0.1)
        unit.weight_ih_l0.fill_(1.0)
    x = torch.randn(30, 6, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64).sign()
    x[1:] *= 0.1
    found = mnemoscope.examine(unit, x, needs=29, scopes=["recurrence", "horizon", "truncation"])
    assert found["horizon"].figures["horizon"] < 10
    assert (
        "What to do: nothing if it solves the task: outputs depend on inputs as far back" in found.verdict
    ) == latches
    assert "gradients do not reach as far as the task needs" in found.verdict
