"""Running text from a user's own file: streams, chunks, vocabularies, and scores of the whole text."""

import gzip
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mnemoscope.errors import MnemoscopeError
from mnemoscope.tasks import Characters, Words
from mnemoscope.tasks._corpora import characters, words
from mnemoscope.training import NetworkConfig, SequenceModel

LINE = "the cat — über the mat\n"
TEXT = LINE * 60 + "a zebra\n" * 9


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "own.txt"
    path.write_text(TEXT, encoding="utf-8")
    return str(path)


def test_characters_spell_the_text(text):
    corpus = Characters(text).corpus
    spelt = ["".join(corpus.symbols[i] for i in part) for part in (corpus.train, corpus.valid, corpus.test)]
    assert "".join(spelt) == TEXT
    assert sorted(set(TEXT)) == list(corpus.symbols)
    assert len(corpus.train) == len(TEXT) * 9 // 10


def test_characters_can_be_ids_to_embed(text):
    one_hot, ids = Characters(text, bptt=7), Characters(text, bptt=7, ids=True)
    assert (one_hot.token_input, ids.token_input) == (False, True)
    vectors, targets = one_hot.batch(3, 2)
    inputs, same_targets = ids.batch(3, 2)
    assert inputs.shape == (7, 2)
    assert torch.equal(vectors.argmax(-1), inputs)
    assert torch.equal(targets, same_targets)
    assert ids.input_size == one_hot.input_size
    model = SequenceModel.for_task(ids, NetworkConfig("torch.RNN", 4, embedding=3))
    assert model(inputs)[0].shape == (7, 2, ids.output_size)


def test_words_spell_the_text_and_lines_end_in_eos(text):
    corpus = words(text)
    said = [corpus.symbols[i] for i in corpus.train]
    assert said[:14] == ["the", "cat", "—", "über", "the", "mat", "<eos>"] * 2
    assert corpus.symbols[0] == "the"
    assert "zebra" not in corpus.symbols
    assert [corpus.symbols[i] for i in corpus.test[-6:]] == ["<unk>", "<unk>", "<eos>"] * 2


@pytest.mark.parametrize("end", ["", "\n"])
def test_the_last_line_ends_in_eos_once(tmp_path, end):
    path = tmp_path / f"end{len(end)}.txt"
    path.write_text("\n".join(["one two"] * 40) + end)
    corpus = words(str(path))
    assert sum(map(len, corpus[1:])) == 120
    assert corpus.symbols[corpus.test[-1]] == "<eos>"


def test_a_smaller_vocabulary_keeps_the_most_frequent_words(text):
    corpus = Words(text, vocabulary=2).corpus
    assert corpus.symbols[0] == "the"
    assert len(corpus.symbols) == 3
    assert "<unk>" in corpus.symbols


def test_text_may_be_gzipped(text, tmp_path):
    packed = tmp_path / "own.txt.gz"
    packed.write_bytes(gzip.compress(TEXT.encode()))
    assert torch.equal(characters(str(packed)).train, characters(text).train)


@settings(max_examples=30, deadline=None)
@given(size=st.integers(1, 40), bptt=st.integers(1, 50))
def test_chunks_of_an_epoch_are_the_streams(size, bptt, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "streams.txt"
    path.write_text(TEXT, encoding="utf-8")
    task = Words(str(path), bptt=bptt)
    whole = task.corpus.train.long()
    columns = whole[: len(whole) // size * size].view(size, -1).t()
    chunks = [task.batch(step, size) for step in range(task.steps_per_epoch(size))]
    assert torch.equal(torch.cat([chunk.inputs for chunk in chunks]), columns[:-1])
    assert torch.equal(torch.cat([chunk.targets for chunk in chunks]), columns[1:])


def test_an_epoch_ends_where_the_state_is_reset(text):
    task = Characters(text, bptt=10)
    epoch = task.steps_per_epoch(4)
    resets = [step for step in range(2 * epoch + 1) if task.resets_state(step, 4)]
    assert resets == [0, epoch, 2 * epoch]
    assert torch.equal(task.batch(0, 4).inputs, task.batch(epoch, 4).inputs)
    assert task.carries_state


def test_characters_are_one_hot_and_scored_in_bits(text):
    task = Characters(text, bptt=10)
    inputs, targets = task.batch(0, 3, "valid")
    assert inputs.shape == (10, 3, task.input_size)
    assert torch.equal(inputs[1:].argmax(-1), targets[:-1])
    uniform = torch.zeros(10, 3, task.output_size)
    assert task.metrics(uniform, targets)["bpc"] == pytest.approx(math.log2(task.output_size))
    assert task.metrics(torch.nn.functional.one_hot(targets, task.output_size).float(), targets)["accuracy"] == 1


def test_perplexity_of_many_batches_is_that_of_the_mean_loss(text):
    task = Words(text, bptt=7)
    batches = [task.batch(step, 2) for step in range(task.steps_per_epoch(2))]
    assert len(batches[-1].targets) < 7
    outputs = [torch.randn(*batch.targets.shape, task.output_size) for batch in batches]
    apart = [task.metrics(out, batch.targets) for out, batch in zip(outputs, batches, strict=True)]
    together = task.combine(apart, [task.weight(batch.targets) for batch in batches])
    whole = task.metrics(torch.cat(outputs), torch.cat([batch.targets for batch in batches]))
    assert together == pytest.approx(whole, rel=1e-5)


def test_huge_loss_has_infinite_perplexity(text):
    task = Words(text, bptt=3)
    targets = task.batch(0, 1).targets
    outputs = torch.zeros(3, 1, task.output_size).scatter(-1, (targets.unsqueeze(-1) + 1) % task.output_size, 1e4)
    assert task.metrics(outputs, targets)["perplexity"] == math.inf


@pytest.mark.parametrize("task", [Characters, Words])
def test_baseline_is_what_symbol_frequencies_score(task, text):
    """On all of the training text at once; the first symbol of a stream is never predicted, hence the tolerance."""
    task = task(text, bptt=10_000)
    targets = task.batch(0, 1).targets
    often = task.corpus.train.bincount(minlength=task.output_size).double()
    outputs = (often / often.sum()).log().clamp_min(-1e4).expand(len(targets), 1, -1)
    assert task.loss(outputs, targets).item() == pytest.approx(task.baseline, rel=1e-2)


def test_wrong_texts_are_refused(tmp_path):
    (tmp_path / "short.txt").write_text("short")
    (tmp_path / "bytes.txt").write_bytes(b"\xff" * 200)
    (tmp_path / "cut.txt.gz").write_bytes(gzip.compress(TEXT.encode())[:-5])
    for name, words_ in {"short.txt": "5 characters", "bytes.txt": "not UTF-8", "cut.txt.gz": "is cut"}.items():
        with pytest.raises(MnemoscopeError, match=f"{name} .*{words_}[^\n]*$"):
            Characters(str(tmp_path / name)).batch(0, 1)
    with pytest.raises(MnemoscopeError, match="'wikitext-2', 'ptb' or the path"):
        Words("wikitext-3").batch(0, 1)


def test_batch_size_larger_than_the_text_is_refused(text):
    with pytest.raises(MnemoscopeError, match="size = 5000 is not allowed"):
        Characters(text).batch(0, 5000)
