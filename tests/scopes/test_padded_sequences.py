"""Sequences that end in padding: what their last outputs say, and do not say, of memory."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from mnemoscope import examine
from mnemoscope.scopes import horizon
from mnemoscope.scopes._measures import decay

STEPS = 60


class Packing(nn.Module):
    """Ids, padded with 0: the outputs of padding are zero."""

    def __init__(self):
        super().__init__()
        self.table, self.rnn = nn.Embedding(10, 6, padding_idx=0), nn.GRU(6, 8, batch_first=True)

    def forward(self, ids):
        lengths = (ids != 0).sum(1)
        packed = pack_padded_sequence(self.table(ids), lengths, batch_first=True, enforce_sorted=False)
        return pad_packed_sequence(self.rnn(packed)[0], batch_first=True, total_length=ids.shape[1])[0]


class Forgetful(nn.Module):
    """The running sum since the last number below -5."""

    def forward(self, x):
        total = torch.zeros_like(x[:, 0])
        totals = []
        for each in x.unbind(1):
            total = total * (each[:, :1] > -5) + each
            totals.append(total)
        return torch.stack(totals, 1)


def padded_ids(*lengths):
    torch.manual_seed(0)
    ids = torch.randint(1, 10, (len(lengths), STEPS))
    return ids * (torch.arange(STEPS) < torch.tensor(lengths)[:, None])


@pytest.fixture
def packing():
    torch.manual_seed(0)
    return Packing()


def test_outputs_of_padding_are_left_out(packing):
    lengths = (20, 25, 30, 35, 40, 45, 50, 60)
    found = horizon(packing, padded_ids(*lengths))
    whole = horizon(packing, padded_ids(*[60] * 8))
    low, high = whole.spread["horizon"]
    assert low <= found.figures["horizon"] <= high
    assert found.figures["receptive_field"] == math.inf
    assert any("if they are padding, give sequences of one length" in warning for warning in found.warnings)
    assert not any("padding" in warning for warning in whole.warnings)
    assert np.isfinite(found.series["input_gradient"]).all()
    assert found.series["horizon_by_sequence"][0] == -1


def test_lags_are_those_of_the_longest_sequence(packing):
    found = horizon(packing, padded_ids(20, 25, 30, 35, 40, 45, 50, 55))
    assert found.figures["lags"] == 53  # of the output steps 59, 53, 47 and 41, the last that is no padding is 53


class LastState(Packing):
    """One output per sequence, from the state after its last id."""

    def forward(self, ids):
        packed = pack_padded_sequence(self.table(ids), (ids != 0).sum(1), batch_first=True, enforce_sorted=False)
        return self.rnn(packed)[1][-1]


def test_padding_that_counts_as_steps_back_is_said():
    """One output per sequence belongs to no step: its lags are counted from the last input, padding or not."""
    torch.manual_seed(0)
    found = examine(LastState(), padded_ids(20, 30, 40, 60), scopes=["recurrence", "horizon"])
    assert "What to do: 3 of the 4 outputs do not read the last steps of their sequences" in found.verdict
    assert not horizon(LastState(), padded_ids(60, 60, 60, 60)).warnings
    first = horizon(lambda x: x[:, 0], torch.randn(4, STEPS, 2))  # where all read the same steps
    assert first.figures["horizon"] == STEPS - 1
    assert not first.warnings


def test_the_first_outputs_of_a_delay_are_not_called_padding_alone():
    found = horizon(lambda x: nn.functional.pad(x, (0, 0, 45, 0))[:, :STEPS], torch.randn(4, STEPS, 2))
    assert found.figures["horizon"] == 45
    assert "if they wait for a delay, longer sequences" in found.warnings[0]


def test_sequences_that_are_padding_at_all_output_steps_are_said_to_be(packing):
    found = examine(packing, padded_ids(*[20] * 8), scopes=["recurrence", "horizon"])
    assert found["recurrence"].labels["kind"] == "recurrent"
    assert "if the sequences end in padding" in found.verdict


def test_a_token_that_resets_the_state_at_the_end_is_no_receptive_field():
    """The other outputs are felt to the start of the sequence: what lies before it is not known."""
    torch.manual_seed(0)
    x = torch.randn(8, STEPS, 2)
    assert horizon(Forgetful(), x).figures["receptive_field"] == math.inf
    x[:, -1] = -6
    assert horizon(Forgetful(), x).figures["receptive_field"] == math.inf


def test_the_receptive_field_of_profiles_that_end_early():
    nan = np.nan
    assert decay.receptive_field(np.array([[1, 1], [1, 1], [0, 1], [0, nan]]), 0) == math.inf
    assert decay.receptive_field(np.array([[1, 1], [1, 1], [1, 1], [0, nan]]), 0) == 3
    assert decay.receptive_field(np.array([[1, 1], [1, 1], [0, 0], [0, nan]]), 0) == 2
