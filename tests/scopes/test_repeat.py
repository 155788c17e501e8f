"""A model is run twice on the same inputs before anything is said about it."""

import random
from collections import deque
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from mnemoscope import LSTM, examine
from mnemoscope.scopes import SCOPES, horizon, landscape, lyapunov, recurrence, stability, truncation
from mnemoscope.scopes._frame.repeat import find_repetition
from mnemoscope.scopes._frame.snapshot import Snapshot
from mnemoscope.scopes._frame.subject import subject_of

STATE, RANDOM, CHANGES = "keeps state between calls", "is random", "changes between calls"


class Keeps(nn.Module):
    """An LSTM that goes on from the state in which its last call ended."""

    def __init__(self):
        super().__init__()
        self.layer = nn.LSTM(4, 5)
        self.h = None

    def forward(self, x):
        y, state = self.layer(x, self.h)
        self.h = tuple(s.detach() for s in state)
        return y


class KeepsInBuffer(nn.Module):
    def __init__(self, in_place):
        super().__init__()
        self.layer, self.in_place = nn.GRU(4, 5), in_place
        self.register_buffer("h", torch.zeros(1, 1, 5))

    def forward(self, x):
        y, h = self.layer(x, self.h.expand(-1, x.shape[1], -1).contiguous())
        h = h.detach().mean(1, keepdim=True)
        if self.in_place:
            self.h.copy_(h)
        else:
            self.h = h
        return y


@dataclass
class Store:
    calls: int = 0


class KeepsInStore(nn.Module):
    """Keeps what it has seen in a list, a deque, a dict and an object of its own."""

    def __init__(self):
        super().__init__()
        self.layer = nn.GRU(4, 5)
        self.list, self.deque, self.dict, self.store = [], deque(maxlen=3), {}, Store()

    def forward(self, x):
        y = self.layer(x)[0] + len(self.list) + len(self.deque) + len(self.dict) + self.store.calls
        self.list.append(x.detach())
        self.deque.append(x.detach())
        self.dict[len(self.dict)] = x.detach()
        self.store.calls += 1
        return y


class KeepsInLoop:
    """An object with a step whose state is not all: it counts its calls."""

    input_size = 4

    def __init__(self):
        self.weight = torch.randn(5, 4)
        self.calls = 0

    def initial_state(self, batch):
        return torch.zeros(batch, 5)

    def step(self, x, state):
        self.calls += 1
        h = torch.tanh(0.5 * state + x @ self.weight.T + 0.1 * self.calls)
        return h, h


class Dropping(nn.Module):
    """Dropout that is always on."""

    def __init__(self):
        super().__init__()
        self.layer = nn.LSTM(4, 5)

    def forward(self, x):
        return F.dropout(self.layer(x)[0], 0.5)


class Noisy(nn.Module):
    """Noise from a generator of its own, or from one of the global ones."""

    def __init__(self, draw):
        super().__init__()
        self.layer = nn.LSTM(4, 5)
        self.torch_generator = torch.Generator().manual_seed(0)
        self.python_generator = random.Random(0)
        self.numpy_generator = np.random.default_rng(0)
        self.draw = draw

    def forward(self, x):
        return self.layer(x)[0] + self.draw(self)


def closed_over():
    calls = []

    def model(x):
        calls.append(1)
        return x.cumsum(0) + len(calls)

    return model


def closed_over_and_forgotten():
    """Goes on from the state of its last call, of which nothing is left at the end of the next one."""
    kept = {}

    def model(x):
        h, outputs = kept.get("h", torch.zeros_like(x[0])), []
        for x_t in x:
            h = 0.2 * h + x_t
            outputs.append(h)
        kept["h"] = h.detach()
        return torch.stack(outputs)

    return model


