"""Inputs as people have them: arrays, lists, packed sequences, ids, and one sequence without a batch."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence

from mnemoscope import MnemoscopeError
from mnemoscope.adapters import Layout, adapt

SEQUENCES = torch.randn(7, 2, 3)
INPUTS = {
    "array": SEQUENCES.double().numpy(),
    "list": SEQUENCES.tolist(),
    "list of arrays": [row.numpy() for row in SEQUENCES],
    "packed": pack_sequence([SEQUENCES[:, 0], SEQUENCES[:, 1]]),
    "packed, of several lengths": pack_sequence([torch.cat([SEQUENCES[:, 0]] * 2), SEQUENCES[:, 1]]),
}


@pytest.mark.parametrize("name", INPUTS)
@pytest.mark.filterwarnings("ignore:the sequences have 7 to 14 steps")
def test_inputs_that_are_no_tensor(name):
    torch.testing.assert_close(adapt(nn.LSTM(3, 4), INPUTS[name]).features, SEQUENCES)


def test_sequences_that_are_cut_are_told():
    with pytest.warns(UserWarning, match="the sequences have 7 to 14 steps: all are cut to their first 7"):
        adapt(nn.LSTM(3, 4), INPUTS["packed, of several lengths"])
    with pytest.warns(UserWarning, match="the sequences have 2 to 5 steps: all are cut to their first 2"):
        adapt(nn.LSTM(3, 4, batch_first=True), [torch.randn(5, 3), torch.randn(2, 3)])


def test_packed_sequences_for_a_layer_that_reads_batch_first():
    found = adapt(nn.LSTM(3, 4, batch_first=True), INPUTS["packed"])
    torch.testing.assert_close(found.features, SEQUENCES)


def test_ids_in_an_array():
    model, ids = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 2)), np.arange(9, dtype=np.int32)[:, None]
    torch.testing.assert_close(adapt(model, ids).features, adapt(model, torch.arange(9)[:, None]).features)


@pytest.mark.parametrize("layer", [nn.LSTM(3, 4), nn.GRU(3, 4, batch_first=True), nn.GRUCell(3, 4)], ids=str)
def test_one_sequence_without_a_batch(layer):
    x = torch.randn(7, 3)
    found = adapt(layer, x)
    torch.testing.assert_close(found.features, x[:, None])
    if not isinstance(layer, nn.RNNCellBase):
        torch.testing.assert_close(found.run(found.features)[:, 0], layer(x)[0])


class PartOfSpeech(nn.Module):
    """The tutorial's tagger reads one sentence at a time."""

    def __init__(self):
        super().__init__()
        self.embedding, self.rnn, self.head = nn.Embedding(11, 6), nn.LSTM(6, 5), nn.Linear(5, 3)

    def forward(self, sentence):
        h, _ = self.rnn(self.embedding(sentence).view(len(sentence), 1, -1))
        return self.head(h.view(len(sentence), -1))


def test_a_model_that_reads_one_sequence_at_a_time():
    model, ids = PartOfSpeech(), torch.randint(0, 11, (9,))
    found = adapt(model, ids)
    assert found.layout is Layout.UNBATCHED
    torch.testing.assert_close(found.run(found.features), model(ids)[:, None])
    assert list(found.run(found.features.repeat(1, 4, 1)).shape) == [9, 4, 3]


def test_a_layer_inside_that_reads_no_batch():
    model, x = nn.Module(), torch.randn(7, 3)
    model.rnn = nn.LSTM(3, 4)
    model.forward = lambda x: model.rnn(x)[0]
    found = adapt(model, x)
    assert found.layout is Layout.UNBATCHED
    torch.testing.assert_close(found.run(found.features)[:, 0], model.rnn(x)[0])


def test_one_number_a_step():
    """(batch, time), as audio is given."""
    model, x = nn.Sequential(nn.Unflatten(1, (1, -1)), nn.Conv1d(1, 5, 4, stride=2)), torch.randn(3, 20)
    found = adapt(model, x)
    assert list(found.features.shape) == [20, 3, 1]
    torch.testing.assert_close(found.run(found.features), model(x).permute(2, 0, 1))


@pytest.mark.parametrize(
    "parts",
    [
        (torch.randn(3, 7, 2), torch.randn(3, 7, 2)),  # was read as 2 sequences of 3 steps
        [torch.randn(3, 7, 2), torch.randn(3, 7, 1)],  # a batch with its targets
        [torch.randn(3, 7, 2), torch.randn(3)],
        [torch.randn(7, 2), torch.randn(7, 1)],
    ],
)
def test_several_arguments_are_no_list_of_sequences(parts):
    with pytest.raises(MnemoscopeError, match=r"a list holds one sequence each.*kwargs=.*targets="):
        adapt(nn.GRU(2, 4, batch_first=True), parts)
