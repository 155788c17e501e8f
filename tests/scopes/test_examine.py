import dataclasses
import pathlib
import re

import pytest
import torch
from torch import nn

import mnemoscope
from mnemoscope import LSTM, Examination, MnemoscopeError, RelRNN, examine
from mnemoscope.finding import Finding
from mnemoscope.scopes import SCOPES, scope
from mnemoscope.scopes._frame.late_progress import LateProgress

QUICK = ["recurrence", "horizon", "stability", "truncation", "signal", "attention"]


@pytest.fixture
def own_scope():
    """A scope registered for the test alone."""

    def register(body, **facts):
        facts = {"needs": "outputs", "cost": 0.5, **facts}
        made = scope("What is it?", **facts)(body)
        registered.append(body.__name__)
        return made

    registered = []
    yield register
    for name in registered:
        del SCOPES[name]


def test_examination_round_trip(tmp_path):
    found = examine(LSTM(3, 5), torch.randn(12, 4, 3), scopes=QUICK, needs=40)
    assert next(iter(found)).scope == "recurrence"
    assert {finding.scope for finding in found} == set(QUICK)
    assert found["attention"].status == "not applicable"
    assert all(finding.has_result for finding in found if finding.scope != "attention")
    assert found.about == {
        "model": "LSTM(3, 5)",
        "inputs": "4 sequences of 12 steps",
        "layout": "(time, batch, features)",
        "needs": "40",
    }
    assert not found.partial
    found.save(tmp_path)
    assert Examination.load(tmp_path) == found


@pytest.mark.parametrize("model", [LSTM(3, 5), nn.Linear(3, 2), nn.LSTM(3, 5, bidirectional=True)])
def test_verdict_has_three_sentences(model):
    found = examine(model, torch.randn(6, 8, 3), scopes=QUICK)
    assert len([end for end in found.verdict.replace(". ", ".\n").splitlines() if end.endswith(".")]) == 3


def test_verdict_begins_with_what_is_broken():
    found = examine(nn.LSTM(3, 5), torch.randn(6, 9, 3), batch_first=True, scopes=["recurrence", "horizon"])
    assert found.verdict.startswith("LSTM(3, 5) runs over the batch")
    assert "batch_first=True" in found.verdict


def test_verdict_names_failures_on_nan_outputs():
    found = examine(lambda x: x.cumsum(1) * float("nan"), torch.randn(2, 10, 3), scopes=["recurrence", "horizon"])
    assert "outputs are NaN or infinite from step 0" in found.verdict
    assert "What to do: fix" in found.verdict


def test_all_scopes_run_by_default(monkeypatch):
    asked = []
    for name, each in list(SCOPES.items()):

        def note(subject, name=name):
            asked.append(name)
            return Finding(name, "Noted.", "estimated")

        monkeypatch.setitem(SCOPES, name, dataclasses.replace(each, measure=note))
    examine(LSTM(3, 5), torch.randn(6, 2, 3))
    assert sorted(asked) == sorted(SCOPES)
    assert set(QUICK) <= set(asked)


def test_failed_scope_does_not_stop_the_others(own_scope):
    def broken(subject):
        raise ZeroDivisionError("of the scope's own")

    own_scope(broken)
    found = examine(LSTM(3, 5), torch.randn(6, 2, 3), scopes=["broken", "recurrence"])
    assert found["broken"].status == "failed"
    assert "ZeroDivisionError: of the scope's own" in found["broken"].why
    assert found["recurrence"].status == "estimated"


def test_out_of_memory_hint(own_scope):
    def greedy(subject):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3 TiB")

    own_scope(greedy)
    found = examine(LSTM(3, 5), torch.randn(6, 2, 3), scopes=["greedy"])
    assert "fewer or shorter sequences" in found["greedy"].why


def test_keyboard_interrupt_returns_partial_findings(own_scope):
    def pressed(subject):
        raise KeyboardInterrupt

    own_scope(pressed, cost=8.5)
    found = examine(LSTM(3, 5), torch.randn(6, 2, 3), scopes=["pressed", "horizon", "stability"])
    assert found.partial
    assert list(found.findings) == ["horizon"]
    assert "Gradients reach" in found.verdict