MODELS = {
    "attribute": (Keeps, STATE),
    "buffer": (lambda: KeepsInBuffer(in_place=False), STATE),
    "buffer in place": (lambda: KeepsInBuffer(in_place=True), STATE),
    "containers": (KeepsInStore, STATE),
    "dropout": (Dropping, RANDOM),
    "torch's generator": (lambda: Noisy(lambda m: torch.rand(())), RANDOM),
    "own generator": (lambda: Noisy(lambda m: torch.rand((), generator=m.torch_generator)), RANDOM),
    "own Python generator": (lambda: Noisy(lambda m: m.python_generator.random()), RANDOM),
    "own numpy generator": (lambda: Noisy(lambda m: m.numpy_generator.random()), RANDOM),
    "numpy's generator": (lambda: Noisy(lambda m: np.random.rand()), RANDOM),  # noqa: NPY002
    "urandom": (lambda: Noisy(lambda m: random.SystemRandom().random()), CHANGES),
    "closure": (closed_over, CHANGES),
    "closure that forgets": (closed_over_and_forgotten, CHANGES),
}


@pytest.mark.parametrize(("make", "kind"), MODELS.values(), ids=list(MODELS))
def test_kind_of_model_that_does_not_repeat(make, kind):
    torch.manual_seed(0)
    x = torch.randn(12, 3, 4)
    found = recurrence(make(), x, batch_first=False)
    assert found.labels["kind"] == kind
    assert found.sentence.partition(":")[0].endswith(kind)
    assert "other sequence" not in found.sentence
    assert "future" not in found.sentence
    assert found.figures["repeat_error"] > 1e-3
    assert len(found.warnings) == 1
    assert found.labels.get("kind_when_repeated") == (None if kind == CHANGES else "recurrent")


@pytest.mark.parametrize("seed", [0, 1, 12345])
def test_a_seed_set_just_before_does_not_hide_randomness(seed):
    model, x = Dropping(), torch.randn(12, 3, 4)
    torch.manual_seed(seed)
    assert recurrence(model, x).labels["kind"] == RANDOM


def test_models_that_repeat():
    model = nn.LSTM(4, 5, 2, dropout=0.5)
    found = recurrence(model, torch.randn(12, 3, 4))
    assert found.labels == {"kind": "recurrent"}
    assert found.figures["repeat_error"] == 0


def test_what_is_wrong_beside_the_state_is_said_too():
    class KeepsAndMixes(Keeps):
        def forward(self, x):
            y = super().forward(x)
            return y - y.mean(1, keepdim=True)

    found = recurrence(KeepsAndMixes(), torch.randn(12, 3, 4))
    assert found.labels == {"kind": STATE, "kind_when_repeated": "mixes sequences"}
    assert len(found.warnings) == 2


def test_figures_of_a_stateful_model_are_those_of_its_fresh_copy():
    """Reset before each run, the horizon and the window are those of the layer from its zero state."""
    model, x = Keeps(), torch.randn(30, 3, 4)
    for name in ("horizon", "truncation"):
        found = SCOPES[name].measure(model, x)
        expected = SCOPES[name].measure(model.layer, x)
        key = {"horizon": "horizon", "truncation": "window"}[name]
        assert found.figures[key] == expected.figures[key]
        assert "reset before each run" in found.sentence
        assert "reset" not in expected.sentence
    assert model.h is None


def test_a_random_model_is_measured_with_the_same_random_numbers():
    model, x = Dropping(), torch.randn(30, 3, 4)
    one, other = horizon(model, x), horizon(model, x)
    assert one.series["input_gradient"].tolist() == other.series["input_gradient"].tolist()
    assert one.figures["agreement"] < 30
    assert "its random numbers were the same in each run" in one.sentence
    window = truncation(model, x)
    assert window.status == "not applicable"
    assert "is random" in window.why


def test_loss_of_a_random_model():
    model, x = Dropping(), torch.randn(9, 3, 4)
    targets = torch.randn(9, 3, 5)
    found = [landscape(model, x, targets=targets, loss=F.mse_loss, points=5) for _ in range(2)]
    assert found[0].status == "estimated"
    assert found[0].figures == found[1].figures
    assert "same in each run" in found[0].sentence


