"""Models that do more with their ids than look them up: they see the ids that their features stand for."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from mnemoscope.adapters import adapt
from mnemoscope.adapters._ids import Vocabulary, track
from mnemoscope.scopes import horizon, recurrence, truncation

SEPARATOR = 0


class Forgetful(nn.Module):
    """A GRU that forgets all at a separator."""

    def __init__(self):
        super().__init__()
        self.table, self.cell = nn.Embedding(10, 6), nn.GRUCell(6, 8)

    def initial_state(self, batch):
        return torch.zeros(batch, 8)

    def step(self, ids, h):
        h = self.cell(self.table(ids), h * (ids != SEPARATOR)[:, None])
        return h, h


class ForgetfulForward(Forgetful):
    """The same with nothing but a forward over (batch, time)."""

    initial_state = None

    def forward(self, ids):
        h = torch.zeros(len(ids), 8)
        outputs = []
        for each in ids.unbind(1):
            h = self.step(each, h)[1]
            outputs.append(h)
        return torch.stack(outputs, 1)


class Masked(nn.Module):
    """Attention that leaves the padding, 0, out."""

    def __init__(self):
        super().__init__()
        self.table, self.attention = nn.Embedding(10, 6), nn.MultiheadAttention(6, 2, batch_first=True)

    def forward(self, ids):
        x = self.table(ids)
        causal = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).triu(1)
        return x + self.attention(x, x, x, key_padding_mask=ids == 0, attn_mask=causal)[0]


def ids_of(*separators, steps=48, batch=4):
    torch.manual_seed(0)
    ids = torch.randint(1, 10, (steps, batch))
    ids[list(separators)] = SEPARATOR
    return ids


@pytest.mark.parametrize("separators", [(0,), (16, 32), (0, 40)])
def test_a_step_sees_the_id_of_its_features(separators):
    ids = ids_of(*separators)
    torch.manual_seed(1)
    model = Forgetful()
    adapted = adapt(model, ids)
    with torch.no_grad():
        h, expected = model.initial_state(4), []
        for each in ids:
            h = model.step(each, h)[0]
            expected.append(h)
        assert torch.equal(adapted.run(adapted.features), torch.stack(expected))
        near = adapted.features + 1e-3
        torch.testing.assert_close(adapted.run(near), torch.stack(expected), atol=0.05, rtol=0)


def test_a_first_id_that_is_a_separator_does_not_make_all_steps_forget():
    torch.manual_seed(1)
    model = Forgetful()
    ids = ids_of(0)
    assert recurrence(model, ids).labels["kind"] == "recurrent"
    assert horizon(model, ids).figures["horizon"] == horizon(model, ids_of()).figures["horizon"]


@pytest.mark.parametrize("model", [Forgetful, ForgetfulForward])
def test_the_window_of_a_model_that_forgets_reaches_to_its_separator_at_most(model):
    torch.manual_seed(1)
    model = model()
    ids = ids_of(0, 44)
    found = truncation(model, ids if callable(model.initial_state) else ids.T)
    assert found.figures["window"] <= 4


def test_windows_keep_the_mask_of_their_own_ids():
    torch.manual_seed(1)
    model, ids = Masked(), ids_of(20, 33, 41).T
    adapted = adapt(model, ids)
    for k in (3, 10, 30):
        with torch.no_grad():
            expected = model(ids[:, -k:]).transpose(0, 1)
            torch.testing.assert_close(adapted.run(adapted.features[-k:]), expected)


@pytest.mark.parametrize(
    ("use", "sees"),
    [
        (lambda ids: ids.shape[0], False),
        (lambda ids: torch.zeros_like(ids, dtype=torch.float32), False),
        (lambda ids: ids.long().transpose(0, 1)[1:], False),
        (lambda ids: ids != 0, True),
        (lambda ids: (ids % 5).eq(1).any(), True),
        (lambda ids: ids.argmax(-1), True),
        (lambda ids: ids.tolist(), True),
    ],
)
def test_what_counts_as_more_than_looking_up(use, sees):
    ids = ids_of()
    vocabulary = Vocabulary(ids.numel())
    tracked = track(ids, vocabulary)
    nn.Embedding(10, 3)(tracked)
    nn.functional.one_hot(tracked, 10)
    assert not vocabulary.sees_ids
    use(tracked)
    assert vocabulary.sees_ids == sees


def test_changed_features_leave_the_mask_as_it_was():
    """A window over the end of the sequences, too: each position keeps its own id."""
    torch.manual_seed(1)
    model, ids = Masked(), ids_of(20, 33, 41).T
    adapted = adapt(model, ids)
    seen = []
    model.attention.register_forward_hook(
        lambda module, args, kwargs, result: seen.append(kwargs["key_padding_mask"]), with_kwargs=True
    )
    far = adapted.features.clone()
    far[40:46] += 9
    adapted.run(far[-20:])
    assert torch.equal(seen[-1], ids[:, -20:] == 0)


def test_joined_sequences_get_the_ids_of_their_parts():
    torch.manual_seed(1)
    model, ids = Masked(), ids_of(20, 33, 41)
    ids[5:9, 0] = 0  # one sequence has another mask
    adapted = adapt(model, ids.T)
    joined = torch.cat([ids[:10], ids[10:20].roll(1, 1)])
    features = torch.cat([adapted.features[:10], adapted.features[10:20].roll(1, 1)])
    with torch.no_grad():
        torch.testing.assert_close(adapted.run(features), model(joined.T).transpose(0, 1))
