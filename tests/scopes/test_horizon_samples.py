"""What each output step sees for itself, where the median over them hides it."""

import numpy as np
import pytest
import torch
from torch import nn

from mnemoscope import examine
from mnemoscope.scopes import Watch, _horizon, horizon
from mnemoscope.scopes._measures import decay


class Clockwork(nn.Module):
    """Units that are updated at every step, every 4th and every 16th: h -> h / 2 + x (Koutnik et al. 2014)."""

    input_size = 1

    def __init__(self):
        super().__init__()
        self.decay = nn.Parameter(torch.tensor(0.5))
        self.register_buffer("periods", torch.tensor([1, 4, 16]))

    def initial_state(self, batch):
        return torch.zeros(batch, 3), 0

    def step(self, x, state):
        h, t = state
        is_on = (t % self.periods == 0).to(x)
        h = is_on * (self.decay * h + x) + (1 - is_on) * h
        return h, (h, t + 1)


def last_felt(end):
    """The lag of the last input that an output step feels by 1 %: the slow unit has halved it 6 times since."""
    return end - 16 * (end // 16 - 6)


def test_updates_at_other_lags_from_each_output_step_are_no_short_memory():
    found = horizon(Clockwork(), torch.randn(260, 3, 1))
    expected = sorted({last_felt(end) for end in (259, 233, 207, 181)})
    assert found.figures["horizon"] in expected
    low, high = found.spread["horizon"]
    assert expected[0] <= low <= high <= expected[-1]
    assert found.figures["gaps"] > 1
    assert f"again and again, up to {found.figures['horizon']:.0f} steps back" in found.sentence


def test_the_need_lies_within_such_a_memory():
    found = examine(Clockwork(), torch.randn(130, 3, 1), needs=80, scopes=["horizon"])
    assert "gradients do not reach as far" not in found.verdict


def test_watch_sees_it_too():
    assert Watch(Clockwork(), torch.randn(130, 3, 1), every=1)()["horizon"] >= 90


class Latch(nn.Module):
    """Keeps the second feature from the last step at which the first one was large."""

    input_size = 2

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(1.0))

    def initial_state(self, batch):
        return torch.zeros(batch, 1)

    def step(self, x, h):
        is_written = (x[:, :1] > 1.5).to(x)
        h = is_written * x[:, 1:] * self.weight + (1 - is_written) * h
        return h, h


def test_a_gap_that_no_output_step_has_is_none():
    found = horizon(Latch(), torch.randn(100, 8, 2))
    assert found.figures["gaps"] == 0
    assert np.isinf(found.figures["returns_at"])
    assert "rise above it again" not in found.sentence


@pytest.mark.parametrize("model", [lambda x: x.cumsum(1), lambda x: x.unfold(1, 11, 1).mean(-1)])
def test_a_flat_curve_follows_no_law(model):
    found = horizon(model, torch.randn(3, 60, 2))
    assert found.labels["law"] == "none"
    assert "(" not in found.sentence


def test_a_slow_law_is_told_from_a_flat_curve():
    law = decay.fit(0.9999 ** np.arange(1000.0), torch.float64)
    assert law.name == "exponential"
    assert _horizon._law_in_words(law) == " (exponential, times 0.9999 per step)"


class Dropping(Latch):
    """Forgets units by dropout that is always on."""

    def initial_state(self, batch):
        return torch.zeros(batch, 4)

    def step(self, x, h):
        h = 0.8 * nn.functional.dropout(h, 0.3) * self.weight + x[:, :1]
        return h, h


def test_what_chance_cuts_off_is_no_receptive_field():
    found = horizon(Dropping(), torch.randn(80, 3, 2))
    assert np.isinf(found.figures["receptive_field"])
    assert "nothing earlier" not in found.sentence


def test_a_window_that_is_too_short_is_to_be_widened():
    found = horizon(nn.Sequential(nn.Conv1d(2, 2, 5, padding="valid")), torch.randn(3, 2, 40), needs=12)
    (said,) = found.warnings
    assert "outputs read the last 5 steps alone, so widen what they read" in said


class Dilated(nn.Module):
    """h_t = 0.9 h_{t-8} + x_t (Chang et al. 2017)."""

    input_size = 1

    def __init__(self):
        super().__init__()
        self.decay = nn.Parameter(torch.tensor(0.9))

    def initial_state(self, batch):
        return torch.zeros(batch, 8, 1)

    def step(self, x, past):
        h = self.decay * past[:, 0] + x
        return h, torch.cat([past[:, 1:], h[:, None]], 1)


@pytest.mark.parametrize("steps", [60, 64, 65, 400])
def test_gaps_between_what_is_read_are_no_end_of_it(steps):
    """Nothing earlier than 393 of 400 steps was said to be read, where the next one would have been the 401st."""
    found = horizon(Dilated(), torch.randn(steps, 3, 1))
    assert np.isinf(found.figures["receptive_field"])
    assert "nothing earlier" not in found.sentence


@pytest.mark.parametrize(("length", "field"), [(21, np.inf), (22, 11)])
def test_a_delay_must_be_seen_to_come_once(length, field):
    profile = np.zeros((length, 1))
    profile[10] = 1.0
    assert decay.receptive_field(profile, 0.0) == field


def test_more_ends_than_a_sequence_has():
    assert horizon(nn.RNN(2, 3), torch.randn(20, 2, 2), ends=1000).status == "estimated"


@pytest.mark.parametrize("steps", [61, 64])
def test_blocks_have_no_window_that_all_outputs_share(steps):
    """Of 61 steps all outputs were said to read the last 7: those that were looked at, but others read 8."""
    found = horizon(lambda x: torch.cat([part.cumsum(1) for part in x.split(8, 1)], 1), torch.randn(3, steps, 2))
    assert np.isinf(found.figures["receptive_field"])
    assert found.figures["horizon"] <= 7
