"""The real data sets are whole, split as published, and one epoch of each can be gone through."""

import pytest
import torch

from mnemoscope.tasks import Characters, Chorales, Digits, Task, Words
from mnemoscope.tasks._data import read_data_file
from mnemoscope.tasks._registry import FILES

pytestmark = pytest.mark.data


def counts(task: Words | Characters) -> tuple[int, ...]:
    corpus = task.corpus
    return len(corpus.train), len(corpus.valid), len(corpus.test), len(corpus.symbols)


def test_wikitext():
    task = Words("wikitext-2")
    assert counts(task) == (2_088_628, 217_646, 245_569, 33_278)
    words = [task.corpus.symbols[i] for i in task.corpus.train[:7]]
    assert words == ["<eos>", "=", "Valkyria", "Chronicles", "III", "=", "<eos>"]


def test_penn_treebank_words():
    assert counts(Words("ptb")) == (929_589, 73_760, 82_430, 10_000)


def test_penn_treebank_characters():
    task = Characters()
    assert counts(task) == (5_017_482, 393_042, 442_423, 50)
    spelt = "".join(task.corpus.symbols[i] for i in task.corpus.train[:20])
    assert spelt == "aer banknote berlitz"


def test_digits_are_split_as_in_the_papers():
    task = Digits()
    assert [task.steps_per_epoch(1, split) for split in ("train", "valid", "test")] == [50_000, 10_000, 10_000]
    inputs, labels = task.batch(0, 10, "test")
    assert inputs.shape == (784, 10, 1)
    assert labels.tolist() == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]
    assert (inputs.min(), inputs.max()) == (0, 1)


def test_permuted_digits_are_the_same_pixels_in_one_other_order():
    plain, permuted = Digits(), Digits("permuted")
    order = permuted.permutation
    assert sorted(order.tolist()) == list(range(784))
    assert torch.equal(order, Digits("permuted", 28).permutation)
    assert not torch.equal(order, Digits("permuted", seed=1).permutation)
    for split in ("train", "test"):
        assert torch.equal(permuted.batch(3, 4, split).inputs, plain.batch(3, 4, split).inputs[order])


@pytest.mark.parametrize(("pixels", "steps"), [(7, 112), (28, 28)])
def test_grouped_digits_are_the_same_pixels(pixels, steps):
    grouped, single = Digits(pixels=pixels).batch(2, 5), Digits().batch(2, 5)
    assert grouped.inputs.shape == (steps, 5, pixels)
    assert torch.equal(grouped.inputs.permute(1, 0, 2).reshape(5, 784), single.inputs.squeeze(-1).T)
    assert torch.equal(grouped.targets, single.targets)


def test_every_training_digit_is_seen_once_per_epoch():
    task = Digits(pixels=784)
    seen = torch.cat([task.batch(step, 5000).inputs.sum((0, 2)) for step in range(10)])
    again = torch.cat([task.batch(10 + step, 5000).inputs.sum((0, 2)) for step in range(10)])
    assert not torch.equal(seen, again)
    assert torch.equal(seen.sort().values, again.sort().values)


PIECES = [("jsb", (229, 76, 77)), ("nottingham", (694, 173, 170))]


@pytest.mark.parametrize(("data", "pieces"), PIECES)
def test_piano_rolls(data, pieces):
    pytest.importorskip("scipy")
    task = Chorales(data)
    assert tuple(task.steps_per_epoch(1, split) for split in ("train", "valid", "test")) == pieces
    inputs, targets = task.batch(0, 6, "test")
    real = targets[..., 0] >= 0
    assert set(targets[real].unique().tolist()) == {0.0, 1.0}
    assert (targets[~real] == -1).all()
    assert (inputs[0] == 0).all()
    assert torch.equal(inputs[1:][real[1:]], targets[:-1][real[1:]])
    assert (real.long().diff(dim=0) <= 0).all()
    assert task.weight(targets) == real.sum()


