"""What an agent's network makes of observations: tables, convolutions, words."""

import dataclasses

import pytest
import torch
from environments import Walks

from mnemoscope.errors import MnemoscopeError
from mnemoscope.rl import Policy, Spec
from mnemoscope.rl._policy import Encoder, observation_size, to_tensor
from mnemoscope.training import NetworkConfig


@pytest.mark.parametrize(("reading", "kind"), [("bag", "table"), ("gru", "table"), ("bag", "conv"), ("gru", "conv")])
def test_observations_that_occur_often_are_encoded_once(reading, kind, monkeypatch):
    """Features and gradients are those of one observation after the other, and no two are taken for one."""
    torch.manual_seed(0)
    words = {"vocabulary": ("go", "to"), "words": 2, "reading": reading}
    spec = Spec(2, vector=2, cells=(5, 6), categories=(4, 3), encoder=kind, **words)
    encoder = Encoder(spec, 5).double()
    few = torch.cat([torch.rand(7, 2).round(), torch.randint(0, 3, (7, 60)), torch.randint(0, 3, (7, 2))], 1).double()
    x = few[torch.randint(0, 7, (40, 5))]
    encoded: list[int] = []
    plain = encoder._encode
    monkeypatch.setattr(encoder, "_encode", lambda rows: encoded.append(len(rows)) or plain(rows))
    together = encoder(x)
    apart = torch.stack([encoder(row) for row in x])
    assert encoded[0] == len(few.unique(dim=0))
    torch.testing.assert_close(together, apart, rtol=0, atol=1e-12)
    weights, direction = list(encoder.parameters()), torch.randn_like(apart)
    gradients = [torch.autograd.grad((one * direction).sum(), weights) for one in (together, apart)]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-11)

    # Where different ones lie at the same place of the direction, and where few are equal, all are encoded.
    assert encoder._distinct(torch.rand(200, 64).double()) is None
    encoder.direction.zero_()
    torch.testing.assert_close(encoder(x), apart, rtol=0, atol=1e-12)
    assert encoded[-1] == x[..., 0].numel()


def test_observations_are_read_by_their_spec():
    task = Walks(cells=True)
    fleet = task.fleet(2)
    observation = fleet.reset(3)
    x = to_tensor(observation)
    assert x.shape == (2, observation_size(task.spec)) == (2, 2 + 12 + 3)
    policy = Policy(task.spec, NetworkConfig("LSTM", 8, embedding=5))
    features = policy.embed(x)
    assert features.shape == (2, 5)

    # By hand: a row of the table for each category but the first of each channel of each cell, of each word; the map.
    encoder = policy.encoder
    total = encoder.bias + encoder.vector(x[:1, :2])
    for cell, (first, second) in enumerate(observation.cells[0].reshape(6, 2).tolist()):
        total = total + (encoder.table[cell * 4 + first - 1] if first else 0)
        total = total + (encoder.table[cell * 4 + 3] if second else 0)
    for word in observation.mission[0]:
        total = total + (encoder.table[6 * 4 + int(word) - 1] if word else 0)
    torch.testing.assert_close(features[:1], torch.relu(total))
    assert len(encoder.table) == 6 * 4 + 3


def test_convolutions_are_those_that_they_are_named_after():
    """Written out for one view with nested loops; and the vector, the words and the relu as with a table."""
    torch.manual_seed(0)
    words = {"vocabulary": ("go", "to"), "words": 2}
    spec = Spec(2, vector=2, cells=(7, 7), categories=(4, 3), encoder="conv", **words)
    encoder = Encoder(spec, 5).double()
    cells, vector, mission = torch.randint(0, 3, (7, 7, 2)), torch.rand(2).double(), torch.tensor([2, 0])

    def convolve(image, layer):
        weight, size = layer.weight, layer.kernel_size[0]
        count = image.shape[1] - size + 1
        made = torch.empty(len(weight), count, count).double()
        for i in range(count):
            for j in range(count):
                made[:, i, j] = (weight * image[:, i : i + size, j : j + size]).sum((1, 2, 3)) + layer.bias
        return made

    kinds, colors = encoder.convolution.table.split([4, 3])
    image = (kinds[cells[..., 0]] + colors[cells[..., 1]]).permute(2, 0, 1)
    first, _, _, second, _, third = encoder.convolution.layers
    image = convolve(image, first).relu()
    image = image.unflatten(1, (3, 2)).unflatten(3, (3, 2)).amax((2, 4))
    features = convolve(convolve(image, second).relu(), third).flatten()
    expected = (encoder.bias + encoder.vector(vector) + features + encoder.table[1]).relu()
    x = torch.cat([vector, cells.flatten().double(), mission.double()])
    torch.testing.assert_close(encoder(x[None])[0], expected, rtol=0, atol=1e-12)
    assert len(encoder.table) == 2
    with pytest.raises(MnemoscopeError, match="3 by 7 cells are too few for convolutions"):
        Encoder(dataclasses.replace(spec, cells=(3, 7)), 5)


def test_a_gain_scales_what_observations_are_encoded_with():
    spec = Walks(cells=True).spec
    made = []
    for gain in (1.0, 3.0):
        torch.manual_seed(0)
        made.append(Policy(spec, NetworkConfig("LSTM", 8, embedding_gain=gain)).encoder)
    torch.testing.assert_close(made[1].table, 3 * made[0].table)
    torch.testing.assert_close(made[1].vector.weight, 3 * made[0].vector.weight)


def test_a_reader_gives_equal_missions_equal_features_and_reads_order():
    task = Walks(cells=True)
    spec = vars(task.spec) | {"reading": "gru"}
    policy = Policy(type(task.spec)(**spec), NetworkConfig("LSTM", 8))
    words = torch.tensor([[1, 2, 0], [2, 1, 0], [1, 2, 0]])
    read = policy.encoder.reader(words)
    assert policy.embed(to_tensor(task.fleet(2).reset(0))).shape == (2, 64)
    assert torch.equal(read[0], read[2])
    assert not torch.allclose(read[0], read[1])