def test_cost_of_a_stateful_model_under_other_parameters():
    """Resetting the model leaves the parameters alone that it is run with."""
    model, x, targets = Keeps(), torch.randn(9, 3, 4), torch.randn(9, 3, 5)
    found = landscape(model, x, targets=targets, loss=F.mse_loss, points=5)
    alone = landscape(model.layer, x, targets=targets, loss=F.mse_loss, points=5)
    assert np.ptp(found.series["cost"]) > 0
    np.testing.assert_allclose(found.series["cost"], alone.series["cost"], rtol=1e-4)


def test_the_layer_inside_is_examined_alone():
    model, x = Keeps(), torch.randn(12, 3, 4)
    found = lyapunov(model, x)
    assert found.figures == lyapunov(model.layer, x).figures
    assert any("its recurrent layer was run alone" in text for text in found.assumptions)


def test_no_start_is_certified_for_a_layer_that_goes_on_from_where_it_was():
    model = Keeps()
    for weight in model.layer.parameters():
        weight.data.mul_(0.1)
    x = torch.randn(12, 3, 4)
    assert stability(model.layer, x).status == "certified"
    assert stability(model, x).status == "estimated"


def test_a_step_that_keeps_state_is_no_recurrence():
    found = examine(KeepsInLoop(), torch.randn(12, 3, 4), scopes=["recurrence", "horizon", "lyapunov"])
    assert found["recurrence"].labels == {"kind": STATE, "kind_when_repeated": "recurrent"}
    assert found["horizon"].has_result
    assert found["lyapunov"].status == "not applicable"
    assert "not a function of the input and the state" in found["lyapunov"].why


@pytest.mark.parametrize(("make", "kind"), [(Keeps, STATE), (Dropping, RANDOM), (closed_over, CHANGES)])
def test_verdict_says_it_first(make, kind):
    found = examine(make(), torch.randn(12, 3, 4), batch_first=False, scopes=["recurrence", "horizon", "truncation"])
    assert kind in found.verdict.split(". ")[0]
    assert ("Gradients reach" in found.verdict) == (kind != CHANGES)
    if kind == CHANGES:
        assert [finding.status for finding in found] == ["estimated", "not applicable", "not applicable"]
        assert "no two runs can be compared" in found["horizon"].why


@pytest.mark.parametrize("make", [make for make, kind in MODELS.values() if kind != CHANGES])
@pytest.mark.filterwarnings("error")
def test_models_are_left_as_they_were(make):
    """The next call gives what it gives without an examination in between."""
    x = torch.randn(12, 3, 4)
    outputs = []
    torch.manual_seed(5)
    weights = make().state_dict()
    for examined in (False, True):
        model = make()
        model.load_state_dict(weights)
        torch.manual_seed(0)
        np.random.seed(0)  # noqa: NPY002
        model(x)
        if examined:
            recurrence(model, x)
        outputs.append(model(x))
    torch.testing.assert_close(*outputs, rtol=0, atol=0)


@pytest.mark.parametrize(("make", "runs"), [(lambda: nn.Linear(4, 5), 2), (Dropping, 4), (Keeps, 5)])
def test_number_of_runs(make, runs):
    model, count = make(), []

    def run(x):
        count.append(1)
        y = model(x)
        return y[0] if isinstance(y, tuple) else y

    x = torch.randn(12, 3, 4)
    find_repetition(run, x, Snapshot(model))
    assert len(count) == runs


def test_seconds_of_a_run_are_measured():
    assert subject_of(LSTM(4, 5), torch.randn(12, 3, 4)).repetition.seconds > 0


def test_nan_repeats_itself():
    x = torch.randn(12, 3, 4)
    assert subject_of(lambda x: x * float("nan"), x).repetition.kind == ""
    assert subject_of(lambda x: x / 0, x).repetition.kind == ""