def test_spent_budget_skips_the_rest(own_scope):
    def endless(subject):
        for _ in iter(int, 1):
            subject.report(0.5)

    own_scope(endless, cost=0)
    found = examine(LSTM(3, 5), torch.randn(6, 2, 3), scopes=["endless", "horizon"], budget=0.2)
    assert found["endless"].status == found["horizon"].status == "skipped"
    assert "budget" in found["horizon"].why
    assert not found.partial


@pytest.mark.parametrize("model", [RelRNN(3, 5), nn.Linear(3, 5)])
def test_not_applicable_even_without_budget_left(model, own_scope):
    def endless(subject):
        for _ in iter(int, 1):
            subject.report(0.5)

    own_scope(endless, cost=0)
    found = examine(model, torch.randn(6, 2, 3), scopes=["endless", "entropy", "attractors", "landscape"], budget=0.2)
    assert [finding.status for finding in found] == ["skipped", *["not applicable"] * 3]


def test_progress_is_reported_for_every_scope():
    seen = []
    examine(RelRNN(3, 5), torch.randn(6, 2, 3), scopes=QUICK, progress=lambda *said: seen.append(said))
    names = list(dict.fromkeys(name for name, _, _ in seen))
    assert names[0] == "recurrence"
    assert set(names) == set(QUICK)
    for name in names:
        shares = [share for at, share, _ in seen if at == name]
        assert shares == sorted(shares)
        assert shares[-1] == 1


def test_progress_is_told_late_if_nobody_asked_for_it(capsys):
    seconds = iter([0.0, 4.9, 5.0, 5.0, 5.0, 14.9, 15.0, 15.0, 15.0, 99.0])
    progress = LateProgress(lambda: next(seconds))
    for done in (0.1, 0.25, 0.3, 0.5, 1.0):
        progress("smoothness", done, "")
    assert capsys.readouterr().err == (
        "mnemoscope: smoothness, 25 % done, 5 s so far\nmnemoscope: smoothness, 50 % done, 15 s so far\n"
    )


def test_options_reach_their_scope():
    found = examine(
        LSTM(3, 5), torch.randn(6, 2, 3), scopes=["horizon"], options={"horizon": {"behavior": False, "directions": 5}}
    )
    assert "agreement" not in found["horizon"].figures
    assert "input_gradient_spectral" in found["horizon"].series


def test_a_wrong_value_of_an_option_fails_its_scope_alone():
    found = examine(LSTM(3, 5), torch.randn(6, 2, 3), scopes=["horizon", "signal"], options={"horizon": {"ends": 0}})
    assert found["horizon"].why == "ends must be a whole number of at least 1; got 0"
    assert found["signal"].has_result


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"scopes": ["horizons"]}, "no scope 'horizons'; there are"),
        ({"scopes": [["horizon"]]}, r"no scope \['horizon'\]; there are"),
        ({"budget": 0}, "positive number of seconds"),
        ({"options": {"horizons": {}}}, "'horizons', which is not a scope"),
        ({"inputs": None}, "pass inputs"),
        ({"inputs": torch.randn(6, 2, 4)}, "input_size. Expected 3, got 4"),
        ({"model": lambda: 1 / 0}, "ZeroDivisionError"),
        ({"needs": -3}, "number of steps back"),
        ({"needs": "80"}, "number of steps back, at least 0; got '80'"),
        ({"budget": "45"}, "positive number of seconds; got '45'"),
        ({"targets": torch.zeros(6, 2)}, "targets= was given without loss="),
        ({"loss": nn.MSELoss()}, "loss= was given without targets="),
        ({"targets": torch.zeros(6, 2), "loss": "mse"}, "loss is a function, .*; got 'mse'"),
    ],
)
def test_examine_refuses_bad_arguments(asked, said):
    call = {"model": LSTM(3, 5), "inputs": torch.randn(6, 2, 3), **asked}
    with pytest.raises(MnemoscopeError, match=said):
        examine(**call)


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (nn.CrossEntropyLoss(), r"the loss raised \w+Error: .*, for outputs \[6, 2, 5\] and targets \[6, 2\]; give a"),
        (nn.MSELoss(reduction="none"), r"the loss gave numbers of shape \[6, 2, 5\] for outputs .*; give a function"),
    ],
)
def test_a_loss_that_does_not_fit_costs_its_own_scopes_only(loss, said):
    """The horizon needs no loss: it is measured, and its first warning says what is wrong with the loss."""
    targets = torch.zeros(6, 2).long() if isinstance(loss, nn.CrossEntropyLoss) else torch.zeros(6, 2, 5)
    found = examine(LSTM(3, 5), torch.randn(6, 2, 3), targets, loss, scopes=["horizon", "truncation", "landscape"])
    assert found["horizon"].has_result
    assert found["truncation"].has_result
    assert re.match(said, found["horizon"].warnings[0])
    assert re.match(said, found["landscape"].why)
    assert found["landscape"].status == "failed"
    assert "check that the model runs" not in found.verdict


