"""Outputs are differentiated by what is looked up with ids, wherever and however often that is."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from mnemoscope import MnemoscopeError, examine
from mnemoscope.adapters import adapt, find_vocabulary

V, STEPS = 7, 9


class Reader(nn.Module):
    """Ids into a GRU, by one of many ways."""

    def __init__(self, way):
        super().__init__()
        self.position = nn.Embedding(20, V)
        self.token = nn.Embedding(V, V)
        self.other = nn.Embedding(V, V)
        self.table = nn.Parameter(torch.randn(V, V))
        self.rnn = nn.GRU(V, 5, batch_first=True)
        self.way = way

    def forward(self, ids):
        return self.rnn(WAYS[self.way](self, ids))[0]


def looped(model, ids):
    return torch.stack([model.token(ids[:, t]) for t in range(ids.shape[1])], 1)


def scattered(model, ids):
    return torch.zeros(*ids.shape, V).scatter_(-1, ids.unsqueeze(-1), 1)


def shifted(model, ids):
    """A decoder's inputs: a start token before, the last one cut off."""
    return model.token(torch.cat([torch.zeros_like(ids[:, :1]), ids[:, :-1]], 1))


WAYS = {
    "embedding": lambda model, ids: model.token(ids),
    "after a positional one": lambda model, ids: model.position(torch.arange(ids.shape[1])) + model.token(ids),
    "twice": lambda model, ids: model.token(ids) + model.token(ids) ** 2,
    "two tables": lambda model, ids: model.token(ids) + model.other(ids) ** 2,
    "loop": looped,
    "one-hot": lambda model, ids: F.one_hot(ids, V).float(),
    "scatter": scattered,
    "parameter": lambda model, ids: model.table[ids],
    "index_select": lambda model, ids: model.table.index_select(0, ids.reshape(-1)).view(*ids.shape, V),
    "matrix": lambda model, ids: F.embedding(ids.flatten(), model.table).view(*ids.shape, V),
    "clamped": lambda model, ids: model.token(ids.clamp(0, V - 1).long()),
    "hashed": lambda model, ids: model.token(ids) + model.other((3 * ids + 1) % V),
    "hashed in the same table": lambda model, ids: model.token(ids) + model.token((3 * ids + 1) % V) ** 2,
    "time first": lambda model, ids: model.token(ids.t()).transpose(0, 1),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_look_ids_up(way):
    model, ids = Reader(way), torch.randint(0, V, (4, STEPS))
    found = adapt(model, ids)
    x = found.features.clone().requires_grad_()
    y = found.run(x)
    torch.testing.assert_close(y, model(ids).transpose(0, 1))
    (gradient,) = torch.autograd.grad(y[5, 2].sum(), x)
    by_step = gradient[:, 2].norm(dim=-1)
    assert bool((by_step[:6] > 0).all())
    assert not gradient[6:].any()
    assert not gradient[:, [0, 1, 3]].any()


def test_shifted_ids():
    WAYS["shifted"] = shifted
    try:
        model, ids = Reader("shifted"), torch.randint(0, V, (4, STEPS))
        found = adapt(model, ids)
        x = found.features.clone().requires_grad_()
        torch.testing.assert_close(found.run(x), model(ids).transpose(0, 1))
        (gradient,) = torch.autograd.grad(found.run(x)[5].sum(), x)
    finally:
        del WAYS["shifted"]
    assert gradient[4].any()
    assert not gradient[5:].any()


def test_two_tables_have_columns_of_their_own():
    model, ids = Reader("two tables"), torch.randint(0, V, (4, STEPS))
    features = adapt(model, ids).features
    torch.testing.assert_close(features, torch.cat([model.token(ids), model.other(ids)], -1).transpose(0, 1).detach())


def test_padding_is_still_seen():
    """A mask that a model makes of its ids is that of the ids, also in copies of the batch."""
    embedding = nn.Embedding(V, 3)
    ids = torch.randint(1, V, (2, STEPS))
    ids[1, 4:] = 0
    found = adapt(lambda ids: embedding(ids).cumsum(1) * (ids != 0)[..., None], ids)
    y = found.run(found.features.repeat(1, 2, 1))
    assert not y[4:, [1, 3]].any()
    assert bool(y[4:, [0, 2]].any())


def test_ids_that_are_not_looked_up():
    with pytest.raises(MnemoscopeError, match="looks nothing up with them"):
        adapt(lambda ids: ids[..., None].float(), torch.randint(0, V, (4, STEPS)))
    with pytest.raises(MnemoscopeError, match="has no embedding"):
        adapt(nn.LSTM(3, 4), torch.randint(0, V, (4, STEPS)))


class IdSteps(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.cell = nn.Embedding(V, 3), nn.GRUCell(3, 4)

    def initial_state(self, batch):
        return torch.zeros(batch, 4)

    def step(self, ids, h):
        h = self.cell(self.embedding(ids), h)
        return h, h


def test_ids_in_a_step():
    model, ids = IdSteps(), torch.randint(0, V, (STEPS, 4))
    found = adapt(model, ids)
    torch.testing.assert_close(found.features, model.embedding(ids).detach())
    h, outputs = model.initial_state(4), []
    for each in ids:
        output, h = model.step(each, h)
        outputs.append(output)
    torch.testing.assert_close(found.run(found.features), torch.stack(outputs))
    assert found.name == "IdSteps"
    examined = examine(model, ids, scopes=["recurrence", "horizon", "stability", "lyapunov"])
    assert {finding.status for finding in examined} == {"estimated"}, [f.why for f in examined]


@pytest.mark.parametrize("way", ["embedding", "after a positional one", "loop"])
def test_the_vocabulary_of_a_model(way):
    """By the table in which ids are looked up, not by the first embedding that there is."""
    assert find_vocabulary(Reader(way)) == V
    assert find_vocabulary(IdSteps()) == V
    assert find_vocabulary(nn.LSTM(3, 4)) is None
    assert find_vocabulary(lambda x: x) is None