def test_padding_changes_neither_loss_nor_metrics():
    """The score of a batch is that of its pieces apart, each frame counted once."""
    pytest.importorskip("scipy")
    task = Chorales()
    together = task.batch(0, 5, "valid")
    outputs = torch.randn(*together.targets.shape, dtype=torch.float64).requires_grad_()
    apart = [task.batch(step, 1, "valid").targets for step in range(5)]
    total = sum(
        torch.nn.functional.binary_cross_entropy_with_logits(outputs[: len(t), [i]], t.double(), reduction="sum")
        for i, t in enumerate(apart)
    )
    frames = sum(len(targets) for targets in apart)
    loss = task.loss(outputs, together.targets.double())
    assert loss.item() == pytest.approx(total.item() / frames)
    loss.backward()
    assert (outputs.grad[together.targets[..., 0] < 0] == 0).all()


def test_cut_pieces_lose_no_frame():
    pytest.importorskip("scipy")
    whole, cut = Chorales(), Chorales(cut=20)

    def frames(task: Chorales) -> int:
        epoch = range(task.steps_per_epoch(64, "test"))
        return sum(task.weight(task.batch(step, 64, "test").targets) for step in epoch)

    assert frames(whole) == frames(cut)
    assert cut.length == 20


def test_chorales_baseline_is_what_note_frequencies_score():
    pytest.importorskip("scipy")
    task = Chorales()
    targets = torch.cat([task.batch(0, 1).targets, *(task.batch(step, 1).targets for step in range(1, 229))])
    often = targets.double().mean(0)
    outputs = torch.logit(often, eps=1e-12).expand(len(targets), 1, -1)
    assert task.loss(outputs, targets.double()).item() == pytest.approx(task.baseline, rel=1e-6)


ONE_EPOCH = [
    (Digits(pixels=28), 1000),
    (Digits("permuted", 7), 2500),
    (Characters(), 1000),
    (Words("ptb", bptt=35), 2000),
    (Words(), 2000),
    (Chorales("jsb"), 76),
    (Chorales("nottingham", cut=100), 173),
]


@pytest.mark.parametrize(("task", "size"), ONE_EPOCH, ids=lambda value: getattr(value, "name", value))
def test_one_epoch_of_every_split(task: Task, size: int):
    for split, rows in (("train", size), ("valid", size // 4), ("test", size // 4)):
        epoch = task.steps_per_epoch(rows, split)
        assert epoch is not None
        for step in range(epoch):
            inputs, targets = task.batch(step, rows, split)
            assert inputs.shape[1] == (targets.shape[0] if targets.dim() == 1 else targets.shape[1])


TRAINED = [
    (Digits(pixels=28), 90),
    (Digits("permuted", 28), 90),
    (Characters(bptt=40), 90),
    (Words("ptb", bptt=20, vocabulary=500), 90),
    (Words(bptt=20, vocabulary=500), 90),
    (Chorales("jsb", cut=40), 260),
    (Chorales("nottingham", cut=40), 90),
]


@pytest.mark.parametrize(("task", "updates"), TRAINED, ids=lambda value: getattr(value, "name", value))
def test_a_short_training_beats_the_baseline(task: Task, updates: int):
    """A small LSTM: inputs fit, and the loss is soon below that without memory."""
    torch.manual_seed(0)
    embed = torch.nn.Embedding(task.input_size, 64) if task.token_input else torch.nn.Linear(task.input_size, 64)
    lstm, head = torch.nn.LSTM(64, 64), torch.nn.Linear(64, task.output_size)
    optimizer = torch.optim.Adam([*embed.parameters(), *lstm.parameters(), *head.parameters()], lr=1e-2)
    losses = []
    for step in range(updates):
        inputs, targets = task.batch(step, 20)
        loss = task.loss(head(lstm(embed(inputs))[0]), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-5:]) / 5 < task.baseline


@pytest.mark.parametrize("name", list(FILES))
def test_every_data_file_has_its_checksum(name):
    assert len(read_data_file(name)) == FILES[name].size