def test_examine_refuses_a_model_that_does_not_run():
    with pytest.raises(MnemoscopeError, match="check that the model runs on these inputs"):
        examine(nn.Sequential(nn.Linear(3, 2), nn.Linear(3, 2)), torch.randn(6, 2, 3))


class CountsForwards(nn.Module):
    calls = 0  # of all such models: an attribute of one would be put back after each measurement

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        CountsForwards.calls += 1
        y = self.layer(x)
        return y[0] if isinstance(y, tuple) else y


@pytest.mark.parametrize("budget", [None, 3600])
@pytest.mark.parametrize("layer", [nn.Linear(3, 4), nn.LSTM(3, 4, batch_first=True)])
def test_forward_passes_before_the_first_scope(layer, budget, own_scope):
    """The model runs twice, to see if it repeats its outputs; adapting needs the first of these runs."""
    model, counts = CountsForwards(layer), []
    CountsForwards.calls = 0

    def first(subject):
        counts.append(CountsForwards.calls)
        return Finding("first", "Counted.", "estimated")

    def second(subject):
        return first(subject)

    own_scope(first)
    own_scope(second, cost=0.7)
    examine(model, torch.randn(2, 6, 3), scopes=["first", "second"], budget=budget)
    assert counts == [2, 2]


def test_forward_passes_of_a_recurrence_before_the_first_scope(own_scope):
    class CountingLSTM(LSTM):
        calls = 0

        def forward(self, *args):
            CountingLSTM.calls += 1
            return super().forward(*args)

    def first(subject):
        assert CountingLSTM.calls == 3  # one over a few steps: is its own forward its unrolled step?
        return Finding("first", "Counted.", "estimated")

    own_scope(first)
    assert examine(CountingLSTM(3, 4), torch.randn(6, 2, 3), scopes=["first"])["first"].has_result


def test_examine_is_deterministic():
    model, x = RelRNN(3, 5), torch.randn(8, 3, 3)
    one, other = (examine(model, x, scopes=["horizon", "signal"]) for _ in range(2))
    for a, b in zip(one, other, strict=True):
        assert a.figures == b.figures


def test_examination_in_a_notebook_and_in_print():
    found = examine(nn.Linear(3, 2), torch.randn(2, 6, 3), scopes=["recurrence", "horizon", "lyapunov", "stability"])
    assert repr(found) == (
        "<Examination of Linear: recurrence, horizon, stability, lyapunov; print it for its sentences>"
    )
    assert repr(found["horizon"]) == f"<Finding {found['horizon']}>"
    lines = str(found).splitlines()
    assert lines[0] == found.verdict
    assert [line.partition(":")[0] for line in lines[1:]] == [
        "- recurrence (estimated)",
        "- horizon (estimated)",
        "- stability, lyapunov (not applicable)",
    ]


@pytest.mark.parametrize(
    ("layer", "said"),
    [
        (nn.Dropout(0.5), "eval(), though the model is in train(): Dropout as in use"),
        (nn.Dropout(0.0), None),
        (nn.Dropout(0.5).eval(), None),
    ],
)
def test_a_model_in_training_mode_is_said_to_be_measured_in_the_other(layer, said):
    found = examine(nn.Sequential(nn.Linear(3, 2), layer), torch.randn(2, 6, 3), scopes=["recurrence"])
    assert found.about.get("mode") == said


def test_torchs_advice_on_batching_rules_is_not_shown(recwarn):
    class Loop(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = nn.RNNCell(3, 4)

        def forward(self, x):
            h, out = x.new_zeros(len(x), 4), []
            for step in x.unbind(1):
                h = self.cell(step, h)
                out.append(h)
            return torch.stack(out, 1)

    examine(Loop(), torch.randn(2, 6, 3), scopes=["horizon", "stability", "smoothness"])
    assert not [str(warning.message) for warning in recwarn if "performance drop" in str(warning.message)]


def test_public_names():
    assert mnemoscope.examine is examine
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        mnemoscope.nonsense  # noqa: B018


def test_seed_changes_the_random_direction():
    model, x = LSTM(3, 5), torch.randn(8, 3, 3)
    one, other = (SCOPES["horizon"].measure(model, x, seed=seed) for seed in (0, 1))
    assert one.series["input_gradient"].tolist() != other.series["input_gradient"].tolist()


@pytest.mark.parametrize("name", sorted(SCOPES))
def test_every_scope_has_a_title_a_question_and_help(name):
    own = SCOPES[name]
    assert own.title != name.capitalize() or name in ("stability", "attention", "signal", "attractors", "smoothness")
    assert own.question[0].isupper()
    assert own.question.endswith("?")
    assert own.help
    assert all(paragraph[-1] == "." and "\n" not in paragraph for paragraph in own.help)


def test_titles_are_different():
    assert len({own.title for own in SCOPES.values()}) == len(SCOPES)


def test_title_question_and_help_are_stored_with_every_finding(own_scope, tmp_path):
    def broken(subject):
        raise ZeroDivisionError

    own_scope(broken, title="A title", help="One\nline.\n\nTwo.\n")
    x = torch.randn(6, 2, 3)
    found = examine(LSTM(3, 5), x, scopes=["broken", "signal", "attention"])
    assert {finding.scope: finding.status for finding in found} == {
        "broken": "failed",
        "attention": "not applicable",
        "signal": "estimated",
    }
    assert (found["broken"].title, found["broken"].question) == ("A title", "What is it?")
    assert found["broken"].help == ("One line.", "Two.")
    found.save(tmp_path)
    for finding in Examination.load(tmp_path):
        own = SCOPES[finding.scope]
        assert (finding.title, finding.question, finding.help) == (own.title, own.question, own.help)


def test_the_title_of_a_scope_is_its_name_by_default(own_scope):
    def state_size(subject):
        return Finding("state_size", "Small.", "estimated")

    found = own_scope(state_size)(LSTM(3, 5), torch.randn(6, 2, 3))
    assert (found.title, found.help) == ("State size", ())


DOCUMENT = (pathlib.Path(__file__).parents[2] / "docs" / "scopes.md").read_text("utf-8")


def test_docs_row_of_every_scope():
    lines = [line for line in DOCUMENT.splitlines() if line.startswith("| `")]
    rows = [[cell.strip(" `") for cell in line.split("|")[1:-1]] for line in lines]
    documented = {row[0]: (row[1], float(row[4])) for row in rows}
    registered = {name: (own.question[0].lower() + own.question[1:], own.cost) for name, own in SCOPES.items()}
    assert documented == registered


def test_docs_example_of_a_new_scope():
    code = DOCUMENT.split("## A scope of your own")[1].split("```")[1].removeprefix("python")
    known = {"model": LSTM(3, 5), "inputs": torch.randn(6, 2, 3)}
    try:
        exec(code, known)
        assert known["size"](known["model"], known["inputs"]).figures["largest"] > 0
    finally:
        SCOPES.pop("size", None)
